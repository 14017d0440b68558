# SPDX-License-Identifier: Apache-2.0
"""The completion handlers: decode a request, run it on the machine, and answer whole or as a stream of events."""

import hashlib
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from itertools import count
from typing import Final, Literal

import msgspec
import xxhash
from aiohttp import web
from msgspec import UNSET, UnsetType

from epp.framework.headers import REQUEST_ID
from epp.lab.sim.driver import Driver, Emissions
from epp.lab.sim.machine import Emission
from epp.lab.sim.openai_api import (
    AnswerMessage,
    ApiError,
    CachedTokens,
    ChatChoice,
    ChatRequest,
    ChunkChoice,
    CompletionRequest,
    Delta,
    FunctionCall,
    Reply,
    ResponseShape,
    ResponsesRequest,
    TextChoice,
    ToolCall,
    Usage,
)
from epp.lab.sim.plan import Plan, decode, make_plan

_EVENT_STREAM: Final = {"content-type": "text/event-stream; charset=utf-8"}
_MAX_RECORDS = 1000


class RequestRecord(msgspec.Struct, kw_only=True):
    """One request to a completion path.

    Attributes:
        id: the id of the answer; None when the request was refused before it got one.
        path: the path with its query, as it arrived.
        model: the requested model; None when the body could not be read.
        prompt_tokens: None when the request was refused before they were counted.
        cached_tokens: None until the first output token.
        finish_reason: `stop`, `length` or `abort` (also for a client that disconnected); None while it is in flight
            and when it was refused.
        body_bytes: length of the body.
        body_sha256: hexadecimal digest of the body.
        headers: (lower-case name, value) in order of arrival, with duplicates.
    """

    id: str | None = None
    path: str
    model: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    body_bytes: int
    body_sha256: str
    headers: tuple[tuple[str, str], ...]


class CompletionHandlers:
    """Answers completion requests with one driver, and records the last 1,000 of them.

    After `refuse_new`, requests get the answer of a vLLM that shuts down: HTTP 500.
    """

    def __init__(self, driver: Driver) -> None:
        self.records: deque[RequestRecord] = deque(maxlen=_MAX_RECORDS)
        self._driver = driver
        self._profile = driver.machine.profile
        self._numbers = count()
        self._shutting_down = False

    def refuse_new(self) -> None:
        """Refuse new requests; those in flight continue."""
        self._shutting_down = True

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/chat/completions`."""
        return await self._answer(request, ChatRequest)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/completions`."""
        return await self._answer(request, CompletionRequest)

    async def respond(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/responses`."""
        return await self._answer(request, ResponsesRequest)

    async def _answer(
        self, request: web.Request, kind: type[ChatRequest] | type[CompletionRequest] | type[ResponsesRequest]
    ) -> web.StreamResponse:
        content = await request.read()
        record = _record(request, content)
        self.records.append(record)
        body = decode(content, kind)
        record.model = body.model
        if self._shutting_down:
            raise ApiError(500, "InternalServerError", "This server is shutting down and takes no new requests")
        number = next(self._numbers)
        plan = make_plan(body.as_chat() if isinstance(body, ResponsesRequest) else body, self._profile, number)
        unique = request.headers.get(REQUEST_ID) or self._make_id(number)
        replies = _REPLIES[type(body)](unique, plan)
        record.id, record.model, record.prompt_tokens = replies.id, plan.model, plan.request.prompt_tokens
        try:
            with self._driver.submitted(plan.request) as emissions:
                if not body.stream:
                    return await _whole(record, replies, emissions)
                with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
                return await _stream(request, record, replies, emissions, with_usage=with_usage)
        finally:
            record.finish_reason = record.finish_reason or "abort"

    def _make_id(self, number: int) -> str:
        # The same ids in every run; the server's name distinguishes those of two servers.
        return xxhash.xxh3_64_hexdigest(f"{self._profile.name}/{number}".encode())


def _record(request: web.Request, body: bytes) -> RequestRecord:
    return RequestRecord(
        path=request.raw_path,
        body_bytes=len(body),
        body_sha256=hashlib.sha256(body).hexdigest(),
        headers=tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in request.raw_headers),
    )


class _Replies(ABC):
    """The JSON of one answer: an opening, one chunk for each token, or all of it as a whole."""

    prefix: Literal["chatcmpl-", "cmpl-", "resp_"]
    whole_object: Literal["chat.completion", "text_completion"]
    chunk_object: Literal["chat.completion.chunk", "text_completion"]

    def __init__(self, unique: str, plan: Plan) -> None:
        self.id = f"{self.prefix}{unique}"
        self._plan = plan
        self._created = int(time.time())

    def opening_events(self) -> bytes:
        """Return the events before the first token."""
        opening = self.opening()
        return b"" if opening is None else _event(opening)

    def chunk_event(self, emission: Emission) -> bytes:
        """Return the event of one token."""
        return _event(self.chunk(emission))

    def ending_events(self, last: Emission, *, with_usage: bool) -> bytes:
        """Return the events after the last token."""
        return (_event(self.usage_chunk(last)) if with_usage else b"") + b"data: [DONE]\n\n"

    def body(self, last: Emission) -> bytes:
        """Return the unstreamed answer, which ended with the emission `last`."""
        return msgspec.json.encode(self.whole(last))

    def opening(self) -> Reply | None:
        """Return the chunk before the first token, if there is one."""
        return None

    def chunk(self, emission: Emission) -> Reply:
        """Return the chunk of one token; the last one has the finish reason."""
        text = self._text(emission, first=emission.index)
        return self._reply(self.chunk_object, self._chunk_choices(text, emission.finish_reason))

    def usage_chunk(self, last: Emission) -> Reply:
        """Return the chunk after the last token, with the usage and no choices."""
        return self._reply(self.chunk_object, [], self._usage(last))

    def whole(self, last: Emission) -> Reply:
        """Return the unstreamed answer, which ended with the emission `last`."""
        choices = self._whole_choices(self._text(last, first=0), last.finish_reason)
        return self._reply(self.whole_object, choices, self._usage(last))

    @abstractmethod
    def _chunk_choices(self, text: str, reason: str | None) -> list[ChunkChoice] | list[TextChoice]: ...

    @abstractmethod
    def _whole_choices(self, text: str, reason: str | None) -> list[ChatChoice] | list[TextChoice]: ...

    def _text(self, emission: Emission, *, first: int) -> str:
        return "".join(self._plan.words[first : _tokens_until(emission)])

    def _usage(self, last: Emission) -> Usage:
        prompt_tokens, completion_tokens = self._plan.request.prompt_tokens, _tokens_until(last)
        return Usage(
            prompt_tokens=prompt_tokens,
            total_tokens=prompt_tokens + completion_tokens,
            completion_tokens=completion_tokens,
            prompt_tokens_details=CachedTokens(last.cached_tokens),
        )

    def _reply(
        self,
        kind: Literal["chat.completion", "chat.completion.chunk", "text_completion"],
        choices: list[ChatChoice] | list[ChunkChoice] | list[TextChoice],
        usage: Usage | UnsetType = UNSET,
    ) -> Reply:
        model = self._plan.model
        return Reply(id=self.id, object=kind, created=self._created, model=model, choices=choices, usage=usage)


class _ChatReplies(_Replies):
    prefix: Literal["chatcmpl-", "cmpl-", "resp_"] = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self) -> Reply:
        delta = Delta(role="assistant", content="")
        if self._plan.tool:
            call = FunctionCall("", self._plan.tool)
            calls = [ToolCall(id=f"call_{self.id}", type="function", index=0, function=call)]
            delta = Delta(role="assistant", tool_calls=calls)
        return self._reply(self.chunk_object, [ChunkChoice(delta=delta)])

    def _chunk_choices(self, text: str, reason: str | None) -> list[ChunkChoice]:
        delta = Delta(content=text)
        if self._plan.tool:
            delta = Delta(tool_calls=[ToolCall(index=0, function=FunctionCall(text))])
        stop = None if reason else UNSET
        return [ChunkChoice(delta=delta, finish_reason=self._reason(reason), stop_reason=stop)]

    def _whole_choices(self, text: str, reason: str | None) -> list[ChatChoice]:
        message = AnswerMessage(content=text)
        if self._plan.tool:
            call = FunctionCall(text, self._plan.tool)
            calls = [ToolCall(id=f"call_{self.id}", type="function", function=call)]
            message = AnswerMessage(content=None, tool_calls=calls)
        return [ChatChoice(message=message, finish_reason=self._reason(reason))]

    def _reason(self, reason: str | None) -> str | None:
        return "tool_calls" if self._plan.tool and reason == "stop" else reason


class _TextReplies(_Replies):
    prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def _chunk_choices(self, text: str, reason: str | None) -> list[TextChoice]:
        return [TextChoice(text=text, finish_reason=reason)]

    _whole_choices = _chunk_choices


class _ResponsesReplies(_ChatReplies):
    prefix = "resp_"

    def __init__(self, unique: str, plan: Plan) -> None:
        super().__init__(unique, plan)
        self._shape = ResponseShape(self.id, plan.model, self._created, plan.tool)

    def opening_events(self) -> bytes:
        return self._shape.opening()

    def chunk_event(self, emission: Emission) -> bytes:
        return self._shape.delta(self._text(emission, first=emission.index))

    def ending_events(self, last: Emission, *, with_usage: bool) -> bytes:  # noqa: ARG002  always with it
        return self._shape.ending(self._counts(last), self._text(last, first=0), _status(last))

    def body(self, last: Emission) -> bytes:
        return msgspec.json.encode(self._shape.whole(self._counts(last), self._text(last, first=0), _status(last)))

    def _counts(self, last: Emission) -> dict[str, object]:
        usage = self._usage(last)
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.prompt_tokens_details.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.total_tokens,
        }


def _status(last: Emission) -> str:
    return "incomplete" if last.finish_reason == "length" else "completed"


_REPLIES: Mapping[type, type[_Replies]] = {
    ChatRequest: _ChatReplies,
    CompletionRequest: _TextReplies,
    ResponsesRequest: _ResponsesReplies,
}


def _tokens_until(emission: Emission) -> int:
    # The emission of an aborted request has no token.
    return emission.index + (emission.finish_reason != "abort")


async def _whole(record: RequestRecord, replies: _Replies, emissions: Emissions) -> web.Response:
    while (emission := await emissions.get()).finish_reason is None:
        record.cached_tokens = emission.cached_tokens
    record.cached_tokens, record.finish_reason = emission.cached_tokens, emission.finish_reason
    return web.Response(body=replies.body(emission), content_type="application/json")


async def _stream(
    request: web.Request, record: RequestRecord, replies: _Replies, emissions: Emissions, *, with_usage: bool
) -> web.StreamResponse:
    response = web.StreamResponse(headers=_EVENT_STREAM)
    await response.prepare(request)
    emission = await emissions.get()
    record.cached_tokens = emission.cached_tokens
    if opening := replies.opening_events():
        await response.write(opening)
    while emission.finish_reason is None:
        await response.write(replies.chunk_event(emission))
        emission = await emissions.get()
    record.finish_reason = emission.finish_reason
    await response.write(replies.chunk_event(emission))
    await response.write(replies.ending_events(emission, with_usage=with_usage))
    await response.write_eof()
    return response


def _event(reply: Reply) -> bytes:
    return b"data: " + msgspec.json.encode(reply) + b"\n\n"
