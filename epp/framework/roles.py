# SPDX-License-Identifier: Apache-2.0
"""Roles of plugins that process requests: one abstract class each, in the order of the plugin reference."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, TypeAlias

import numpy as np
from typing_extensions import TypeVar

from epp.framework.arrays import Floats, Mask, Positions, ResultError, as_mask, as_positions, as_scores
from epp.framework.candidates import Candidates
from epp.framework.headers import DESTINATION_NAMESPACE
from epp.framework.plugin import OnError, P, Parameters, Plugin, Role, Stage
from epp.framework.request import Headers, Request, RequestBody, Response
from epp.framework.result import Destination, DropCause, ProfileResult, SchedulingResult

__all__ = [
    "Admitter",
    "Aggregator",
    "Category",
    "Decider",
    "Draw",
    "EndpointObserver",
    "Filter",
    "FilterParameters",
    "Metadata",
    "MetadataValue",
    "Parser",
    "Picker",
    "PreRequest",
    "Producer",
    "ProfilePicker",
    "RequestHeaders",
    "ResponseHeaders",
    "ResponseReporter",
    "ResponseTiming",
    "Scorer",
    "Screener",
]


class FilterParameters(Parameters, frozen=True):
    """Parameters of every filter."""

    fallback_on_empty: bool = False
    """Skip the filter if it would drop all candidates, instead of failing its profile."""


FP = TypeVar("FP", bound=FilterParameters, default=FilterParameters)


class Filter(Plugin[FP], role=Role(title="Filters", stage=Stage.CYCLE, on_error=OnError.FAIL, may_refuse=True)):
    """Keeps the candidates that may serve the request."""

    parameters_type: ClassVar[type[Parameters]] = FilterParameters
    may_empty: bool = True
    """Whether the filter can drop all candidates."""
    drops: DropCause = DropCause.UNSTATED
    """Cause of drops, which determines the refusal of a request without remaining candidates."""
    drop_means: str = ""
    """Clause for a dropped endpoint, after its name: `has too long a queue`."""
    keeps_all: bool = False
    """Whether the filter drops no candidates with its parameters, so that profiles omit it."""

    @abstractmethod
    def filter(self, request: Request, candidates: Candidates) -> Mask:
        """Return true for each candidate to keep."""

    def kept_by_cause(self, request: Request, candidates: Candidates) -> Mapping[DropCause, Mask]:
        """Return the candidates to keep for each cause alone; called if no candidate of a profile remains."""
        return {self.drops: self.filter(request, candidates)}

    def drop_reasons(self, request: Request, candidates: Candidates) -> Iterable[str]:
        """Return the reason for each dropped candidate, for the log of the operator; empty for no details.

        Called if the filter has dropped all candidates.
        """
        return ()

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:
        """Return the reason for each dropped candidate, in the form of `drop_means`.

        Called later, for the record of a decision, with at most a few dozen candidates; must have no side effects.
        """
        reasons = tuple(self.drop_reasons(request, dropped))
        return reasons if len(reasons) == len(dropped) else (self.drop_means,) * len(dropped)

    def _rehearse(self, request: Request, candidates: Candidates) -> None:
        as_mask(self.filter(request, candidates), len(candidates))


class Category(StrEnum):
    """Kind of endpoint that a scorer favours."""

    AFFINITY = "Affinity"
    """Endpoints that hold something the request needs."""
    DISTRIBUTION = "Distribution"
    """Endpoints with less load."""
    BALANCE = "Balance"
    """Both."""


class Scorer(Plugin[P], role=Role(title="Scorers", stage=Stage.CYCLE)):
    """Scores the candidates for the request."""

    category: ClassVar[Category] = Category.DISTRIBUTION
    default_weight: float = 1.0
    """Weight if a profile has none."""
    zero_means: str = ""
    """Clause for an endpoint with score 0, after its name: `has the longest queue`."""

    @abstractmethod
    def score(self, request: Request, candidates: Candidates) -> Floats:
        """Return one score in [0, 1] for each candidate, 1 the best.

        Other values are clamped, and NaN and infinity become 0; both are logged and counted.
        """

    def _rehearse(self, request: Request, candidates: Candidates) -> None:
        as_scores(self.score(request, candidates), len(candidates), strict=True)


Draw: TypeAlias = Callable[[], "np.random.Generator"]  # in quotes, because NumPy imports it lazily
"""Function that creates the random generator of one profile run from the seed of the request."""


class Picker(Plugin[P], role=Role(title="Pickers", stage=Stage.CYCLE, on_error=OnError.FAIL)):
    """Chooses among the scored candidates."""

    @abstractmethod
    def pick(self, request: Request, candidates: Candidates, totals: Floats, draw: Draw) -> Positions:
        """Return the chosen positions, best first; at least one."""

    def _rehearse(self, request: Request, candidates: Candidates) -> None:
        for totals in (np.zeros(len(candidates)), np.linspace(0.0, 1.0, len(candidates))):
            as_positions(self.pick(request, candidates, totals, _made_up_draw), len(candidates))


class ProfilePicker(
    Plugin[P], role=Role(title="Profile pickers", stage=Stage.PROFILE_CHOICE, on_error=OnError.FAIL, may_refuse=True)
):
    """Chooses the profiles that run next."""

    @abstractmethod
    def pick_profiles(
        self, request: Request, profiles: Sequence[str], results: Mapping[str, ProfileResult | None]
    ) -> Sequence[str]:
        """Return the profiles to run now, given the results so far; an empty sequence ends the scheduling."""

    def check_profiles(self, profiles: Sequence[str]) -> Sequence[str]:
        """Return warnings about the profiles of the configuration, given their names.

        Raises ValueError if no request could be served. Called once, after `connect` and before any request.
        """
        return ()


class Decider(Plugin[P], role=Role(title="Deciders", stage=Stage.CYCLE)):
    """Decides whether a stage of a disaggregated request runs on a separate endpoint."""

    @abstractmethod
    def decide(self, request: Request, decode: ProfileResult | None) -> bool:
        """Return true for a separate leg; `decode` is the result of the decode leg if it has run already."""

    def _rehearse(self, request: Request, candidates: Candidates) -> None:
        self.decide(request, None)


class Aggregator(
    Plugin[P],
    role=Role(
        title="Aggregators", name="ProcessProfilesResults", stage=Stage.CYCLE, on_error=OnError.FAIL, may_refuse=True
    ),
):
    """Turns the results of all profiles into one destination.

    List the headers of its destinations in `sets_headers`, in lower case: others are dropped, and `epp check` reports
    them as errors. The picker removes the listed headers from client requests.
    """

    @abstractmethod
    def aggregate(self, request: Request, results: Mapping[str, ProfileResult | None]) -> Destination | None:
        """Return the destination; None if there is no usable result."""


class Producer(Plugin[P], role=Role(title="Producers", name="DataProducer", stage=Stage.PRODUCERS, hook=True)):
    """Computes data that filters and scorers share, once for each request."""

    reads_content: bool = False
    """Whether it reads `request.content`."""
    per_candidate: bool = False
    """Whether its cost grows with the number of candidates. If so, `produce`, and `admit` of an admitter, may get only
    the candidates that a profile may keep: filters that read no data of producers run before it too."""

    @abstractmethod
    def produce(self, request: Request, candidates: Candidates) -> None:
        """Put the data on the request."""

    def _rehearse(self, request: Request, candidates: Candidates) -> None:
        self.produce(request, candidates)


class RequestHeaders(
    Plugin[P],
    role=Role(title="Request headers", name="RequestHeader", stage=Stage.REQUEST_HEADERS, hook=True, may_refuse=True),
):
    """Runs before any decision about the request; producers of data run before their readers."""

    @abstractmethod
    def request_headers(self, request: Request) -> None:
        """Set fields or data of the request from its headers; raise a RequestError to refuse the request."""


class Screener(
    Plugin[P],
    role=Role(title="Screeners", stage=Stage.REQUEST_HEADERS, hook=True, on_error=OnError.FAIL, may_refuse=True),
):
    """Excludes endpoints in all profiles of a request, such as the endpoints of another rollout."""

    @abstractmethod
    def screen(self, request: Request, candidates: Candidates) -> Mask:
        """Return true for each candidate to keep.

        Every screener sees all candidates; a candidate remains if all screeners keep it. A request without
        candidates is refused with 503.
        """

    def mask(self, request: Request, candidates: Candidates) -> Mask:
        """Return the checked result of `screen`; raises ResultError."""
        return as_mask(self.screen(request, candidates), len(candidates))

    def _rehearse(self, request: Request, candidates: Candidates) -> None:
        self.mask(request, candidates)


class Admitter(
    Plugin[P], role=Role(title="Admission", name="Admission", stage=Stage.ADMISSION, hook=True, may_refuse=True)
):
    """Refuses or delays a request before it is scheduled."""

    @abstractmethod
    def admit(self, request: Request, candidates: Candidates) -> Awaitable[None] | None:
        """Return None to admit the request, or raise a RequestError to refuse it with this status and message.

        To delay the request, return an awaitable: when it ends, the request is scheduled on a new snapshot, or refused
        if it raises a RequestError. It is cancelled if the client disconnects.
        """

    def _rehearse(self, request: Request, candidates: Candidates) -> None:
        hold = self.admit(request, candidates)
        if isinstance(hold, Coroutine):
            hold.close()


class PreRequest(
    Plugin[P],
    role=Role(
        title="Before the request leaves", stage=Stage.PRE_REQUEST, hook=True, on_error=OnError.FAIL, may_refuse=True
    ),
):
    """Processes the destination before the request is sent, and may add headers for the endpoint."""

    @abstractmethod
    def pre_request(self, request: Request, result: SchedulingResult) -> Mapping[str, str] | None:
        """Record the destination; return None, or request headers to add, which `sets_headers` must list."""

    def added_headers(self, request: Request, result: SchedulingResult) -> Mapping[str, str]:
        """Return the checked result of `pre_request`; raises ResultError."""
        added = self.pre_request(request, result) or {}
        if undeclared := added.keys() - self.sets_headers:
            raise ResultError(f"returned headers {sorted(undeclared)}, which are not in its `sets_headers`")
        return added

    def request_failed(self, request: Request, result: SchedulingResult) -> None:
        """Undo the record, because the request failed at the endpoint before its first token."""


class ResponseHeaders(
    Plugin[P], role=Role(title="Response headers", name="ResponseReceived", stage=Stage.RESPONSE_HEADERS, hook=True)
):
    """Processes the headers of a response, and may add headers."""

    @abstractmethod
    def response_headers(self, request: Request, response: Response) -> Mapping[str, str]:
        """Return headers to add for the client, in lower case."""


class ResponseTiming(
    Plugin[P], role=Role(title="Response times", name="ResponseStreaming", stage=Stage.RESPONSE_BODY, hook=True)
):
    """Measures the response times of endpoints."""

    reads_response_body: bool = True
    """Whether gateways are asked to send the response body, which these times require."""
    only_streams: bool = False
    """Whether gateways are asked to send the body of event streams only."""

    @abstractmethod
    def first_token(self, request: Request, response: Response, seconds: float) -> None:
        """Record the time from the end of the request to the first byte of the response body.

        It is the time to the first token only if the response is streamed (`request.body.streaming`).
        """

    def ended(self, request: Request, response: Response, seconds: float) -> None:
        """Record the time from the first byte to the regular end of the response."""

    def interrupted(self, request: Request, response: Response) -> None:
        """Record a request that ended without `ended`: the client disconnected, or the response was incomplete."""


MetadataValue: TypeAlias = str | float | bool
Metadata: TypeAlias = Mapping[str, Mapping[str, MetadataValue]]
"""Dynamic metadata of a request in the gateway: values by namespace and key."""


class ResponseReporter(
    Plugin[P], role=Role(title="Response reports", name="ResponseComplete", stage=Stage.RESPONSE_END, hook=True)
):
    """Sends dynamic metadata about a finished response to the gateway, for its access log or rate limits."""

    reads_response_body: bool = True
    """Whether gateways are asked to send the response body, for its token counts or its end."""
    namespaces: tuple[str, ...] = (DESTINATION_NAMESPACE,)
    """Namespaces of the metadata; a gateway accepts only those in its configuration."""

    @abstractmethod
    def report(self, request: Request, response: Response) -> Metadata:
        """Return the metadata, which are sent with the last part of the body."""


class EndpointObserver(Plugin[P], role=Role(title="Endpoint observers")):
    """Keeps state by slot."""

    @abstractmethod
    def slots_removed(self, slots: Sequence[int]) -> None:
        """Drop the state of these slots, which may be reused for other endpoints."""


class Parser(Plugin[P], role=Role(title="Parsers")):
    """Parses request bodies of one API, or of several related APIs."""

    names_model: ClassVar[bool] = True
    """Whether a body without a model is refused."""
    takes_others: ClassVar[bool] = False
    """Whether the parser also handles unclaimed paths, if it is the first such parser."""
    needs_http2: ClassVar[bool] = False
    """Whether the API uses gRPC, so that a pool must have the `appProtocol` `kubernetes.io/h2c`."""

    @property
    def propagates_priority(self) -> bool:
        """Whether the priority of each request is written into its body, for the queue of the engine."""
        return False

    @property
    @abstractmethod
    def suffixes(self) -> tuple[str, ...]:
        """Claimed paths: suffixes of whole segments, or a whole path that starts with a slash.

        A parser without claims handles all unclaimed paths.
        """

    @abstractmethod
    def parse(self, suffix: str, headers: Headers, body: bytes) -> RequestBody:
        """Return the fields that routing needs; raises MalformedBodyError with a message for the client.

        `suffix` is the matching claim, or empty for an unclaimed path. A parser blocks all other requests: refuse a
        body that would take more than 25 ms.
        """


def _made_up_draw() -> "np.random.Generator":
    return np.random.default_rng()  # named here alone: to name it imports a module of megabytes


@dataclass(frozen=True, slots=True)
class ShadowLimits:
    """Limits of shadow profiles."""

    sample_rate: float
    """Share of requests, 0..1."""
    max_queue: int
    """Maximum number of requests that wait for shadow profiles; each keeps a snapshot in memory."""
    seconds: float
    """Time limit for one profile and one request."""


class Shadowing(Plugin[P], role=Role(title="Shadow profiles")):
    """Names profiles that run after a decision on the same endpoints, only to compare their picks with the decision."""

    @property
    @abstractmethod
    def shadow_profiles(self) -> Sequence[str]:
        """Names of profiles in the same configuration."""

    @property
    @abstractmethod
    def limits(self) -> ShadowLimits:
        """Limits for all shadow profiles together."""
