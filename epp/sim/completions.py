"""The two completion handlers: a body in, the machine's tokens out, as one JSON or as a stream of events."""

import time
from itertools import count
from typing import Final

import msgspec
import xxhash
from aiohttp import web

from epp.framework.headers import REQUEST_ID
from epp.sim.driver import Driver, Emissions
from epp.sim.intake import decode, plan
from epp.sim.openai_api import ApiError, ChatRequest, CompletionRequest
from epp.sim.replies import ChatReplies, Replies, TextReplies
from epp.sim.request_log import RequestLog, RequestRecord

__all__ = ["CompletionHandlers"]

_EVENT_STREAM: Final = {"content-type": "text/event-stream; charset=utf-8"}


class CompletionHandlers:
    """Answers completion requests with one driver and writes each one into the log.

    Once `refuse_new` is called, requests get what a vLLM that is going down gives: HTTP 500.
    """

    def __init__(self, driver: Driver, log: RequestLog) -> None:
        self._driver = driver
        self._log = log
        self._profile = driver.machine.profile
        self._numbers = count()
        self._going_down = False

    def refuse_new(self) -> None:
        """Answer no further request; those in flight go on."""
        self._going_down = True

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/chat/completions`."""
        entry = _LogEntry(self._log, request, await request.read())
        return await self._answer(request, entry, decode(entry.body, ChatRequest))

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/completions`."""
        entry = _LogEntry(self._log, request, await request.read())
        return await self._answer(request, entry, decode(entry.body, CompletionRequest))

    async def _answer(
        self, request: web.Request, entry: "_LogEntry", body: ChatRequest | CompletionRequest
    ) -> web.StreamResponse:
        number = next(self._numbers)
        entry.note(model=body.model)
        if self._going_down:
            raise ApiError(500, "InternalServerError", "This server is shutting down and takes no new requests")
        planned = plan(body, self._profile, number)
        unique = request.headers.get(REQUEST_ID) or self._make_id(number)
        prefix, make_replies = ("chatcmpl", ChatReplies) if isinstance(body, ChatRequest) else ("cmpl", TextReplies)
        answer_id = f"{prefix}-{unique}"
        entry.note(id=answer_id, model=planned.model, prompt_tokens=planned.request.prompt_tokens)
        replies = make_replies(answer_id, planned, created=int(time.time()))
        try:
            with self._driver.submitted(planned.request) as emissions:
                if not body.stream:
                    return await _whole(entry, replies, emissions)
                with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
                return await _stream(request, entry, replies, emissions, with_usage=with_usage)
        finally:
            entry.close()

    def _make_id(self, number: int) -> str:
        # The same ids in every run; the name of the server keeps those of two servers apart.
        return xxhash.xxh3_64_hexdigest(f"{self._profile.name}/{number}".encode())


class _LogEntry:
    """One record in the log, growing while its request is served."""

    def __init__(self, log: RequestLog, request: web.Request, body: bytes) -> None:
        self.body = body
        self._log = log
        self._record = RequestRecord.arrived(request.raw_path, body, request.raw_headers)
        self._number = log.add(self._record)

    def note(self, **known: str | int | None) -> None:
        """Fill in fields of the record."""
        self._record = msgspec.structs.replace(self._record, **known)
        self._log.replace(self._number, self._record)

    def close(self) -> None:
        """Say that the request is over: one that did not finish was given up."""
        if self._record.finish_reason is None:
            self.note(finish_reason="abort")


async def _whole(entry: _LogEntry, replies: Replies, emissions: Emissions) -> web.Response:
    while (emission := await emissions.get()).finish_reason is None:
        entry.note(cached_tokens=emission.cached_tokens)
    entry.note(cached_tokens=emission.cached_tokens, finish_reason=emission.finish_reason)
    return web.Response(body=msgspec.json.encode(replies.whole(emission)), content_type="application/json")


async def _stream(
    request: web.Request, entry: _LogEntry, replies: Replies, emissions: Emissions, *, with_usage: bool
) -> web.StreamResponse:
    response = web.StreamResponse(headers=_EVENT_STREAM)
    await response.prepare(request)
    emission = await emissions.get()
    entry.note(cached_tokens=emission.cached_tokens)
    opening = replies.opening()
    if opening is not None:
        await response.write(_event(msgspec.json.encode(opening)))
    while emission.finish_reason is None:
        await response.write(_event(msgspec.json.encode(replies.chunk(emission))))
        emission = await emissions.get()
    entry.note(finish_reason=emission.finish_reason)
    await response.write(_event(msgspec.json.encode(replies.chunk(emission))))
    if with_usage:
        await response.write(_event(msgspec.json.encode(replies.usage_chunk(emission))))
    await response.write(_event(b"[DONE]"))
    await response.write_eof()
    return response


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
