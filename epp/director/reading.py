# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests, read at once, or in turns of the event loop where they take long."""

import asyncio
from typing import NamedTuple

from epp.bodies import completed
from epp.director.pipeline import Parsed, Pipeline, ReadingBody
from epp.framework.addresses import Subset
from epp.framework.errors import BadRequestError, BodyMissingError
from epp.framework.headers import METHOD, PATHS
from epp.framework.request import Headers, RequestBody

DEFAULT_PATH = "/v1/completions"
_LONG_BYTES = 256 * 1024
"""A body that takes a millisecond to be completed."""
_LARGE_BYTES = 4 * 1024 * 1024
"""A body that takes a millisecond to be received, and another one to be looked through."""
_NOTHING = Parsed(RequestBody(), names_model=False)


class Call(NamedTuple):
    """A request before its body is read, and the pipeline for it."""

    pipeline: Pipeline
    path: str
    headers: Headers
    size_bytes: int
    subset: Subset | None


class Turns:
    """Reads bodies one step in each turn of the event loop, in rotation."""

    __slots__ = ("_step",)

    def __init__(self) -> None:
        self._step = asyncio.Lock()

    async def read(self, reading: ReadingBody) -> Parsed:
        """Return what routing needs of a body; raises what its parser does."""
        try:
            while True:
                async with self._step:
                    await asyncio.sleep(0)
                    next(reading)
        except StopIteration as end:
            parsed: Parsed = end.value
            return parsed


def read(call: Call, body: bytes, *, incomplete: bool) -> Parsed | ReadingBody:
    """Return what routing needs of a body, or a generator that does in several turns; raises a BadRequestError.

    Of an `incomplete` one it is nothing, where the missing part may make it valid, or name a model.
    """
    parsers = call.pipeline.parsers
    if not body:
        if not incomplete and call.headers.get(METHOD) == "POST" and parsers.claims(call.path):
            raise BodyMissingError
        return _NOTHING
    if not incomplete:
        return _in_turns(call, body) if len(body) > _LARGE_BYTES else parsers.parse(call.path, call.headers, body)
    reading = _read_beginning(call, body)
    if len(body) > _LONG_BYTES:
        return reading
    try:
        next(reading)
    except StopIteration as end:
        found: Parsed = end.value
        return found
    return reading


def _in_turns(call: Call, body: bytes) -> ReadingBody:
    yield
    parsed = call.pipeline.parsers.parse(call.path, call.headers, body)
    if isinstance(parsed, Parsed):
        return parsed
    yield
    return (yield from parsed)


def path_of(headers: Headers) -> str:
    """Return the path of a request, without the query."""
    path = headers.first_of(*PATHS) or DEFAULT_PATH
    return path.partition("?")[0]


def _read_beginning(call: Call, body: bytes) -> ReadingBody:
    whole = completed(body)
    if len(body) > _LONG_BYTES:
        yield
    try:
        parsed = call.pipeline.parsers.parse(call.path, call.headers, whole)
        if not isinstance(parsed, Parsed):
            parsed = yield from parsed
    except BadRequestError:
        return _NOTHING
    return parsed if parsed.body.model else _NOTHING
