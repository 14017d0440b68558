# SPDX-License-Identifier: Apache-2.0
"""The interface of services: a call for each stream, driven by synchronous callbacks."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from epp.extproc.http2.status import RpcError, Status

if TYPE_CHECKING:
    from epp.extproc.http2.calls import Calls
    from epp.extproc.http2.streams import Stream


HEALTH: Final = "grpc.health.v1.Health"
"""The service of health checks."""


class PendingAnswer(Protocol):
    """An answer that is not known yet."""

    async def settle(self) -> None:
        """Wait until the answer is known."""


Answers: TypeAlias = Sequence[bytes | PendingAnswer]
"""Serialised messages, in order. The last may be pending: once it is settled, `Call.resume` returns the rest."""


class Call:
    """The server's side of one call; by default, without answers.

    Callbacks run one at a time, never after `close`. Each may raise RpcError to end the call with that status; any
    other exception ends it with INTERNAL.
    """

    __slots__ = ()

    @property
    def done(self) -> bool:
        """Whether the call ends with OK after its answers so far."""
        return False

    @property
    def silence_timeout(self) -> float | None:
        """Seconds to wait for the next message before `on_silence`; None for no limit."""
        return None

    @property
    def awaits_more(self) -> bool:
        """Whether the client must send more soon."""
        return False

    def receive(self, message: bytes) -> Answers:
        """Return the answers to a message."""
        raise NotImplementedError

    def resume(self) -> Answers:
        """Return the answers after a pending one is settled."""
        return ()

    def on_silence(self) -> Answers:
        """Return the answers after a silence of `silence_timeout`."""
        return ()

    def half_close(self) -> Answers:
        """Return the answers to the end of the client's side."""
        return ()

    def end_early(self, status: Status) -> Answers:  # noqa: ARG002
        """Return the last answers of a call that ends with `status`.

        The status is RESOURCE_EXHAUSTED without room for buffered bytes, or DEADLINE_EXCEEDED for a stalled client.
        """
        return ()

    def unreadable(self, error: RpcError) -> None:
        """Record an unreadable message, which ends the call with this status; raises nothing."""

    def close(self) -> None:
        """Release all resources of the call. Called exactly once."""


class Outlet:
    """Sends unprompted messages to the client of one call."""

    __slots__ = ("_calls", "_stream", "account", "metadata", "peer")

    def __init__(self, calls: "Calls", stream: "Stream", peer: str, metadata: Mapping[str, str]) -> None:
        self._calls = calls
        self._stream = stream
        self.account = stream.account
        """Counts the buffered bytes of the call."""
        self.peer = peer
        """The client's address, as gRPC writes it: `ipv4:1.2.3.4:567`, `ipv6:[::1]:567`, or `unix:`."""
        self.metadata = metadata
        """The request headers of the client named in `Limits.metadata_names`."""

    def send(self, message: bytes) -> None:
        """Send one more message; does nothing once the call has ended."""
        self._calls.send(self._stream, message)

    def finish(self) -> None:
        """End the call with OK; does nothing once it has ended."""
        self._calls.stop(self._stream)


Methods: TypeAlias = Mapping[str, Callable[[Outlet], Call]]
"""Functions that open a call, by `/package.Service/Method`."""


class Cancellable(Protocol):
    """A task or a timer."""

    def cancel(self) -> object:
        """Cancel it."""


class Host(Protocol):
    """I/O and timers for a connection."""

    def hold(self, stream_id: int, waiting: PendingAnswer) -> Cancellable:
        """Settle an answer, then call `Connection.settled`, also after a cancellation."""

    def after(self, seconds: float, act: Callable[[], None]) -> Cancellable:
        """Call a function of the connection later, then flush."""

    def flush(self) -> None:
        """Write the output of the connection soon; for output without input."""


def peer_of(transport: asyncio.BaseTransport) -> str:
    """Return the peer's address in gRPC's format: `ipv4:1.2.3.4:567`, `ipv6:[::1]:567`, or `unix:`."""
    name = transport.get_extra_info("peername")
    match name:
        case (str(host), int(port)):
            return f"ipv4:{host}:{port}"
        case (str(host), int(port), *_):
            return f"ipv6:[{host}]:{port}"
    return "unix:"
