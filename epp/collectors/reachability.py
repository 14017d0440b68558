"""Whether one endpoint can be reached, judged by how its own port answers."""

from epp.datastore import Datastore
from epp.framework.endpoint import Endpoint

_SILENCES = 3


class Reachability:
    """A refusal counts at once, silence when it lasts; any answer ends both."""

    __slots__ = ("_endpoint", "_lost", "_silences", "_store")

    def __init__(self, store: Datastore, endpoint: Endpoint) -> None:
        self._store = store
        self._endpoint = endpoint
        self._silences = 0
        self._lost = False

    @property
    def lost(self) -> bool:
        """Whether the endpoint cannot be reached."""
        return self._lost

    def answered(self) -> None:
        """Take note of an answer, good or bad."""
        self._silences = 0
        self._lost = False
        self._store.mark(self._endpoint, reachable=True)

    def missed(self, *, refused: bool) -> None:
        """Take note of a refusal, or of no answer in time."""
        self._silences += 1
        self._lost = self._lost or refused or self._silences >= _SILENCES
        self._store.mark(self._endpoint, reachable=not self._lost)
