"""The client for threads. The same for asyncio is in aio.py."""

from __future__ import annotations

import collections
import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterator

import grpc

from bitshard_client import answer, connection, errors
from bitshard_client import inference_pb2 as pb
from bitshard_client import inference_pb2_grpc as pb_grpc


class AnswerStream(Iterator[pb.GenerateResponse]):
    """An answer as it is written: iterate over it. A stream that breaks is resumed; nothing comes twice or is missing.

    One thread reads; cancel() is for any thread. Leaving a `with` block, or close(), cancels what has not ended.
    """

    def __init__(self, call: Callable[..., grpc.Call], request: pb.GenerateRequest, timeout: float, max_resumes: int):
        self._start_call = call
        self._answer = answer.Answer(request, max_resumes)
        self._start, self._timeout = time.monotonic(), timeout
        self._end = self._start + timeout
        self._ready: collections.deque[pb.GenerateResponse] = collections.deque()
        self._over = False
        self._lock = threading.Lock()
        self._call: grpc.Call | None = None  # guarded by _lock, as cancel() wants it
        self._cancelled = threading.Event()

    @property
    def request_id(self) -> str:
        """As in the service's log and its x-request-id."""
        return self._answer.request_id

    @property
    def started(self) -> pb.Started | None:
        """Seed, fingerprint and prompt length; once the first message has come."""
        return self._answer.started

    @property
    def resumes(self) -> int:
        """How often the stream broke and went on."""
        return self._answer.resumes

    def resume_state(self, choice: int = 0) -> pb.Resume:
        """Keep it to go on later, or from another process: the same request with this in its field `resume`.

        Take it after a message with a token_count above 0; deltas read after that message would come again.
        """
        pending = sum(message.token_count for message in self._ready if message.choice == choice)
        return self._answer.resume_state(choice, pending)

    def cancel(self) -> None:
        """The reader gets errors.Cancelled, unless the answer is complete."""
        self._cancelled.set()
        with self._lock:
            if self._call is not None:
                self._call.cancel()

    def close(self) -> None:
        if not self._over:
            self._over = True
            self._ready.clear()
            self.cancel()

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __next__(self) -> pb.GenerateResponse:
        try:
            while not self._ready:
                self._read()
            return self._ready.popleft()
        except errors.BitshardError as error:
            self.close()
            self._answer.tell(error, time.monotonic() - self._start)
            raise
        except BaseException:
            self.close()
            raise

    def _read(self) -> None:
        """Puts what came next into _ready; StopIteration at the end of the answer."""
        if self._over:
            raise StopIteration
        try:
            call = self._call or self._begin()
            self._ready.extend(self._answer.take(next(call)))
            return
        except StopIteration:
            self._call = None
            if not self._answer.complete:
                self._answer.went_on()
                return
        except grpc.RpcError as error:
            if call.initial_metadata():
                self._answer.accepted()
            self._call = None
            if not self._answer.complete:  # else all is here, only the status got lost
                self._wait(errors.from_rpc_error(error, self.request_id))
                return
        self._over = True
        raise StopIteration

    def _begin(self) -> grpc.Call:
        left = self._end - time.monotonic()
        if left <= 0:
            raise errors.no_time(self._timeout, self.request_id)
        with self._lock:
            if self._cancelled.is_set():
                raise self._cancel_error()
            self._call = self._start_call(self._answer.request(), left)
            return self._call

    def _wait(self, error: errors.BitshardError) -> None:
        delay = self._answer.broke(error)
        if time.monotonic() + delay >= self._end:
            raise error
        if self._cancelled.wait(delay):
            raise self._cancel_error()

    def _cancel_error(self) -> errors.Cancelled:
        return errors.Cancelled(grpc.StatusCode.CANCELLED, "cancelled by its reader", request_id=self.request_id)


class Client:
    """Calls a service. One for the whole program: it is thread-safe, and its connections are shared by all calls.

    `target`: "host:port", or any of gRPC's names. Every call has a deadline; `timeout` is in seconds. What fails raises
    a subclass of errors.BitshardError.
    """

    def __init__(self, target: str, options: connection.ClientOptions = connection.ClientOptions()):
        self._options = options
        self._channels = [self._open(connection.resolvable(target)) for _ in range(options.connections)]
        self._stubs = [pb_grpc.InferenceStub(channel) for channel in self._channels]
        self._turn = itertools.count()
        self._closed = False

    def _open(self, target: str) -> grpc.Channel:
        arguments = connection.channel_arguments(self._options)
        if self._options.tls is None:
            return grpc.insecure_channel(target, arguments)
        return grpc.secure_channel(target, connection.credentials(self._options.tls), arguments)

    def generate(self, request: pb.GenerateRequest, timeout: float | None = None,
                 metadata: tuple[tuple[str, str], ...] = ()) -> AnswerStream:
        """The answer as a stream. Calls nothing until it is read; the deadline counts from now."""
        start = functools.partial(self._start, self._stub().Generate, metadata=self._options.metadata + metadata)
        return AnswerStream(start, request, self._timeout(timeout), self._options.max_resumes)

    def complete(self, request: pb.CompleteRequest, timeout: float | None = None) -> pb.CompleteResponse:
        """The whole answer at once."""
        return self._unary("Complete", request, timeout)

    def score(self, request: pb.ScoreRequest, timeout: float | None = None) -> pb.ScoreResponse:
        return self._unary("Score", request, timeout)

    def embed(self, request: pb.EmbedRequest, timeout: float | None = None) -> pb.EmbedResponse:
        return self._unary("Embed", request, timeout)

    def tokenize(self, request: pb.TokenizeRequest, timeout: float | None = None) -> pb.TokenizeResponse:
        return self._unary("Tokenize", request, timeout)

    def detokenize(self, request: pb.DetokenizeRequest, timeout: float | None = None) -> pb.DetokenizeResponse:
        return self._unary("Detokenize", request, timeout)

    def apply_chat_template(self, request: pb.ApplyChatTemplateRequest,
                            timeout: float | None = None) -> pb.ApplyChatTemplateResponse:
        return self._unary("ApplyChatTemplate", request, timeout)

    def list_models(self, timeout: float | None = None) -> list[pb.Model]:
        return list(self._unary("ListModels", pb.ListModelsRequest(), timeout).models)

    def abort(self, *request_ids: str, timeout: float | None = None) -> None:
        """Ends live requests of this caller, wherever they are read. Unknown ids are no error."""
        self._unary("Abort", pb.AbortRequest(request_ids=request_ids), timeout)

    def close(self) -> None:
        """Ends all calls with errors.Cancelled; further ones fail so too."""
        self._closed = True
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _stub(self) -> pb_grpc.InferenceStub:
        return self._stubs[next(self._turn) % len(self._stubs)]

    def _timeout(self, timeout: float | None) -> float:
        return self._options.default_timeout if timeout is None else timeout

    def _start(self, method: Callable, request, timeout: float, metadata: tuple[tuple[str, str], ...]):
        try:
            return method(request, timeout=timeout, metadata=metadata, wait_for_ready=self._options.wait_for_ready)
        except ValueError:  # so says grpcio, but not of this alone
            if self._closed:
                raise errors.client_closed(getattr(request, "request_id", "")) from None
            raise

    def _unary(self, name: str, request, timeout: float | None):
        method, timeout = getattr(self._stub(), name), self._timeout(timeout)
        sent, start, calls = answer.with_id(request), time.monotonic(), 0
        while True:
            request_id = getattr(sent, "request_id", "")
            left = start + timeout - time.monotonic()
            if left <= 0:
                raise errors.took(errors.no_time(timeout, request_id), time.monotonic() - start, calls)
            try:
                calls += 1
                return self._start(method, sent, left, self._options.metadata)
            except grpc.RpcError as error:
                failure = errors.from_rpc_error(error, request_id)
                if sent is request or not isinstance(failure, errors.DuplicateRequest):
                    raise errors.took(failure, time.monotonic() - start, calls) from error
                sent = answer.with_id(request)  # a try of gRPC's that broke has the id that was drawn
