# SPDX-License-Identifier: Apache-2.0
"""Ways in which a gateway breaks the protocol: each ends its stream, and is counted and logged."""

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

from epp.extproc.http2.rate_limited_log import RateLimitedLog


class Fault(StrEnum):
    """Kinds of protocol errors."""

    UNDECODABLE = "undecodable"
    """A message that is no ProcessingRequest."""
    OUT_OF_ORDER = "out-of-order"
    """A part of an exchange that may not come now."""
    UNKNOWN_PART = "unknown-part"
    """A message that is no part of an exchange."""
    UNKNOWN_MODE = "unknown-mode"
    """A body mode that is not supported."""
    HEADERS_NOT_SHOWN = "headers-not-shown"
    """A request whose headers left before a destination could be named."""
    TOO_LARGE = "too-large"
    """A message of more bytes than are accepted."""
    UNREADABLE = "unreadable"
    """Bytes that are no gRPC message, or one that is cut short, or compressed other than by gzip and deflate."""


class ProtocolError(Exception):
    """The gateway sent a message that the protocol does not allow, or that this picker cannot answer."""

    def __init__(self, problem: str, fault: Fault = Fault.OUT_OF_ORDER) -> None:
        """Take a problem in words, with nothing of what was in the message."""
        super().__init__(problem)
        self.fault = fault


class Faults:
    """Counts protocol errors, and logs some of many."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter({fault.value: 0 for fault in Fault})
        self._complaints = RateLimitedLog()

    @property
    def counts(self) -> Mapping[str, int]:
        """Errors by kind, those of 0 included; may be read in any thread."""
        return self._counts

    def note(self, error: ProtocolError, peer: str, now: float) -> None:
        """Count an error, and log that it ended the stream of a gateway; of many of one gateway, some."""
        self._counts[error.fault.value] += 1
        self._complaints.warn(
            "stream closed: protocol error", now, peer=peer, problem=str(error), fault=error.fault.value
        )
