"""A request on its way: where it goes, and the ledger entry that is closed exactly once, however it ends."""

from enum import StrEnum
from typing import TYPE_CHECKING

from epp.datastore import Ticket
from epp.framework.request import Request
from epp.framework.result import SchedulingResult

if TYPE_CHECKING:
    from epp.director.director import DirectorObserver


class Cause(StrEnum):
    """How a routed request ended."""

    NATURAL = "natural"
    """The response came to its end."""
    CLIENT_DISCONNECT = "client-disconnect"
    """The gateway closed the exchange before that."""
    ERROR = "error"
    """The exchange broke, or this program did."""


class Routing:
    """Told by the wire what happens; every verb after `complete` does nothing."""

    __slots__ = ("_completed", "_observer", "_ticket", "first_byte_at", "request", "response_bytes", "result", "status")

    def __init__(
        self, request: Request, result: SchedulingResult, ticket: Ticket, observer: "DirectorObserver"
    ) -> None:
        self.request = request
        self.result = result
        self.status = 0
        """HTTP status of the response; 0 before it came."""
        self.response_bytes = 0
        self.first_byte_at: float | None = None
        """Seconds on the clock."""
        self._ticket = ticket
        self._observer = observer
        self._completed = False

    @property
    def destination(self) -> str:
        """Value of the destination header: `ip:port`, then fallbacks in order, comma-separated."""
        return ",".join(endpoint.hostport for endpoint in self.result.targets)

    def response_started(self, status: int) -> None:
        """Take note of the response's status."""
        self.status = status

    def response_piece(self, size_bytes: int, now: float) -> None:
        """Take note of a piece of the response body: the first one shows that the prompt has been computed."""
        self.response_bytes += size_bytes
        if size_bytes and self.first_byte_at is None:
            self.first_byte_at = now
            self._ticket.first_token()

    def complete(self, cause: Cause) -> None:
        """Give the endpoint's credit back; only the first call counts."""
        if self._completed:
            return
        self._completed = True
        self._ticket.close()
        self._observer.completed(self, cause)
