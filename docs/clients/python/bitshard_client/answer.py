"""What came of one answer so far, and the request that goes on with it: resuming without I/O.

Streams hand every message to take() and give their caller what it returns. After a break, request() asks for the rest.
Each piece is given once, whatever broke when: the service names, by ids, the tokens whose deltas are complete, and
deltas that no tokens cover yet are held back until they are; they follow at once, or come again after a break.
"""

from __future__ import annotations

import random
import uuid

import grpc

from bitshard_client import errors
from bitshard_client import inference_pb2 as pb

_FIRST_DELAY, _LONGEST_DELAY = 0.1, 5.0  # seconds between tries where the service names none
_MAX_CHOICES = 1024  # more than any service takes


def _draw_id() -> str:
    return f"req-{uuid.uuid4().hex[:16]}"


def with_id(request):
    """A copy of a request of any method with an id, drawn where it could have one and has none; else itself."""
    if "request_id" not in request.DESCRIPTOR.fields_by_name or request.HasField("request_id"):
        return request
    copy = type(request)()
    copy.CopyFrom(request)
    copy.request_id = _draw_id()
    return copy


class _Choice:
    """One of the answers."""

    def __init__(self, output_ids=()):
        self.output_ids = list(output_ids)
        self.held: list[pb.GenerateResponse] = []
        self.finished = False


class Answer:
    """Not thread-safe: it belongs to whoever reads the stream."""

    def __init__(self, request: pb.GenerateRequest, max_resumes: int):
        self._request = pb.GenerateRequest()
        self._request.CopyFrom(request)
        self._drawn_id = not request.HasField("request_id")
        if self._drawn_id:
            self._request.request_id = _draw_id()
        self._wants_ids = request.output.token_ids
        self._request.output.token_ids = True  # without ids there is nothing to go on from
        if request.HasField("resume"):
            self._choices = {request.resume.choice: _Choice(request.resume.output_ids)}
        else:
            self._choices = {i: _Choice() for i in range(min(max(1, request.choices), _MAX_CHOICES))}
        self._max_resumes = max_resumes
        self._started_given = False
        self._prompt_given = False
        self._broke = False
        self._began = self._came = False  # the service took the request: by any call, by this one
        self._tries = self._breaks = 0  # since the last token: all that failed, and of them those that count
        self._due: int | None = None  # the choice that the call resumes
        self._cause: errors.BitshardError | None = None  # why the call before this one broke
        self.started: pb.Started | None = None
        self.resumes = 0

    @property
    def request_id(self) -> str:
        return self._request.request_id

    @property
    def complete(self) -> bool:
        return all(choice.finished for choice in self._choices.values())

    def request(self) -> pb.GenerateRequest:
        """Of the next call: the first one, or what goes on with the first choice that has not ended."""
        self._came = False
        request = pb.GenerateRequest()
        request.CopyFrom(self._request)
        if not self._broke:
            return request
        if len(self._choices) > 1 and not any(c.output_ids or c.finished for c in self._choices.values()):
            # Nothing of any choice came: all of them anew.
            if self._drawn_id:
                request.request_id += f".{self.resumes}"  # the broken call may still be live
            if self.started is not None:
                request.sampling.seed = self.started.seed
            return request
        self._due = next(i for i, choice in self._choices.items() if not choice.finished)
        request.resume.CopyFrom(self.resume_state(self._due))
        return request

    def resume_state(self, choice: int = 0, pending: int = 0) -> pb.Resume:
        """With this in `resume`, the same request goes on here. `pending`: of its tokens, those not yet read."""
        resume = pb.Resume()
        resume.CopyFrom(self._request.resume)
        resume.choice = choice
        resume.supersede = True
        ids = self._choices[choice].output_ids
        resume.output_ids[:] = ids[:len(ids) - pending]
        if self.started is not None:
            resume.seed = self.started.seed
            resume.model_fingerprint = self.started.model_fingerprint
        return resume

    def accepted(self) -> None:
        """The call brought its initial metadata: gRPC does not try it again from here on, going on is left to us."""
        self._began = self._came = True

    def take(self, message: pb.GenerateResponse) -> list[pb.GenerateResponse]:
        """What the caller gets now. `message` is changed."""
        self.accepted()
        if message.HasField("started") and self.started is None:
            self.started = pb.Started()
            self.started.CopyFrom(message.started)
        has_delta = message.WhichOneof("delta") is not None
        covers = message.token_count > 0 or message.HasField("finished")
        if not covers and not has_delta:
            return self._given([message])  # a status: of no choice
        choice = self._choices.get(message.choice)
        if choice is None:
            raise self._fault(f"a message of choice {message.choice}, which was not asked for")
        if message.token_count:
            if message.token_index != len(choice.output_ids):
                raise self._fault(f"token {message.token_index} came where token {len(choice.output_ids)} was due")
            if len(message.token_ids) != message.token_count:
                raise self._fault(f"{message.token_count} tokens came with {len(message.token_ids)} ids")
            choice.output_ids.extend(message.token_ids)
        if not covers:
            choice.held.append(message)
            return []
        self._tries = self._breaks = 0
        if message.HasField("finished"):
            choice.finished = True
        covered, choice.held = choice.held, []
        return self._given(covered + [message])

    def _given(self, messages: list[pb.GenerateResponse]) -> list[pb.GenerateResponse]:
        for message in messages:
            if message.HasField("started"):
                if self._started_given:
                    message.ClearField("started")
                self._started_given = True
            if message.prompt_logprobs:
                if self._prompt_given:
                    message.ClearField("prompt_logprobs")
                self._prompt_given = True
            if not self._wants_ids:
                message.ClearField("token_ids")
            if self._broke and len(self._choices) > 1:
                message.ClearField("usage")  # of the last call alone, not of all choices
        return messages

    def went_on(self) -> None:
        """The call ended well, and some choice has not: the one that was resumed must have, others are due."""
        if self._due is None or not self._choices[self._due].finished:
            raise self._fault("the stream ended without the end of its answer")

    def broke(self, error: errors.BitshardError) -> float:
        """The call failed: seconds until the next try, or raises `error` when there is none."""
        if self._came or not self._began:  # else the service is away: that lasts, and the deadline bounds it
            self._breaks += 1
        if self._breaks > self._max_resumes or not self._may_go_on(error):
            raise error
        delay = error.retry_after
        if delay is None:
            delay = min(_LONGEST_DELAY, _FIRST_DELAY * 2**min(self._tries, 10)) * random.uniform(0.5, 1.0)
        self._tries += 1
        self.resumes += 1
        self._broke, self._due, self._cause = True, None, error
        for choice in self._choices.values():
            choice.held = []
        return delay

    def _may_go_on(self, error: errors.BitshardError) -> bool:
        if isinstance(error, errors.DuplicateRequest):
            return self._drawn_id  # nobody else has that id: it is an earlier try, which the next one supersedes
        if not self._began:
            return False  # that was for gRPC's own tries, and they are used up
        if isinstance(error, (errors.Unavailable, errors.SlowReader)):
            return True
        # What goes on waits for its place.
        return isinstance(error, errors.Overloaded) and self._broke and error.retry_after is not None

    def tell(self, error: errors.BitshardError, seconds: float) -> None:
        """Adds to the message of `error`, the end of the answer, what came in `seconds` and what broke it before."""
        if not isinstance(error, (errors.Unavailable, errors.DeadlineExceeded)):
            return
        tokens = sum(len(choice.output_ids) for choice in self._choices.values()) - len(self._request.resume.output_ids)
        error.message += f" (after {seconds:.1f} s, {tokens} tokens, {self.resumes} resumes"
        if self._cause is not None and self._cause is not error:
            error.message += f"; last broken by {self._cause.code.name}: {self._cause.message}"
        error.message += ")"

    def _fault(self, what: str) -> errors.ServerError:
        return errors.ServerError(grpc.StatusCode.DATA_LOSS, what, request_id=self.request_id)
