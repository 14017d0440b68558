# SPDX-License-Identifier: Apache-2.0
"""The interface of services: a call for each stream, driven by synchronous callbacks."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from epp.extproc.http2.capacity import Account
from epp.extproc.http2.status import RpcError, Status


class PendingAnswer(Protocol):
    """An answer that is not known yet."""

    async def settle(self) -> None:
        """Wait until it is."""


Answers: TypeAlias = Sequence[bytes | PendingAnswer]
"""Serialised messages, in order; the last may be one to wait for, after which `Call.resume` has the others."""


class Call(Protocol):
    """The server's side of one call.

    Callbacks come one at a time, and never after `close`. Each may raise RpcError to end the call with that status; any
    other exception ends it with INTERNAL.
    """

    @property
    def done(self) -> bool:
        """Whether the call ends with OK once its answers so far are sent."""

    @property
    def silence_timeout(self) -> float | None:
        """Seconds to wait for the next message before `on_silence`; None for no limit."""

    def receive(self, message: bytes) -> Answers:
        """Return the answers that are due after a message."""

    def resume(self) -> Answers:
        """Return the answers that are due now that the one waited for is settled."""

    def on_silence(self) -> Answers:
        """Return the answers that are due after a silence."""

    def half_close(self) -> Answers:
        """Return the answers that are due as the client sends no more."""

    @property
    def awaits_more(self) -> bool:
        """Whether the client is to send more soon."""

    def give_way(self, status: Status, /) -> Answers:
        """Return the last answers of a call that is to end, after which it does.

        It is RESOURCE_EXHAUSTED as too much is held for all calls, or DEADLINE_EXCEEDED as the client sends no more.
        """

    def unreadable(self, error: RpcError) -> None:
        """Take note that a message cannot be read, which ends the call with this status; raises nothing."""

    def close(self) -> None:
        """Release everything: the call has ended, or the client is gone. Called exactly once."""


class Outlet(Protocol):
    """The way back to the client of one call, for messages that no message of the client's prompts."""

    @property
    def peer(self) -> str:
        """The client's address, as gRPC writes it: `ipv4:1.2.3.4:567`, `ipv6:[::1]:567`, or `unix:`."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the client sent of the request headers that `Limits.metadata_names` has."""

    @property
    def account(self) -> Account:
        """What the call makes this program hold is counted here."""

    def send(self, message: bytes) -> None:
        """Send one more message; does nothing once the call has ended."""

    def finish(self) -> None:
        """End the call with OK; does nothing once it has ended."""


Methods: TypeAlias = Mapping[str, Callable[[Outlet], Call]]
"""`/package.Service/Method` to what opens a call."""


class Cancellable(Protocol):
    """Work under way."""

    def cancel(self) -> object:
        """Give it up."""


class Host(Protocol):
    """What a connection needs of the world around it."""

    def hold(self, stream_id: int, waiting: PendingAnswer) -> Cancellable:
        """Settle an answer, then call `Connection.settled`, after a cancellation too."""

    def after(self, seconds: float, act: Callable[[], None]) -> Cancellable:
        """Call a function of the connection later, then flush."""

    def flush(self) -> None:
        """Send what the connection has to send, soon: nothing was received."""


def peer_of(transport: asyncio.BaseTransport) -> str:
    """Return it as gRPC writes it: `ipv4:1.2.3.4:567`, `ipv6:[::1]:567`, or `unix:`."""
    name = transport.get_extra_info("peername")
    match name:
        case (str(host), int(port)):
            return f"ipv4:{host}:{port}"
        case (str(host), int(port), *_):
            return f"ipv6:[{host}]:{port}"
    return "unix:"
