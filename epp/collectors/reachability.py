"""Whether one endpoint can be reached, judged by how its own port answers."""

from epp.datastore import Datastore
from epp.framework.endpoint import Endpoint
from epp.framework.snapshot import ANSWERS, REFUSES, SILENT

_SILENCES = 3


class Reachability:
    """A refusal counts at once, silence when it lasts; any answer ends both."""

    __slots__ = ("_endpoint", "_silences", "_store", "_verdict")

    def __init__(self, store: Datastore, endpoint: Endpoint) -> None:
        self._store = store
        self._endpoint = endpoint
        self._silences = 0
        self._verdict = ANSWERS

    @property
    def lost(self) -> bool:
        """Whether the endpoint cannot be reached."""
        return self._verdict != ANSWERS

    def answered(self) -> None:
        """Take note of an answer, good or bad."""
        self._silences = 0
        self._mark(ANSWERS)

    def missed(self, *, refused: bool) -> None:
        """Take note of a refusal, or of no answer in time."""
        self._silences += 1
        if refused:
            self._mark(REFUSES)
        elif self._verdict == ANSWERS and self._silences >= _SILENCES:
            self._mark(SILENT)

    def _mark(self, verdict: float) -> None:
        self._verdict = verdict
        self._store.mark(self._endpoint, verdict)
