# SPDX-License-Identifier: Apache-2.0
"""Frames of many streams as a client might send them, with as many faults as are asked for: the input of a fuzzer."""

from collections.abc import Callable, Iterator
from random import Random

from hpack import Encoder

from tests.support.http2 import http2_bytes as h2
from tests.support.http2.echo_service import PATH
from tests.support.http2.http2_bytes import Setting
from tests.support.http2.http2_peer import Peer

LETTERS = b"ennttbhdxr"
_ODDITIES: list[tuple[str | bytes, str | bytes]] = [
    ("grpc-timeout", "5S"),
    ("grpc-timeout", "0n"),
    ("grpc-timeout", "x"),
    ("grpc-encoding", "gzip"),
    ("grpc-encoding", "identity"),
    ("content-length", "7"),
    ("content-length", "-"),
    ("te", "gzip"),
    ("connection", "close"),
    ("X-Capital", "1"),
    ("x-bytes", b"\xff\x00"),
    (":path", "/again"),
    ("x-long", "v" * 3_000),
    ("host", "elsewhere"),
]


class Mix:
    """Draws frames; `faults` of ten are not what a well-behaved client would send then."""

    def __init__(self, random: Random, faults: int, *, farewells: bool = True) -> None:
        self._farewells = farewells
        self._random = random
        self._faults = faults
        self._encoder = Encoder()
        self._open: list[int] = []
        self._closed: list[int] = []
        self._next = 1

    def __iter__(self) -> Iterator[bytes]:
        random = self._random
        good = [self._opening] * 3 + [self._data] * 8 + [self._end, self._cancel, self._control, self._update]
        while True:
            bad = random.random() * 10 < self._faults
            yield random.choice(_FAULTS)(self) if bad else random.choice(good)()

    def _opening(self) -> bytes:
        random = self._random
        stream, self._next = self._next, self._next + random.choice((2, 2, 2, 4))
        self._open.append(stream)
        more = [("x-n", str(random.randrange(50)))] * random.randrange(2)
        block = h2.encoded(self._encoder, h2.grpc_fields(PATH, more))
        if random.random() < 0.2:
            sizes = [random.randrange(1, 40) for _ in range(random.randrange(1, 4))]
            return h2.cut_headers(stream, block, sizes)
        pad = random.randrange(256) if random.random() < 0.1 else None
        return h2.headers(stream, block, pad=pad, priority=(0, 7) if random.random() < 0.1 else None)

    def _data(self, *, end: bool = False) -> bytes:
        random = self._random
        if not self._open:
            return self._opening()
        message = bytes([random.choice(LETTERS)]) + random.randbytes(random.choice((0, 1, 5, 30, 300)))[:300]
        if message[:1] == b"b":
            message = message[:3]
        whole = h2.grpc_message(message)
        stream = random.choice(self._open)
        pad = random.randrange(20) if random.random() < 0.1 else None
        if random.random() < 0.3:
            cut = random.randrange(len(whole) + 1)
            return h2.data(stream, whole[:cut]) + h2.data(stream, whole[cut:], pad=pad, end=end)
        return h2.data(stream, whole, pad=pad, end=end)

    def _end(self) -> bytes:
        if not self._open:
            return self._opening()
        stream = self._open.pop(self._random.randrange(len(self._open)))
        self._closed.append(stream)
        if self._random.random() < 0.2:
            return h2.headers(stream, h2.encoded(self._encoder, [("x-sum", "1")]), end=True)
        return h2.data(stream, end=True)

    def _cancel(self) -> bytes:
        if not self._open:
            return self._opening()
        stream = self._open.pop(self._random.randrange(len(self._open)))
        self._closed.append(stream)
        return h2.rst_stream(stream, self._random.randrange(15))

    def _control(self) -> bytes:
        random = self._random
        return random.choice(
            (
                h2.ping(random.randbytes(8)),
                h2.ping(random.randbytes(8), ack=True),
                h2.settings([(Setting.INITIAL_WINDOW_SIZE, random.choice((0, 1, 100, 65_535, 2**20)))]),
                h2.settings([(Setting.MAX_FRAME_SIZE, random.choice((16_384, 20_000, 2**24 - 1)))]),
                h2.settings([(Setting.HEADER_TABLE_SIZE, random.choice((0, 4_096, 2**32 - 1))), (0x9999, 1)]),
                h2.settings_ack(),
                h2.frame(random.randrange(10, 256), random.randrange(256), random.randrange(9), random.randbytes(9)),
            )
        )

    def _update(self) -> bytes:
        increment = self._random.choice((1, 100, 65_535, 2**20))
        return h2.window_update(self._random.choice([0, 0, *self._open]), increment)

    def any_stream(self) -> int:
        return self._random.choice([0, self._next, self._next + 1, 2, *self._open, *self._closed[-5:]])

    # faults

    def odd_head(self) -> bytes:
        stream, self._next = self._next, self._next + 2
        fields = h2.grpc_fields(PATH, [self._random.choice(_ODDITIES)])
        if self._random.random() < 0.3:
            fields.pop(self._random.randrange(len(fields)))
        self._random.shuffle(fields) if self._random.random() < 0.2 else None
        return h2.headers(stream, h2.encoded(self._encoder, fields), end=self._random.random() < 0.5)

    def misplaced(self) -> bytes:
        random = self._random
        kind, flags = random.randrange(10), random.choice((0, 1, 4, 5, 8, 13, 255))
        return h2.frame(kind, flags, self.any_stream(), random.randbytes(random.choice((0, 1, 4, 5, 6, 8, 9, 40))))

    def bad_message(self) -> bytes:
        random = self._random
        prefix = random.choice((b"\x01\0\0\0\1", b"\0\xff\xff\xff\xff", b"\xff" * 5, b"\0\0\2\0\0"))
        return h2.data(self.any_stream(), prefix + random.randbytes(3), end=random.random() < 0.3)

    def flipped(self) -> bytes:
        whole = bytearray(self._data())
        whole[self._random.randrange(len(whole))] ^= 1 << self._random.randrange(8)
        return bytes(whole)

    def bad_update(self) -> bytes:
        return h2.window_update(self.any_stream(), self._random.choice((0, 1, 2**31 - 1, 2**32 - 1)))

    def bad_settings(self) -> bytes:
        return h2.settings([(self._random.randrange(8), self._random.choice((0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1)))])

    def farewell(self) -> bytes:
        if not self._farewells:
            return self.noise()
        return h2.goaway(self._random.randrange(9), self._random.randrange(15), self._random.randbytes(5))

    def noise(self) -> bytes:
        return self._random.randbytes(self._random.randrange(1, 30))


_FAULTS: list[Callable[[Mix], bytes]] = [
    *(Mix.odd_head,) * 3,
    *(Mix.misplaced,) * 3,
    *(Mix.bad_message,) * 3,
    Mix.flipped,
    *(Mix.bad_update,) * 2,
    Mix.bad_settings,
    Mix.farewell,
    Mix.noise,
]


def mixed_frames(seed: int, frames: int, faults: int = 0) -> list[bytes]:
    """Return the greeting of a client and about so many frames, the same for the same seed.

    Without GOAWAY, after which a server closes once it has answered all that came in one read.
    """
    drawn = iter(Mix(Random(seed), faults, farewells=False))
    return [Peer().greeting(), *(next(drawn) for _ in range(frames))]
