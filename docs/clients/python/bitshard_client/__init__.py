"""A client of bitshard: deadlines, retries, resumed streams and typed errors over ordinary grpcio.

The stubs inference_pb2 and inference_pb2_grpc are generated into this folder (README.md).
"""

try:
    from bitshard_client import inference_pb2 as pb
    from bitshard_client import inference_pb2_grpc as _  # noqa: F401
except ModuleNotFoundError:
    raise  # grpcio or protobuf is missing, and the message says so
except ImportError as error:
    raise ImportError(
        "bitshard_client has no stubs. In the repository: python -m grpc_tools.protoc -Ibitshard_client=proto "
        "--python_out=FOLDER --grpc_python_out=FOLDER proto/inference.proto (FOLDER: the one that has bitshard_client)"
    ) from error

from bitshard_client.aio import AsyncAnswerStream, AsyncClient
from bitshard_client.client import AnswerStream, Client
from bitshard_client.connection import ClientOptions, TlsOptions
from bitshard_client.errors import (BitshardError, Cancelled, DeadlineExceeded, DuplicateRequest, FieldViolation,
                                    InvalidRequest, ModelNotFound, NotImplementedByService, Overloaded,
                                    PreconditionFailed, PromptTooLong, ServerError, SlowReader, Unavailable)

__all__ = [
    "AnswerStream", "AsyncAnswerStream", "AsyncClient", "BitshardError", "Cancelled", "Client", "ClientOptions",
    "DeadlineExceeded", "DuplicateRequest", "FieldViolation", "InvalidRequest", "ModelNotFound",
    "NotImplementedByService", "Overloaded", "PreconditionFailed", "PromptTooLong", "ServerError", "SlowReader",
    "TlsOptions", "Unavailable", "pb",
]
