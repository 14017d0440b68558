# SPDX-License-Identifier: Apache-2.0
"""The interface of services: a call for each stream, driven by callbacks; its status and header blocks."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias
from urllib.parse import quote

if TYPE_CHECKING:
    from epp.extproc.http2.calls import Calls
    from epp.extproc.http2.streams import Stream


_STATUS_200: Final = b"\x88"
_CONTENT_TYPE: Final = 31  # index of the name in the static table
_MOST_MESSAGE_BYTES = 1024
_PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F) if code != ord("%"))


class ErrorCode(IntEnum):
    """RFC 9113, section 7."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class GoawayError(Exception):
    """The connection ends with GOAWAY."""

    def __init__(self, code: ErrorCode, problem: str) -> None:
        super().__init__(problem)
        self.code = code


class ResetError(Exception):
    """One stream ends with RST_STREAM."""

    def __init__(self, stream_id: int, code: ErrorCode, problem: str) -> None:
        super().__init__(problem)
        self.stream_id = stream_id
        self.code = code


class Status(IntEnum):
    """Status codes of gRPC that this server sends."""

    OK = 0
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class RpcError(Exception):
    """Ends a call with a status other than OK."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


def field(name: bytes, value: bytes) -> bytes:
    """Return a literal header field without indexing and without Huffman coding, which is cheaper to decode."""
    return b"\x00" + _string(name) + _string(value)


def _indexed_name(index: int, value: bytes) -> bytes:
    return _integer(index, 4, 0x00) + _string(value)


def _string(text: bytes) -> bytes:
    return _integer(len(text), 7, 0x00) + text


def _integer(number: int, bits: int, first: int) -> bytes:
    most = (1 << bits) - 1
    if number < most:
        return bytes((first | number,))
    encoded = [first | most]
    number -= most
    while number >= 0x80:  # noqa: PLR2004  seven bits a byte
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*encoded, number))


HEADERS_BLOCK: Final = _STATUS_200 + _indexed_name(_CONTENT_TYPE, b"application/grpc")
"""The response headers of every call."""
OK_TRAILERS: Final = field(b"grpc-status", b"0")
_ACCEPTED_ENCODING: Final = field(b"grpc-accept-encoding", b"identity,deflate,gzip")


def trailers_block(status: Status, message: str = "") -> bytes:
    """Return the trailers that end a call; a long message is truncated."""
    if status is Status.OK and not message:
        return OK_TRAILERS
    block = field(b"grpc-status", b"%d" % status)
    if message:
        cut = message.encode("utf-8", "replace")[:_MOST_MESSAGE_BYTES].decode("utf-8", "ignore")
        block += field(b"grpc-message", quote(cut, safe=_PRINTABLE).encode("ascii"))
    if status is Status.UNIMPLEMENTED:
        block += _ACCEPTED_ENCODING
    return block


def not_grpc(method: str, content_type: str) -> tuple[bytes, bytes]:
    """Return headers and body of the answer to a request that is not gRPC."""
    if method == "POST":
        status, problem = b"415", f"content-type must be application/grpc, not {content_type[:80]!r}"
    else:
        status, problem = b"405", f"the method must be POST, not {method[:20]!r}"
    body = f"This is a gRPC server: {problem}.\n".encode()
    block = _indexed_name(8, status) + _indexed_name(_CONTENT_TYPE, b"text/plain; charset=utf-8")
    return block + _indexed_name(28, b"%d" % len(body)), body


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


class Timer(Protocol):
    def cancel(self) -> object: ...


class Host(Protocol):
    """I/O and timers for a connection."""

    def hold(self, stream_id: int, waiting: PendingAnswer) -> Callable[[], object]:
        """Settle an answer, then call `Calls.settled`; the returned function cancels this, and `settled` follows."""

    def after(self, seconds: float, act: Callable[[], None]) -> Timer:
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
