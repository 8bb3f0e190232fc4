"""Failures of calls as exceptions: one class for each thing that a program may do about them.

The service says more than a code: google.rpc details in the grpc-status-details-bin trailer. They are attributes here.
The contract is at the head of proto/inference.proto.
"""

from __future__ import annotations

import dataclasses

import grpc
from google.protobuf import message as protobuf
from google.rpc import error_details_pb2, status_pb2

_DETAILS = "grpc-status-details-bin"


@dataclasses.dataclass(frozen=True)
class FieldViolation:
    """A field of the request that is wrong: its path ("sampling.top_p") and why."""

    field: str
    description: str


class BitshardError(Exception):
    """A call that failed. Catch the subclasses that you can do something about, and this for the rest."""

    def __init__(self, code: grpc.StatusCode, message: str, *, reason: str = "", retry_after: float | None = None,
                 fields: tuple[FieldViolation, ...] = (), quota: tuple[str, ...] = (), request_id: str = ""):
        super().__init__(message)
        self.code = code
        self.message = message
        # ErrorInfo.reason, stable and for programs: "QUEUE_FULL". Empty when the service gave none.
        self.reason = reason
        # RetryInfo, in seconds: try again, but not before. None: the service did not say.
        self.retry_after = retry_after
        # BadRequest: every field that is wrong.
        self.fields = fields
        # QuotaFailure: the limits that were hit.
        self.quota = quota
        # As in the service's log.
        self.request_id = request_id

    def __str__(self) -> str:
        parts = [f"{self.code.name}: {self.message}"]
        if self.reason:
            parts.append(f"reason {self.reason}")
        if self.retry_after is not None:
            parts.append(f"retry after {self.retry_after:g} s")
        if self.request_id:
            parts.append(f"request {self.request_id}")
        return parts[0] + (f" ({', '.join(parts[1:])})" if parts[1:] else "")


class InvalidRequest(BitshardError):
    """The request is wrong; `fields` names every wrong field. Mend it, do not retry."""


class PromptTooLong(InvalidRequest):
    """Only the length is wrong: shorten the prompt or ask for fewer tokens."""


class ModelNotFound(BitshardError):
    """The service has no model of that name (Client.list_models)."""


class DuplicateRequest(BitshardError):
    """A live request of yours has this request_id."""


class PreconditionFailed(BitshardError):
    """Well-formed, but it cannot work here: it never fits the KV pool, or resumes an answer of other weights.

    Or CONSTRAINT_DEAD_END: no token of the model goes on with the constraint.
    """


class Overloaded(BitshardError):
    """The queue is full or too long: come back after `retry_after`. Retries with the service's pushback were made.

    Without `retry_after` it is the request that is too much: CONSTRAINT_TOO_SLOW, CONSTRAINT_TOO_LARGE.
    """


class SlowReader(BitshardError):
    """This client read its stream too slowly, also after resuming it."""


class Unavailable(BitshardError):
    """No connection, or the service drains or misses a worker. Retries were made; try later or elsewhere."""


class DeadlineExceeded(BitshardError):
    """The call's deadline passed: it was too short, or the service was away."""


class Cancelled(BitshardError):
    """The call was cancelled: by its stream's cancel(), by its client's close(), or through Abort."""


class NotImplementedByService(BitshardError):
    """Known to the API, not built into this service; the message names it."""


class ServerError(BitshardError):
    """The service's fault, or an answer that breaks its own contract. Report it with `request_id`."""


def client_closed(request_id: str = "") -> Cancelled:
    return Cancelled(grpc.StatusCode.CANCELLED, "the client is closed", request_id=request_id)


def no_time(timeout: float, request_id: str = "") -> DeadlineExceeded:
    """Of a call that cannot begin any more."""
    what = "the deadline passed before a try" if timeout > 0 else "the timeout is 0 or less"
    return DeadlineExceeded(grpc.StatusCode.DEADLINE_EXCEEDED, what, request_id=request_id)


def took(error: BitshardError, seconds: float, calls: int) -> BitshardError:
    """`error`, the end of a call of one answer; its message now tells what it took. gRPC's own tries are within a call."""
    if isinstance(error, (Unavailable, DeadlineExceeded)):
        error.message += f" (after {seconds:.1f} s, {calls} {'call' if calls == 1 else 'calls'})"
    return error


_BY_REASON = {"PROMPT_TOO_LONG": PromptTooLong, "SLOW_READER": SlowReader}
_BY_CODE = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: ModelNotFound,
    grpc.StatusCode.ALREADY_EXISTS: DuplicateRequest,
    grpc.StatusCode.FAILED_PRECONDITION: PreconditionFailed,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.UNIMPLEMENTED: NotImplementedByService,
    grpc.StatusCode.INTERNAL: ServerError,
    grpc.StatusCode.DATA_LOSS: ServerError,
    grpc.StatusCode.UNKNOWN: ServerError,
}


def from_rpc_error(error: grpc.RpcError, request_id: str = "") -> BitshardError:
    """What grpcio raised (grpc.RpcError of either API), with the details read."""
    details = _rich_details(error)
    code = error.code()
    kind = _BY_REASON.get(details.get("reason", ""), _BY_CODE.get(code, BitshardError))
    return kind(code, error.details() or "", request_id=request_id, **details)


def _rich_details(error: grpc.RpcError) -> dict:
    found: dict = {}
    for key, value in error.trailing_metadata() or ():
        if key != _DETAILS:
            continue
        try:
            status = status_pb2.Status.FromString(value)
        except protobuf.DecodeError:
            continue  # a proxy's, perhaps: the code and the message still hold
        for detail in status.details:
            _read_detail(detail, found)
    return found


def _read_detail(detail, found: dict) -> None:
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    bad, quota = error_details_pb2.BadRequest(), error_details_pb2.QuotaFailure()
    try:
        if detail.Unpack(info):
            found["reason"] = info.reason
        elif detail.Unpack(retry):
            found["retry_after"] = retry.retry_delay.seconds + retry.retry_delay.nanos * 1e-9
        elif detail.Unpack(bad):
            found["fields"] = tuple(FieldViolation(v.field, v.description) for v in bad.field_violations)
        elif detail.Unpack(quota):
            found["quota"] = tuple(f"{v.subject}: {v.description}" for v in quota.violations)
    except protobuf.DecodeError:
        pass
