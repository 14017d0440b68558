"""A request on its way: where it goes, and the ledger entry that is closed exactly once, however it ends."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from epp.bodies import UsageReader
from epp.datastore import Ticket
from epp.framework.endpoint import Endpoint
from epp.framework.hooks import Metadata, MetadataValue, ResponseHeaders, ResponseReporter, ResponseTiming
from epp.framework.request import Headers, Request
from epp.framework.response import Response, Usage
from epp.framework.result import SchedulingResult

if TYPE_CHECKING:
    from epp.director.director import DirectorObserver

SERVER_ERROR = 500


class Cause(StrEnum):
    """How a routed request ended."""

    NATURAL = "natural"
    """The response came to its end."""
    CLIENT_DISCONNECT = "client-disconnect"
    """The gateway closed the exchange before that: the client left, or the model server was lost."""
    ERROR = "error"
    """The exchange broke, or this program did."""


class Routing:
    """Told by the wire what happens; every verb after `complete` does nothing."""

    __slots__ = (
        "_adders",
        "_completed",
        "_find",
        "_legs",
        "_observer",
        "_reporters",
        "_response_headers",
        "_served_address",
        "_ticket",
        "_timers",
        "_usage",
        "control_names",
        "first_byte_at",
        "request",
        "response_bytes",
        "result",
        "served",
        "status",
    )

    def __init__(
        self,
        request: Request,
        result: SchedulingResult,
        ticket: Ticket,
        *,
        legs: Sequence[Ticket] = (),
        control_names: Sequence[str] = (),
        find: Callable[[str], tuple[int, Endpoint] | None],
        observer: "DirectorObserver",
        response_headers: Sequence[ResponseHeaders[Any]] = (),
        timers: Sequence[ResponseTiming[Any]] = (),
        reporters: Sequence[ResponseReporter[Any]] = (),
    ) -> None:
        self.request = request
        self.result = result
        self.control_names = control_names
        """Headers of the client that must not reach the endpoint."""
        self.status = 0
        """HTTP status of the response; 0 before it came."""
        self.response_bytes = 0
        self.first_byte_at: float | None = None
        """Seconds on the clock."""
        self._ticket = ticket
        self._legs = legs
        self.served: Endpoint = result.targets[0]
        """Who serves it, as far as is known."""
        self._find = find
        self._observer = observer
        self._adders = response_headers
        self._timers = timers
        self._reporters = reporters
        self._served_address = ""
        self._response_headers = Headers()
        self._usage: UsageReader | None = None
        self._completed = False

    @property
    def destination(self) -> str:
        """Value of the destination header: `ip:port`, then fallbacks in order, comma-separated."""
        return ",".join(self.result.destination)

    @property
    def _response(self) -> Response:
        return Response(self.served, self._served_address, self.status, self._response_headers, self.usage)

    @property
    def usage(self) -> Usage | None:
        """Tokens as the endpoint counted them; None where the response does not say, or not yet."""
        return None if self._usage is None else self._usage.usage

    def served_by(self, hostport: str) -> None:
        """Take note of the endpoint that the gateway really used: a fallback, perhaps."""
        self._served_address = hostport
        if hostport in self.result.destination:  # perhaps not its own address, but that of whoever passes it on
            target = self.result.targets[self.result.destination.index(hostport)]
            found = self._find(target.hostport)
        else:
            found = self._find(hostport)
        if found is not None and not self._completed:
            slot, self.served = found
            self._ticket.move(slot)

    def response_started(self, status: int, headers: Headers, *, event_stream: bool) -> dict[str, str]:
        """Take note of the response's status, headers and kind of body; return the headers that plugins add."""
        self.status = status
        self._response_headers = headers
        if not self.request.body.skip_response:
            self._usage = UsageReader(event_stream=event_stream)
        added: dict[str, str] = {}
        for plugin in self._adders:
            try:
                added.update(plugin.response_headers(self.request, self._response))
            except Exception as error:  # noqa: BLE001  the client gets the response without
                self._observer.plugin_failed(plugin.name, error)
        return added

    def report(self) -> Metadata:
        """Return what plugins have to tell the gateway of the response, now that it is over."""
        metadata: dict[str, dict[str, MetadataValue]] = {}
        for plugin in self._reporters:
            try:
                for namespace, values in plugin.report(self.request, self._response).items():
                    metadata.setdefault(namespace, {}).update(values)
            except Exception as error:  # noqa: BLE001  the gateway does without
                self._observer.plugin_failed(plugin.name, error)
        return metadata

    def response_piece(self, piece: bytes, *, last: bool, now: float) -> None:
        """Take note of a piece of the response body: the first one shows that the prompt has been computed."""
        self.response_bytes += len(piece)
        if piece and self.first_byte_at is None:
            self.first_byte_at = now
            self._first_token()
            self._tell_timers("first_token", now - self.request.received_at)
        if self._usage is not None:
            self._usage.feed(piece, last=last)
        if last and self.first_byte_at is not None:
            self._tell_timers("ended", now - self.first_byte_at)

    def response_unseen(self, now: float) -> None:
        """Take note that the body will not be shown: its headers are as good as its first byte."""
        self.first_byte_at = now
        self._first_token()

    def _tell_timers(self, verb: Literal["first_token", "ended"], seconds: float) -> None:
        for plugin in self._timers:
            try:
                getattr(plugin, verb)(self.request, self._response, seconds)
            except Exception as error:  # noqa: BLE001  what it would have learned is lost, the response is not
                self._observer.plugin_failed(plugin.name, error)

    def _first_token(self) -> None:
        """Give back what the first token shows to be done: the prompt, and all that other legs were for."""
        self._ticket.first_token()
        for leg in self._legs:
            leg.close()

    def complete(self, cause: Cause) -> None:
        """Give the endpoint's credit back; only the first call counts."""
        if self._completed:
            return
        self._completed = True
        self._ticket.close(failed=self.status >= SERVER_ERROR)
        for leg in self._legs:
            leg.close()
        self._observer.completed(self, cause)
