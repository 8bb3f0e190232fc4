"""What the service may answer to any bytes at all: the status contract of proto/inference.proto as a function."""

import dataclasses
import re

import grpc
from google.protobuf.message import DecodeError
from google.rpc import status_pb2

Code = grpc.StatusCode
# INTERNAL, UNKNOWN, DATA_LOSS and UNAVAILABLE would be the service's fault: its workers live, and it does not drain.
ALLOWED = {Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.ALREADY_EXISTS, Code.FAILED_PRECONDITION,
           Code.RESOURCE_EXHAUSTED, Code.DEADLINE_EXCEEDED, Code.CANCELLED, Code.UNIMPLEMENTED}
MAX_REQUEST_BYTES = 8 << 20
# What may come to any request before its bytes are looked at.
_UNREAD = {Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED}
# Tags beyond 32 bits: C++ takes the low ones, Python's parser refuses.
_LONG_TAG = re.compile(rb"[\x80-\xff]{4}[\x10-\xff]")


@dataclasses.dataclass
class Answer:
    """How a call ended, as the client saw it."""

    code: grpc.StatusCode
    details: str = ""
    trailers: tuple = ()
    messages: list = dataclasses.field(default_factory=list)  # bytes
    cancelled: bool = False  # by this client


@dataclasses.dataclass
class Method:
    """An RPC: "/package.Service/Name", its messages' classes, whether it streams."""

    path: str
    request: type
    response: type
    streams: bool


def parsed(kind, data):
    """The message, or None where the bytes are none."""
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


def complaints(method, payload, answer, shared_ids):
    """What is wrong with the answer; [] when all is well."""
    code, found = answer.code, []
    request = parsed(method.request, payload)
    if code not in ALLOWED:
        found.append(f"the code is {code.name}")
    if code != Code.OK and not answer.details:
        found.append(f"{code.name} comes without a word")
    if len(payload) > MAX_REQUEST_BYTES and code == Code.OK:
        found.append("a request beyond the limit is answered")
    if request is None and code != Code.INVALID_ARGUMENT and code not in _UNREAD and not _LONG_TAG.search(payload):
        found.append(f"bytes that are no {method.request.DESCRIPTOR.name} get {code.name}")
    is_shared = request is None or getattr(request, "request_id", "") in shared_ids  # Abort, supersede
    if code == Code.CANCELLED and not answer.cancelled and not is_shared:
        found.append("CANCELLED, and nobody cancelled it")
    found += _details(answer)
    responses = [parsed(method.response, message) for message in answer.messages]
    if None in responses:
        return found + ["a response does not parse"]
    if method.streams and method.response.DESCRIPTOR.name == "GenerateResponse":
        found += _stream(code, responses)
    if code == Code.OK and not method.streams and len(responses) != 1:
        found.append(f"{len(responses)} responses")
    return found


def _details(answer):
    """INVALID_ARGUMENT names the fields, or says that the bytes are broken; what details there are can be read."""
    kinds = []
    if answer.code == Code.DEADLINE_EXCEEDED or answer.cancelled and answer.code == Code.CANCELLED:
        return []  # this client's own; the trailers may be of an end that came at the same time
    for key, value in answer.trailers:
        if key == "grpc-status-details-bin":
            status = parsed(status_pb2.Status, value)
            if status is None:
                return ["the details do not parse"]
            if status.code != answer.code.value[0]:
                return [f"the details are of code {status.code}"]
            kinds = [detail.type_url.rpartition(".")[2] for detail in status.details]
    if answer.code == Code.INVALID_ARGUMENT and not {"BadRequest", "ErrorInfo"} & set(kinds):
        return [f"INVALID_ARGUMENT does not say which field: {answer.details[:200]!r}"]
    return []


def _stream(code, responses):
    """Tokens of each choice follow one another, and a good end is said."""
    counts, finished = {}, set()
    for message in responses:
        if message.choice in finished:
            return [f"choice {message.choice} goes on after its end"]
        if message.token_count:
            due = counts.get(message.choice, message.token_index)  # a resumed one begins where it was cut off
            if message.token_index != due:
                return [f"token {message.token_index} comes where {due} is due"]
            counts[message.choice] = due + message.token_count
        if message.HasField("finished"):
            finished.add(message.choice)
    if code == Code.OK and not finished:
        return ["OK without an end"]
    return []
