# SPDX-License-Identifier: Apache-2.0
"""Connections of the echo service under frames from a mix, and what must hold of each whatever came."""

import gc
from collections import Counter
from random import Random
from typing import Self

from structlog.testing import capture_logs

from epp.extproc.http2.connection import Connection
from epp.extproc.http2.streams import Stream
from tests.support.http2.echo_service import EchoCall, EchoServer
from tests.support.http2.frame_mixes import Mix
from tests.support.http2.http2_bytes import Kind, read_frames, settings_ack
from tests.support.http2.http2_peer import Peer

_FRAMES_PER_CONNECTION = 200
_MOST_FRAME = 2**24 - 1
_FROM_A_SERVER = {Kind.DATA, Kind.HEADERS, Kind.RST_STREAM, Kind.SETTINGS, Kind.PING, Kind.GOAWAY, Kind.WINDOW_UPDATE}


class ExhaustedError(Exception):
    """All bytes are drawn."""


class ByteRandom(Random):
    """Draws from given bytes, so that a fuzzer which changes bytes changes frames."""

    def __new__(cls, _content: bytes) -> Self:
        return super().__new__(cls)

    def __init__(self, content: bytes) -> None:
        super().__init__(0)
        self._content = content
        self._at = 0

    def getrandbits(self, k: int) -> int:
        size = (k + 7) // 8
        if self._at + size > len(self._content):
            raise ExhaustedError
        self._at += size
        return int.from_bytes(self._content[self._at - size : self._at], "big") >> (size * 8 - k)

    def random(self) -> float:
        return self.getrandbits(8) / 256


class Figures:
    """What was sent, and how connections ended."""

    def __init__(self) -> None:
        self.frames = 0
        self.connections = 0
        self.calls = 0
        self.messages = 0
        self.answered_bytes = 0
        self.refused = 0
        self.answers: Counter[str] = Counter()

    def __str__(self) -> str:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.answers.most_common())
        return (
            f"{self.frames:,} frames on {self.connections:,} connections, {self.refused:,} of them ended by GOAWAY; "
            f"{self.calls:,} calls with {self.messages:,} messages; answers: {kinds}; {self.answered_bytes:,} bytes"
        )


def fuzz(random: Random, faults: int, figures: Figures) -> None:
    """Take one connection from its greeting to its end; raises AssertionError, or whatever the server does."""
    server = EchoServer(greet=False)
    answered = bytearray()
    drawn = iter(Mix(random, faults))
    sent = 0
    with capture_logs():
        try:
            pending = Peer().greeting() + settings_ack()
            while sent < _FRAMES_PER_CONNECTION and not server.connection.closed:
                pending += next(drawn)
                sent += 1
                cut = random.choice((len(pending), len(pending), 0, random.randrange(len(pending) + 1)))
                server.connection.receive(pending[:cut], server.now)
                pending = pending[cut:]
                _something_happens(server, random)
                answered += b"".join(server.connection.out)
                server.connection.out.clear()
        except ExhaustedError:
            pass
        answered += b"".join(server.connection.out)
        _end(server, random)
    server.assert_released()
    for frame in read_frames(answered):
        assert frame.kind in _FROM_A_SERVER, frame
        assert len(frame.payload) <= _MOST_FRAME
        figures.answers[Kind(frame.kind).name] += 1
        figures.answered_bytes += len(frame.payload)
        figures.refused += frame.kind == Kind.GOAWAY and frame.payload[4:8] != bytes(4)
    assert not answered, "the last frame is not whole"
    figures.frames += sent
    figures.connections += 1
    figures.calls += len(server.calls)
    figures.messages += sum(len(call.received) for call in server.calls)


def alive() -> Counter[str]:
    """How many objects there are that belong to connections."""
    gc.collect()
    kinds = (Connection, Stream, EchoCall)
    return Counter(type(found).__name__ for found in gc.get_objects() if isinstance(found, kinds))


def _something_happens(server: EchoServer, random: Random) -> None:
    match random.randrange(16):
        case 0 | 1 if server.holds:
            hold = server.holds.pop(random.randrange(len(server.holds)))
            server.connection.calls.settled(hold.stream, TimeoutError("given up") if hold.cancelled else None)
        case 2:
            server.now += random.choice((0.001, 1.0, 6.0))
            for timer in [timer for timer in server.timers if timer.at <= server.now]:
                server.timers.remove(timer)
                if not timer.cancelled:
                    timer.act()
            server.connection.check(server.now)
        case 3 if random.randrange(16) == 0:
            server.connection.go_away()


def _end(server: EchoServer, random: Random) -> None:
    try:
        if random.randrange(4) == 0:
            server.connection.cut()
    except ExhaustedError:
        pass
    server.close_calls()
    server.connection.out.clear()
    while server.holds:
        hold = server.holds.pop()
        server.connection.calls.settled(hold.stream, TimeoutError("given up") if hold.cancelled else None)
