"""A client of bitshard: deadlines, retries, resumed streams and typed errors over ordinary grpcio.

The stubs inference_pb2 and inference_pb2_grpc are generated into this folder (README.md).
"""

from bitshard_client import inference_pb2 as pb
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
