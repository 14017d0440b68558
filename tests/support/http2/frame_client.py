# SPDX-License-Identifier: Apache-2.0
"""The client's side of one connection without I/O: frames in, frames out, a clock that is moved by hand."""

from collections.abc import Callable
from dataclasses import dataclass, field

from hpack import Decoder, Encoder

from epp.extproc.http2 import frames
from epp.extproc.http2.connection import Connection
from epp.extproc.http2.limits import BufferedBytes, Limits, RateLimitedLog
from epp.extproc.http2.service import ErrorCode, RpcError, Status
from tests.support.http2 import http2_bytes as h2
from tests.support.http2.echo_service import Hold, Timer

ECHO = "/test.Echo/Talk"
HEAD = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", ECHO),
    (":authority", "picker"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)


@dataclass(frozen=True)
class Frame:
    kind: int
    flags: int
    stream_id: int
    payload: bytes = b""

    @property
    def code(self) -> ErrorCode:
        """Of RST_STREAM or GOAWAY."""
        return ErrorCode(frames.word(self.payload, 4 if self.kind == frames.GOAWAY else 0))

    @property
    def end_stream(self) -> bool:
        return bool(self.flags & frames.END_STREAM)


def parse(data: bytes) -> list[Frame]:
    return [Frame(*each) for each in h2.read_frames(bytearray(data))]


message, messages, data, rst = h2.grpc_message, h2.grpc_messages, h2.data, h2.rst_stream


@dataclass
class Waiting:
    """An answer that a test settles."""

    async def settle(self) -> None: ...


class Echo:
    """Answers each message with itself, and some words in other ways."""

    def __init__(self, outlet) -> None:
        self.outlet = outlet
        self.received: list[bytes] = []
        self.resumed = 0
        self.problems: list[str] = []
        self.closed = 0
        self.done = False
        self.silence_timeout: float | None = None
        self.awaits_more = False
        self.given_way: list[Status] = []
        self.stays_open = False

    def receive(self, content: bytes):
        assert not self.closed
        self.received.append(content)
        match content:
            case b"crash":
                raise ZeroDivisionError("on purpose")
            case b"refuse":
                raise RpcError(3, "not: 100 %, später")
            case b"wait":
                return [b"first", Waiting()]
            case b"end":
                self.done = True
                return [b"last"]
            case b"quiet" | b"nothing" | b"stay":
                self.silence_timeout = 0.1 if content == b"quiet" else self.silence_timeout
                self.stays_open = content == b"stay"
                return []
            case b"twice":
                return [b"one", b"two"]
        return [content]

    def resume(self):
        self.resumed += 1
        return [b"settled"]

    def on_silence(self):
        self.silence_timeout = None
        return [b"you are silent"]

    def half_close(self):
        self.done = not self.stays_open
        return [b"goodbye"] if self.stays_open else []

    def unreadable(self, error):
        self.problems.append(str(error))

    def end_early(self, status: Status):
        self.given_way.append(status)
        return [b"given way"]

    def close(self):
        self.closed += 1


@dataclass
class Client:
    """A client of a server that echoes. `sent` reads what the connection has written since the last time."""

    limits: Limits = field(default_factory=Limits)
    greet: bool = True
    methods: dict | None = None
    capacity: BufferedBytes = field(default_factory=lambda: BufferedBytes("bytes", 2**62))

    def __post_init__(self) -> None:
        self.now = 1000.0
        self.calls: list[Echo] = []
        self.held: list[Hold] = []
        self.timers: list[Timer] = []
        self.flushes = 0
        self.encoder, self.decoder = Encoder(), Decoder()
        self.next_id = 1
        methods = {ECHO: self._open} if self.methods is None else self.methods
        shared = {"warnings": RateLimitedLog(), "held": self.capacity}
        self.connection = Connection(methods, self.limits, self, "ipv4:192.0.2.1:1234", self.now, **shared)
        if self.greet:
            self.send(frames.PREFACE, frames.settings_frame({}), frames.frame(frames.SETTINGS, frames.ACK, 0))
            self.sent()

    # the host of the connection

    def hold(self, stream_id: int, waiting: Waiting) -> Callable[[], None]:
        self.held.append(Hold(stream_id))
        return self.held[-1].cancel

    def after(self, seconds: float, act: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now + seconds, act))
        return self.timers[-1]

    def flush(self) -> None:
        self.flushes += 1

    def _open(self, outlet) -> Echo:
        self.calls.append(Echo(outlet))
        return self.calls[-1]

    # the client

    def send(self, *data: bytes) -> None:
        self.connection.receive(b"".join(data), self.now)

    def sent(self) -> list[Frame]:
        data = b"".join(self.connection.out)
        self.connection.out.clear()
        return parse(data)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for timer in list(self.timers):
            if timer.at <= self.now:
                self.timers.remove(timer)
                if not timer.cancelled:
                    timer.act()

    def block(self, *fields: tuple[str, str], head=HEAD) -> bytes:
        replaced = dict(fields)
        kept = [(name, value) for name, value in head if name not in replaced]
        fields = sorted([*kept, *fields], key=lambda item: not item[0].startswith(":"))
        return self.encoder.encode(fields, huffman=False)

    def headers(self, stream_id: int, *fields: tuple[str, str], end: bool = False) -> bytes:
        flags = frames.END_HEADERS | (frames.END_STREAM if end else 0)
        return frames.frame(frames.HEADERS, flags, stream_id, self.block(*fields))

    def open(self, *fields: tuple[str, str], end: bool = False) -> int:
        """Open a stream and return its number."""
        stream_id, self.next_id = self.next_id, self.next_id + 2
        self.send(self.headers(stream_id, *fields, end=end))
        return stream_id

    def say(self, stream_id: int, content: bytes, *, end: bool = False) -> None:
        """Send one message."""
        self.send(data(stream_id, message(content), end=end))

    def ask(self, stream_id: int, content: bytes, *, end: bool = False) -> tuple[list[bytes], dict[str, str] | None]:
        """Send one message; return the messages that came on its stream, and its trailers."""
        self.say(stream_id, content, end=end)
        return self.answers(stream_id)

    def fields(self, frame: Frame) -> dict[str, str]:
        return dict(self.decoder.decode(frame.payload))

    def answers(self, stream_id: int) -> tuple[list[bytes], dict[str, str] | None]:
        """Return the messages that came on a stream, and its trailers."""
        content, trailers = b"", None
        for frame in self.sent():
            if frame.kind == frames.HEADERS:
                fields = self.fields(frame)
                if frame.end_stream and frame.stream_id == stream_id:
                    trailers = fields
            elif frame.kind == frames.DATA and frame.stream_id == stream_id:
                content += frame.payload
        return messages(content), trailers


def goaway(sent: list[Frame]) -> Frame:
    """Return the last frame, which must be GOAWAY."""
    assert sent[-1].kind == frames.GOAWAY
    return sent[-1]
