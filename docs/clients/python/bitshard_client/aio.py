"""The client for asyncio: as client.py, with `await` and `async for`."""

from __future__ import annotations

import asyncio
import collections
import functools
import itertools
import time
from collections.abc import AsyncIterator, Callable

import grpc
import grpc.aio

from bitshard_client import answer, connection, errors
from bitshard_client import inference_pb2 as pb
from bitshard_client import inference_pb2_grpc as pb_grpc


class AsyncAnswerStream(AsyncIterator[pb.GenerateResponse]):
    """An answer as it is written: `async for` over it. One that breaks is resumed; nothing comes twice or is missing.

    One task reads. Cancelling that task, leaving an `async with` block, or cancel() ends the call.
    """

    def __init__(self, call: Callable[..., grpc.aio.UnaryStreamCall], request: pb.GenerateRequest, timeout: float,
                 max_resumes: int, client_closed: Callable[[], bool]):
        self._start_call, self._client_closed = call, client_closed
        self._answer = answer.Answer(request, max_resumes)
        self._start, self._timeout = time.monotonic(), timeout
        self._end = self._start + timeout
        self._ready: collections.deque[pb.GenerateResponse] = collections.deque()
        self._over = False
        self._call: grpc.aio.UnaryStreamCall | None = None
        self._cancelled = asyncio.Event()

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
        if self._call is not None:
            self._call.cancel()

    def close(self) -> None:
        if not self._over:
            self._over = True
            self._ready.clear()
            self.cancel()

    async def __aenter__(self) -> AsyncAnswerStream:
        return self

    async def __aexit__(self, *_) -> None:
        self.close()

    async def __anext__(self) -> pb.GenerateResponse:
        try:
            while not self._ready:
                await self._read()
            return self._ready.popleft()
        except errors.BitshardError as error:
            self.close()
            self._answer.tell(error, time.monotonic() - self._start)
            raise
        except BaseException:
            self.close()
            raise

    async def _read(self) -> None:
        """Puts what came next into _ready; StopAsyncIteration at the end of the answer."""
        if self._over:
            raise StopAsyncIteration
        task_cancels = _task_cancels()
        try:
            call = self._call or self._begin()
            message = await call.read()
            if message is not grpc.aio.EOF:
                self._ready.extend(self._answer.take(message))
                return
            self._call = None
            if not self._answer.complete:
                self._answer.went_on()
                return
        except asyncio.CancelledError:
            closed = self._client_closed()
            if not (self._cancelled.is_set() or closed) or _task_cancels() > task_cancels:
                raise  # the task was cancelled, perhaps at the moment of a cancel()
            self._call = None
            if not self._answer.complete:
                raise (errors.client_closed(self.request_id) if closed else self._cancel_error()) from None
        except grpc.RpcError as error:
            if await call.initial_metadata():
                self._answer.accepted()
            self._call = None
            if not self._answer.complete:  # else all is here, only the status got lost
                await self._wait(errors.from_rpc_error(error, self.request_id))
                return
        self._over = True
        raise StopAsyncIteration

    def _begin(self) -> grpc.aio.UnaryStreamCall:
        left = self._end - time.monotonic()
        if left <= 0:
            raise errors.no_time(self._timeout, self.request_id)
        if self._cancelled.is_set():
            raise self._cancel_error()
        self._call = self._start_call(self._answer.request(), left)
        return self._call

    async def _wait(self, error: errors.BitshardError) -> None:
        delay = self._answer.broke(error)
        if time.monotonic() + delay >= self._end:
            raise error
        task_cancels = _task_cancels()
        try:
            await asyncio.wait_for(self._cancelled.wait(), delay)
        except asyncio.TimeoutError:
            return
        if _task_cancels() > task_cancels:  # wait_for may swallow it
            raise asyncio.CancelledError
        raise self._cancel_error()

    def _cancel_error(self) -> errors.Cancelled:
        return errors.Cancelled(grpc.StatusCode.CANCELLED, "cancelled by its reader", request_id=self.request_id)


def _task_cancels() -> int:
    """How often this task was cancelled; always 0 before Python 3.11, which cannot tell."""
    return getattr(asyncio.current_task(), "cancelling", int)()


class AsyncClient:
    """As client.Client, of one event loop. Make it inside a coroutine."""

    def __init__(self, target: str, options: connection.ClientOptions = connection.ClientOptions()):
        self._options = options
        self._channels = [self._open(connection.resolvable(target)) for _ in range(options.connections)]
        self._stubs = [pb_grpc.InferenceStub(channel) for channel in self._channels]
        self._turn = itertools.count()
        self._closed = False

    def _open(self, target: str) -> grpc.aio.Channel:
        arguments = connection.channel_arguments(self._options)
        if self._options.tls is None:
            return grpc.aio.insecure_channel(target, arguments)
        return grpc.aio.secure_channel(target, connection.credentials(self._options.tls), arguments)

    def generate(self, request: pb.GenerateRequest, timeout: float | None = None,
                 metadata: tuple[tuple[str, str], ...] = ()) -> AsyncAnswerStream:
        """The answer as a stream. Calls nothing until it is read; the deadline counts from now."""
        start = functools.partial(self._start, self._stub().Generate, metadata=self._options.metadata + metadata)
        return AsyncAnswerStream(start, request, self._timeout(timeout), self._options.max_resumes,
                                 lambda: self._closed)

    async def complete(self, request: pb.CompleteRequest, timeout: float | None = None) -> pb.CompleteResponse:
        """The whole answer at once."""
        return await self._unary("Complete", request, timeout)

    async def score(self, request: pb.ScoreRequest, timeout: float | None = None) -> pb.ScoreResponse:
        return await self._unary("Score", request, timeout)

    async def embed(self, request: pb.EmbedRequest, timeout: float | None = None) -> pb.EmbedResponse:
        return await self._unary("Embed", request, timeout)

    async def tokenize(self, request: pb.TokenizeRequest, timeout: float | None = None) -> pb.TokenizeResponse:
        return await self._unary("Tokenize", request, timeout)

    async def detokenize(self, request: pb.DetokenizeRequest, timeout: float | None = None) -> pb.DetokenizeResponse:
        return await self._unary("Detokenize", request, timeout)

    async def apply_chat_template(self, request: pb.ApplyChatTemplateRequest,
                                  timeout: float | None = None) -> pb.ApplyChatTemplateResponse:
        return await self._unary("ApplyChatTemplate", request, timeout)

    async def list_models(self, timeout: float | None = None) -> list[pb.Model]:
        return list((await self._unary("ListModels", pb.ListModelsRequest(), timeout)).models)

    async def abort(self, *request_ids: str, timeout: float | None = None) -> None:
        """Ends live requests of this caller, wherever they are read. Unknown ids are no error."""
        await self._unary("Abort", pb.AbortRequest(request_ids=request_ids), timeout)

    async def close(self) -> None:
        """Ends all calls with errors.Cancelled; further ones fail so too."""
        self._closed = True
        for channel in self._channels:
            await channel.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_) -> None:
        await self.close()

    def _stub(self) -> pb_grpc.InferenceStub:
        return self._stubs[next(self._turn) % len(self._stubs)]

    def _timeout(self, timeout: float | None) -> float:
        return self._options.default_timeout if timeout is None else timeout

    def _start(self, method: Callable, request, timeout: float, metadata: tuple[tuple[str, str], ...]):
        try:
            return method(request, timeout=timeout, metadata=metadata, wait_for_ready=self._options.wait_for_ready)
        except grpc.aio.UsageError:
            if self._closed:
                raise errors.client_closed(getattr(request, "request_id", "")) from None
            raise

    async def _unary(self, name: str, request, timeout: float | None):
        method, timeout = getattr(self._stub(), name), self._timeout(timeout)
        sent, start, calls = answer.with_id(request), time.monotonic(), 0
        task_cancels = _task_cancels()
        while True:
            request_id = getattr(sent, "request_id", "")
            left = start + timeout - time.monotonic()
            if left <= 0:
                raise errors.took(errors.no_time(timeout, request_id), time.monotonic() - start, calls)
            try:
                calls += 1
                return await self._start(method, sent, left, self._options.metadata)
            except asyncio.CancelledError:
                if not self._closed or _task_cancels() > task_cancels:
                    raise
                raise errors.client_closed(request_id) from None
            except grpc.RpcError as error:
                failure = errors.from_rpc_error(error, request_id)
                if sent is request or not isinstance(failure, errors.DuplicateRequest):
                    raise errors.took(failure, time.monotonic() - start, calls) from error
                sent = answer.with_id(request)  # a try of gRPC's that broke has the id that was drawn
