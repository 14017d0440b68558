"""What a plugin author implements around the scheduling of a request: before it, after it, and on its response."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from epp.framework.candidates import Candidates
from epp.framework.headers import DESTINATION_NAMESPACE
from epp.framework.plugins import P, Plugin
from epp.framework.request import Request
from epp.framework.response import Response
from epp.framework.result import SchedulingResult

MetadataValue: TypeAlias = str | float | bool
Metadata: TypeAlias = Mapping[str, Mapping[str, MetadataValue]]
"""Values by namespace and key, as gateways keep them beside a request."""


class RequestHeaders(Plugin[P]):
    """Runs first, before anything is decided about the request."""

    @abstractmethod
    def request_headers(self, request: Request) -> None:
        """Put on the request what its headers say."""


class Producer(Plugin[P]):
    """Computes, once for each request, data that filters and scorers share."""

    @abstractmethod
    def produce(self, request: Request, candidates: Candidates) -> None:
        """Put the data on the request."""


class Admitter(Plugin[P]):
    """May turn a request away before it is scheduled."""

    @abstractmethod
    def admit(self, request: Request, candidates: Candidates) -> None:
        """Do nothing, or raise the RequestError that the caller is to see as the cause."""


class PreRequest(Plugin[P]):
    """Learns of the choice before the request leaves."""

    @abstractmethod
    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        """Take note of where the request goes."""


class ResponseHeaders(Plugin[P]):
    """Sees the beginning of a response and may add to its headers."""

    @abstractmethod
    def response_headers(self, request: Request, response: Response) -> Mapping[str, str]:
        """Return headers for the client, lower-case; none for none."""


class ResponseTiming(Plugin[P]):
    """Learns how long endpoints take."""

    @abstractmethod
    def first_token(self, request: Request, response: Response, seconds: float) -> None:
        """Take note of the first byte of a response's body, so many seconds after the whole request was in.

        Only of a streamed response (`request.body.streaming`) is that the time to the first token.
        """

    def ended(self, request: Request, response: Response, seconds: float) -> None:
        """Take note of the natural end of a response, so many seconds after its first byte."""


class ResponseReporter(Plugin[P]):
    """Tells the gateway something about a response once it is over: for its access log, or for rate limits."""

    namespaces: tuple[str, ...] = (DESTINATION_NAMESPACE,)
    """Those it writes to: a gateway takes only what it is told to take."""

    @abstractmethod
    def report(self, request: Request, response: Response) -> Metadata:
        """Return dynamic metadata; none for none. The gateway gets it with the last piece of the body."""


class EndpointObserver(Plugin[P]):
    """Keeps state by slot and must forget with the endpoint."""

    @abstractmethod
    def slots_removed(self, slots: Sequence[int]) -> None:
        """Forget these slots: other endpoints may take them."""
