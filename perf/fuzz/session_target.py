# SPDX-License-Identifier: Apache-2.0
"""Bytes as one exchange of the protocol: any messages in any order and mode, queued requests, every ending.

The first bytes choose bench, limit and modes, the next ones kind and end of each message, with its content. For any
input, the session raises only declared errors, and closes the routing exactly once.
"""

import asyncio
import contextlib
from collections.abc import Callable

from google.protobuf.message import DecodeError
from structlog.testing import capture_logs

from epp.extproc.codec import RequestPiece, decode
from epp.extproc.exchange import NotReadyError, ProtocolError
from epp.extproc.wire import ProcessingRequest, ProtocolConfiguration
from epp.framework.refusals import SaturatedError
from epp.routing.director import Cause, PendingRequest
from perf.fuzz.targets import FuzzTarget
from tests.support.admitter import CONFIG, Gate
from tests.support.exchanges import (
    BODY,
    Bench,
    new_bench,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
    subset,
)

_MODES = ("NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED", None)
_PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/x", "")
_STATUSES = ("200", "503", "", "x", "9" * 9)
_CAUSES = (Cause.NATURAL, Cause.CLIENT_DISCONNECT, Cause.ERROR)
_MOST_STEPS = 40
_LARGE_BYTES = 5_000
"""A piece of a body, as a reference to the message."""
_ALLOWED = (DecodeError, NotReadyError, ProtocolError)


class _Bytes:
    """Draws numbers and pieces from the input; zeros after its end."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    @property
    def ended(self) -> bool:
        return self._at >= len(self._content)

    def number(self, below: int) -> int:
        at, self._at = self._at, self._at + 1
        return self._content[at] % below if at < len(self._content) else 0

    def piece(self) -> bytes:
        size = self.number(256)
        at, self._at = self._at, self._at + size
        return self._content[at : at + size]


class Target(FuzzTarget):
    """Sessions over one director; each input gets a new session."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._plain, self._held = new_bench(), new_bench(CONFIG)
        gate = self._held.plugins["gate"]
        assert isinstance(gate, Gate)
        self._gate = gate
        self.exchanges = 0
        self.routed = 0

    def __call__(self, content: bytes) -> None:
        drawn = _Bytes(content)
        bench = (self._plain, self._held)[drawn.number(2)]
        served = bench.served
        self._gate.held.clear()
        bench.endings.causes.clear()
        bench.endings.refusals.clear()
        with capture_logs() as said:
            self._runner.run(self._play(bench, drawn))
        ended = len(bench.endings.causes)
        assert bench.in_flight == 0, f"{bench.in_flight} in the ledger after the end"
        assert bench.served - served == ended <= 1, f"{bench.served - served} routed, {ended} completed"
        assert not [line for line in said if line["log_level"] == "error"], said  # of an unexpected error
        assert all(future.done() for future in self._gate.held), "a hold that was not ended"
        self.exchanges += 1
        self.routed += ended

    def close(self) -> None:
        self._runner.close()

    async def _play(self, bench: Bench, drawn: _Bytes) -> None:
        session = bench.session(max_body_bytes=(1_000, 100_000)[drawn.number(2)])
        modes = drawn.number(256)
        first, settling = True, None
        with contextlib.suppress(*_ALLOWED):
            for _ in range(_MOST_STEPS):
                if drawn.ended or session.done:
                    break
                message = _message(drawn)
                if message is None:
                    answers = session.on_silence()
                else:
                    if first:
                        _say_modes(message, modes)
                        first = False
                    answers = session.receive(message)
                if answers and isinstance(answers[-1], PendingRequest):
                    settling = asyncio.create_task(answers[-1].settle())
                    await asyncio.sleep(0)
                    if not self._released(drawn):
                        break
                    await settling
                    session.resume()
        if settling is not None and not settling.done():
            settling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await settling
        session.close(_CAUSES[drawn.number(len(_CAUSES))])

    def _released(self, drawn: _Bytes) -> bool:
        """Dispatch the request, refuse it, or disconnect its client."""
        outcome = drawn.number(3)
        for future in self._gate.held:
            if not future.done() and outcome == 0:
                future.set_result(None)
            elif not future.done() and outcome == 1:
                future.set_exception(SaturatedError("queue is full"))
        return outcome != 2


def _say_modes(message: ProcessingRequest | RequestPiece, modes: int) -> None:
    request, response = _MODES[modes % len(_MODES)], _MODES[modes // len(_MODES) % len(_MODES)]
    if isinstance(message, ProcessingRequest) and request is not None and response is not None:
        message.protocol_config.CopyFrom(ProtocolConfiguration(request_body_mode=request, response_body_mode=response))


def _message(drawn: _Bytes) -> ProcessingRequest | RequestPiece | None:
    """Return the next message; None for a pause."""
    kind, end = drawn.number(len(_KINDS) + 3), bool(drawn.number(2))
    if kind < len(_KINDS):
        return decode(_KINDS[kind](drawn, end).SerializeToString())
    return None if kind == len(_KINDS) else decode(drawn.piece() or b"\x00")


def _with_subset(drawn: _Bytes, _end: object) -> ProcessingRequest:
    made = request_headers()
    made.metadata_context.CopyFrom(subset(drawn.piece().decode(errors="replace")))
    return made


_KINDS: tuple[Callable[[_Bytes, bool], ProcessingRequest], ...] = (
    lambda drawn, end: request_headers(_PATHS[drawn.number(len(_PATHS))], end=end),
    lambda drawn, _: request_headers(**{drawn.piece().decode(errors="replace").lower(): "1"}),  # type: ignore[arg-type]
    _with_subset,
    lambda _, end: request_body(BODY, end=end),
    lambda drawn, end: request_body(drawn.piece(), end=end),
    lambda drawn, end: request_body(drawn.piece() + b" " * _LARGE_BYTES, end=end),
    lambda _drawn, _end: request_trailers(),
    lambda _, end: response_headers(end=end),
    lambda drawn, end: response_headers(_STATUSES[drawn.number(len(_STATUSES))], end=end),
    lambda drawn, end: response_body(drawn.piece(), end=end),
    lambda _drawn, _end: response_trailers(),
)
