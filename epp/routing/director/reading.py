# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests, read at once, or in turns of the event loop where they take long."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import NamedTuple, TypeVar

from epp.framework.addresses import Subset
from epp.framework.errors import BadRequestError, BodyMissingError
from epp.framework.headers import METHOD, PATHS
from epp.framework.request import Headers, RequestBody
from epp.framework.steps import Steps, joined_slices
from epp.routing.bodies import completed, completed_in_turns
from epp.routing.director.pipeline import ParsedBody, Pipeline, ReadingBody
from epp.routing.director.tracing import RequestTrace

T = TypeVar("T")

DEFAULT_PATH = "/v1/completions"
_LONG_BYTES = 256 * 1024
"""A body that takes a millisecond to be completed."""
_JOINER = ThreadPoolExecutor(1, thread_name_prefix="join")
"""A single thread: the allocator keeps freed memory for each thread that had much."""
_NOTHING = ParsedBody(RequestBody(), names_model=False)


class IncomingRequest(NamedTuple):
    """A request before its body is read, and the pipeline for it."""

    pipeline: Pipeline
    path: str
    headers: Headers
    size_bytes: int
    subset: Subset | None
    trace: RequestTrace | None = None
    began_at: float | None = None
    """When its headers came; None for just now."""


class StepRunner:
    """Reads bodies one step in each turn of the event loop, in rotation."""

    __slots__ = ("_joining", "_step")

    def __init__(self) -> None:
        self._step = asyncio.Lock()
        self._joining = asyncio.Lock()  # since a body takes twice its memory then

    async def read(self, reading: ReadingBody) -> ParsedBody:
        """Return what routing needs of a body; raises what its parser does."""
        return await in_turns(reading, self._step)

    async def read_gathered(self, call: IncomingRequest, gathered: "Gathered", *, incomplete: bool) -> ParsedBody:
        """Put a body together, and return the same."""
        async with self._joining:
            body = await in_turns(gathered.join(), self._step)
        found = read(call, body, incomplete=incomplete)
        return found if isinstance(found, ParsedBody) else await self.read(found)


async def in_turns(steps: Steps[T], lock: AbstractAsyncContextManager[object] | None = None) -> T:
    """Return what steps return, made one in each turn of the event loop, each with the lock."""
    sent: bytes | None = None
    try:
        while True:
            async with lock or nullcontext():
                await asyncio.sleep(0)
                pieces = steps.send(sent)
            sent = None if pieces is None else await _joined(pieces)
    except StopIteration as end:
        found: T = end.value
        return found


def _joined(pieces: list[bytes]) -> asyncio.Future[bytes]:
    """Join bytes without Python's lock."""
    return asyncio.get_running_loop().run_in_executor(_JOINER, b"".join, pieces)


class Gathered:
    """A long body in the pieces in which it came."""

    __slots__ = ("_pieces", "_size", "body")

    def __init__(self, pieces: list[bytes | bytearray | memoryview]) -> None:
        self._pieces = pieces
        self._size = sum(map(len, pieces))
        self.body = b""
        """All of it, once it was put together."""

    def __len__(self) -> int:
        return self._size

    def join(self) -> Steps[bytes]:
        """Put it together."""
        first = self._pieces[0]
        if len(self._pieces) == 1 and isinstance(first, bytes):
            self.body = first
        else:
            self.body = yield from joined_slices(self._pieces)
        self._pieces = []
        return self.body


def read(call: IncomingRequest, body: bytes, *, incomplete: bool) -> ParsedBody | ReadingBody:
    """Return what routing needs of a body, or a generator that does in several turns; raises a BadRequestError.

    Of an `incomplete` one it is nothing, where the missing part may make it valid, or name a model.
    """
    parsers = call.pipeline.parsers
    if not body:
        if not incomplete and call.headers.get(METHOD) == "POST" and parsers.claims(call.path):
            raise BodyMissingError
        return _NOTHING
    if not incomplete:
        return parsers.parse(call.path, call.headers, body)
    reading = _read_beginning(call, body)
    if len(body) > _LONG_BYTES:
        return reading
    try:
        next(reading)
    except StopIteration as end:
        found: ParsedBody = end.value
        return found
    return reading


def path_of(headers: Headers) -> str:
    """Return the path of a request, without the query."""
    path = headers.first_of(*PATHS) or DEFAULT_PATH
    return path.partition("?")[0]


def _read_beginning(call: IncomingRequest, body: bytes) -> ReadingBody:
    whole = (yield from completed_in_turns(body)) if len(body) > _LONG_BYTES else completed(body)
    try:
        parsed = call.pipeline.parsers.parse(call.path, call.headers, whole)
        if not isinstance(parsed, ParsedBody):
            parsed = yield from parsed
    except BadRequestError:
        return _NOTHING
    return parsed if parsed.body.model else _NOTHING
