"""Reachability of an endpoint, by the answers of its own port."""

from epp.datastore import Datastore
from epp.framework.endpoint import Endpoint
from epp.framework.snapshot import ANSWERS, REFUSES, SILENT

_MAX_TIMEOUTS = 3


class Reachability:
    """A refused connection counts at once, a timeout after several in a row; any answer resets both."""

    __slots__ = ("_endpoint", "_store", "_timeouts", "_verdict")

    def __init__(self, store: Datastore, endpoint: Endpoint) -> None:
        self._store = store
        self._endpoint = endpoint
        self._timeouts = 0
        self._verdict = ANSWERS

    @property
    def lost(self) -> bool:
        """Whether the endpoint is unreachable."""
        return self._verdict != ANSWERS

    def answered(self) -> None:
        """Record an answer, whatever its content."""
        self._timeouts = 0
        self._mark(ANSWERS)

    def missed(self, *, refused: bool) -> None:
        """Record a refused connection or a timeout."""
        self._timeouts += 1
        if refused:
            self._mark(REFUSES)
        elif self._verdict == ANSWERS and self._timeouts >= _MAX_TIMEOUTS:
            self._mark(SILENT)

    def _mark(self, verdict: float) -> None:
        self._verdict = verdict
        self._store.mark(self._endpoint, verdict)
