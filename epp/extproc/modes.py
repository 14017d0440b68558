# SPDX-License-Identifier: Apache-2.0
"""Body modes of a gateway, the traits of one that does not state them, and the mode that the picker asks for."""

from enum import IntEnum, StrEnum
from typing import NamedTuple

from epp.extproc.wire import ProcessingRequest


class BodyMode(IntEnum):
    """Envoy's own names and numbers."""

    NONE = 0
    """The body is not shown."""
    STREAMED = 1
    """Piece by piece, each one answered; the headers are forwarded before the first piece."""
    BUFFERED = 2
    """Whole, while the headers wait for the answer."""
    BUFFERED_PARTIAL = 3
    """Like BUFFERED up to the gateway's buffer limit; the rest is not shown."""
    FULL_DUPLEX_STREAMED = 4
    """Piece by piece, answered at any time; the headers wait for their own answer."""


class Modes(NamedTuple):
    """Modes stated in the first message of a stream; None where not stated."""

    request: BodyMode | None = None
    response: BodyMode | None = None


_MODES = tuple(BodyMode)
_TELLING_EXCHANGES = 10


class GatewayTraits:
    """Observed behaviour of one gateway, shared by its streams."""

    __slots__ = ("_exchanges_without_headers", "host", "shows_response_headers", "streams_body_unprompted")

    def __init__(self, host: str = "") -> None:
        self.host = host
        """In gRPC's format: `ipv4:10.0.0.1`."""
        self._exchanges_without_headers: int | None = 0  # None once the behaviour is known
        self.streams_body_unprompted = False
        """Whether it sent a body before an answer to the headers: such a gateway never waits for that answer."""
        self.shows_response_headers = False
        """Whether it has shown the headers of any response; before, responses may pass unseen."""

    def end_of_exchange(self, *, headers_shown: bool) -> bool:
        """Count an exchange that ended; return True once, after ten exchanges without response headers.

        A single exchange is not enough: its client may have left before the response.
        """
        if self._exchanges_without_headers is None:
            return False
        if headers_shown:
            self._exchanges_without_headers = None
            return False
        self._exchanges_without_headers += 1
        if self._exchanges_without_headers < _TELLING_EXCHANGES:
            return False
        self._exchanges_without_headers = None
        return True


class UnknownModeError(ValueError):
    """An unsupported body mode."""


_NO_MODES = Modes()


def read_modes(message: ProcessingRequest) -> Modes:
    """Return the modes of a stream from its first message; raises UnknownModeError."""
    if not message.HasField("protocol_config"):
        return _NO_MODES
    said = message.protocol_config
    return Modes(_mode(said.request_body_mode, "request"), _mode(said.response_body_mode, "response"))


def _mode(number: int, side: str) -> BodyMode:
    if 0 <= number < len(_MODES):
        return _MODES[number]
    raise UnknownModeError(
        f"{side}_body_mode {number} is not supported: set one of {', '.join(BodyMode.__members__)} in processing_mode "
        "of the gateway's ext_proc filter"
    )


class ResponseUsage(StrEnum):
    """Whether tokens are counted in responses, for metrics and log lines."""

    AUTO = "auto"
    """If the gateway shows their bodies."""
    ALWAYS = "always"
    """In all responses; the gateway is asked to show their bodies."""
    NEVER = "never"
    """In no response; the gateway is asked to hide bodies without another reader."""


IN_PLACE = (BodyMode.STREAMED, BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)
"""Modes in which each piece of a response gets one answer, which may replace it."""
_FIXED = (None, BodyMode.FULL_DUPLEX_STREAMED)
"""With these modes, no other mode can be requested."""


def response_mode(modes: Modes, *, needed: bool, read: bool) -> BodyMode | None:
    """Return the response mode to request from the gateway, None for no change: show only bodies that are read."""
    if modes.request in _FIXED or modes.response in _FIXED:
        return None
    if modes.response is BodyMode.NONE:
        return BodyMode.STREAMED if needed else None
    return None if read else BodyMode.NONE
