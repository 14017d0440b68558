# SPDX-License-Identifier: Apache-2.0
"""What is held against one endpoint."""

from dataclasses import dataclass
from enum import Enum, auto

from epp.framework.endpoint import Endpoint
from epp.outliers.failures import Failure
from epp.outliers.settings import OutlierSettings


class State(Enum):
    """Whether requests may go there."""

    IN = auto()
    SUSPECTED = auto()
    """A connection failed: its port is being asked."""
    EJECTED = auto()
    ON_TRIAL = auto()
    """The time of its ejection is over: one request may go there."""
    TRIED = auto()
    """That request has gone there."""

    @property
    def is_ejected(self) -> bool:
        """Whether it counts as one of those that are ejected."""
        return self in _OUT

    @property
    def is_avoided(self) -> bool:
        """Whether no request goes there while there are others."""
        return self in _AVOIDED


_OUT = frozenset({State.EJECTED, State.ON_TRIAL, State.TRIED})
_AVOIDED = frozenset({State.SUSPECTED, State.EJECTED, State.TRIED})


@dataclass(slots=True)
class Record:
    """Failures in a row, and what followed from them; all times are seconds on the clock."""

    endpoint: Endpoint
    failed_at: float
    state: State = State.IN
    until: float = 0.0
    """End of the present state, unless something ends it before."""
    seconds: float = 0.0
    """Time of the present state."""
    has_failed: bool = False
    """Whether a request is the reason for suspicion, as opposed to a connection of our own that ended."""
    asked: int = 0
    """Hash of what the last failed request asked."""
    connections: int = 0
    """Failed connections in a row, each although the port answered afterwards; those of 502, 503 and 504 too."""
    errors: int = 0
    """Responses with 500 or more in a row."""
    successes_before: int = 0
    """Successes of the whole pool before the first of these."""
    ejections: int = 0
    """Ejections in the past; one is forgotten in each base ejection time."""
    cause: Failure = Failure.CONNECTION
    count: int = 0
    """Cause of the last ejection: failures of a kind, in a row."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing is held against the endpoint."""
        return self.state is State.IN and not (self.connections or self.errors or self.ejections)

    def last(self, now: float, seconds: float) -> None:
        """Let the present state last so long from now."""
        self.until, self.seconds = now + seconds, seconds

    def acquit(self) -> None:
        """Forget the failures in a row: it has answered a request."""
        self.connections = self.errors = 0

    def age(self, now: float, settings: OutlierSettings) -> None:
        """Let what is long ago count for less; a clock that was set back makes no time longer than it was to be."""
        self.failed_at = min(self.failed_at, now)
        if self.state is not State.IN:
            self.until = min(self.until, now + self.seconds)
            return
        base = settings.base_ejection_seconds
        past = int((now - self.failed_at) / base)
        if past:
            self.acquit()
            self.ejections = max(self.ejections - past, 0)
            self.failed_at += past * base
