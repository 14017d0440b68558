# SPDX-License-Identifier: Apache-2.0
"""A service whose messages say what it is to do, and a connection to it without sockets or time.

A message is a letter and its content. The answer to each repeats the content, with the number of the message before it:

    e  once          n  not at all          t  three times          b  ten thousand bytes for each byte
    h  once, when it is let go (and then `t` more)                  d  once, and then the call is done
    x  by an exception                       r  by the status NOT_FOUND
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from epp.extproc.http2.connection import Connection
from epp.extproc.http2.limits import BufferedBytes, Limits, Rate, RateLimitedLog
from epp.extproc.http2.service import Outlet, PendingAnswer, RpcError, Status
from tests.support.http2.http2_peer import Peer

PATH = "/test.Echo/Echo"
SMALL = Limits(
    max_message_bytes=100_000,
    max_streams=40,
    stream_window=70_000,
    connection_window=200_000,
    empty_frames=Rate(1e9, 0),
    small_updates=Rate(1e9, 0),
    settings=Rate(1e9, 0),
    pings=Rate(1e9, 0),
    resets=Rate(1e9, 0),
    strays=Rate(1e9, 0),
    priorities=Rate(1e9, 0),
)
"""Windows and messages small enough to be exhausted, and no floods."""
REPEATED = 10_000


def answers_to(number: int, message: bytes) -> list[bytes]:
    """What a call answers in the end to its message of that number, if it ends well."""
    letter, content = message[:1], b"%d " % number + message[1:]
    match letter:
        case b"n":
            return []
        case b"t":
            return [content] * 3
        case b"b":
            return [content + bytes(REPEATED * len(message[1:]))]
        case b"h":
            return [content] * 4
        case _:
            return [content]


@dataclass(eq=False)
class LetGo:
    """What a call waits for."""

    async def settle(self) -> None:
        raise AssertionError("the connection settles nothing itself")


@dataclass(eq=False)
class EchoCall:
    outlet: Outlet
    received: list[bytes] = field(default_factory=list)
    half_closed: int = 0
    closed: int = 0
    done: bool = False
    silence_timeout: float | None = None
    _rest: list[bytes] = field(default_factory=list)

    def receive(self, message: bytes) -> Sequence[bytes | PendingAnswer]:
        self._check()
        assert not self._rest, "a message before the answers to the last"
        self.received.append(message)
        match message[:1]:
            case b"x":
                raise LookupError("as the message said")
            case b"r":
                raise RpcError(Status.NOT_FOUND, "as the message said")
            case b"d":
                self.done = True
        answers = answers_to(len(self.received), message)
        if message[:1] == b"h":
            self._rest = answers
            return [LetGo()]
        return answers

    def resume(self) -> Sequence[bytes | PendingAnswer]:
        self._check()
        rest, self._rest = self._rest, []
        return rest

    def on_silence(self) -> Sequence[bytes | PendingAnswer]:
        self._check()
        return []

    def half_close(self) -> Sequence[bytes | PendingAnswer]:
        self._check()
        assert not self.half_closed
        self.half_closed += 1
        self.done = True
        return []

    def unreadable(self, error: RpcError) -> None:
        self._check()

    def close(self) -> None:
        assert not self.closed, "closed twice"
        self.closed += 1

    def _check(self) -> None:
        assert not self.closed, "called after its close"
        assert not self.done, "called after it was done"


@dataclass(eq=False)
class Timer:
    at: float
    act: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass(eq=False)
class Hold:
    stream: int
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class EchoServer:
    """A connection, the peer at its other end, and what happens around them when a test says so."""

    def __init__(self, limits: Limits = SMALL, chosen: Mapping[int, int] | None = None, *, greet: bool = True) -> None:
        self.now = 0.0
        self.peer = Peer(chosen)
        self.calls: list[EchoCall] = []
        self.holds: list[Hold] = []
        self.timers: list[Timer] = []
        shared = {"warnings": RateLimitedLog(), "held": BufferedBytes("bytes", 2**62)}
        self.connection = Connection({PATH: self._open}, limits, self, "ipv4:10.0.0.9:1", self.now, **shared)
        if greet:
            self.feed(self.peer.greeting())

    def _open(self, outlet: Outlet) -> EchoCall:
        self.calls.append(EchoCall(outlet))
        return self.calls[-1]

    # what a connection needs

    def hold(self, stream_id: int, waiting: PendingAnswer) -> Callable[[], None]:
        assert isinstance(waiting, LetGo)
        self.holds.append(Hold(stream_id))
        return self.holds[-1].cancel

    def after(self, seconds: float, act: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now + seconds, act))
        return self.timers[-1]

    def flush(self) -> None:
        """Nothing to do: a test drains after all that it does."""

    # what a test does

    def feed(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.connection.receive(piece, self.now)
        self.drain()

    def drain(self) -> None:
        """Show the peer what the connection has to say, and send back what the rules demand, until both are silent."""
        while True:
            said = b"".join(self.connection.out)
            self.connection.out.clear()
            self.peer.receive(said)
            due = bytes(self.peer.due)
            self.peer.due.clear()
            if not due:
                return
            self.connection.receive(due, self.now)

    def let_go(self, hold: Hold) -> None:
        """Settle what a call waits for, or give it up if that was asked for."""
        self.holds.remove(hold)
        self.connection.calls.settled(hold.stream, TimeoutError("given up") if hold.cancelled else None)
        self.drain()

    def let_all_go(self) -> None:
        while self.holds:
            self.let_go(self.holds[0])

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for timer in [timer for timer in self.timers if timer.at <= self.now]:
            self.timers.remove(timer)
            if not timer.cancelled:
                timer.act()
        self.connection.check(self.now)
        self.drain()

    def lose(self) -> None:
        """Close the connection as a transport does."""
        self.close_calls()
        self.let_all_go()

    def close_calls(self) -> None:
        """Tell the connection that it has ended, and let it close its calls, some at a time."""
        self.connection.lose()
        while any(not timer.cancelled and timer.at <= self.now for timer in self.timers):
            self.pass_time(0)

    def assert_released(self) -> None:
        """Check that each call was closed, and nothing of any stream is left."""
        assert [call.closed for call in self.calls] == [1] * len(self.calls)
        assert self.connection.open_streams == 0
        assert not self.holds
        assert all(timer.cancelled for timer in self.timers)
