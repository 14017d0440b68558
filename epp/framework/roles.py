# SPDX-License-Identifier: Apache-2.0
"""Roles of plugins that take part in a request: one abstract class each, in the order of the plugin reference."""

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
    """Skip the filter where it would drop all candidates, instead of failing its profile."""


FP = TypeVar("FP", bound=FilterParameters, default=FilterParameters)


class Filter(Plugin[FP], role=Role(title="Filters", stage=Stage.CYCLE, on_error=OnError.FAIL, may_refuse=True)):
    """Keeps the candidates that may serve the request."""

    parameters_type: ClassVar[type[Parameters]] = FilterParameters
    may_empty: bool = True
    """Whether it can drop all candidates."""
    drops: DropCause = DropCause.UNSTATED
    """Why it drops candidates: that is how a request is refused for which a profile's filters leave none."""
    drop_means: str = ""
    """Clause for a dropped endpoint, after its name: `has too long a queue`."""
    keeps_all: bool = False
    """Whether it drops none with its parameters, so that profiles do without it."""

    @abstractmethod
    def filter(self, request: Request, candidates: Candidates) -> Mask:
        """Return true for each candidate to keep."""

    def kept_by_cause(self, request: Request, candidates: Candidates) -> Mapping[DropCause, Mask]:
        """Return for each cause what `filter` returns if it is the only one; called where a profile has none left."""
        return {self.drops: self.filter(request, candidates)}

    def drop_reasons(self, request: Request, candidates: Candidates) -> Iterable[str]:
        """Return the reason for each candidate that is dropped, for the operator's log; none where there is no more.

        Called where the filter has left none.
        """
        return ()

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:
        """Return the reason for each dropped candidate, in the form of `drop_means`.

        Called later, for the record of a decision, with a few dozen candidates at most; without side effects.
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
    """Weight in a profile that gives none."""
    zero_means: str = ""
    """Clause for an endpoint with score 0, after its name: `has the longest queue`."""

    @abstractmethod
    def score(self, request: Request, candidates: Candidates) -> Floats:
        """Return one score in [0, 1] for each candidate, 1 the best.

        Values outside are clamped, NaN and infinity count as 0; both are logged and counted.
        """

    def _rehearse(self, request: Request, candidates: Candidates) -> None:
        as_scores(self.score(request, candidates), len(candidates), strict=True)


Draw: TypeAlias = Callable[[], "np.random.Generator"]  # a name in quotes is imported when it is used
"""Makes the random generator of one profile run, from the seed of the request."""


class Picker(Plugin[P], role=Role(title="Pickers", stage=Stage.CYCLE, on_error=OnError.FAIL)):
    """Chooses among the scored candidates."""

    @abstractmethod
    def pick(self, request: Request, candidates: Candidates, totals: Floats, draw: Draw) -> Positions:
        """Return the positions chosen, best first; at least one."""

    def _rehearse(self, request: Request, candidates: Candidates) -> None:
        for totals in (np.zeros(len(candidates)), np.linspace(0.0, 1.0, len(candidates))):
            as_positions(self.pick(request, candidates, totals, _made_up_draw), len(candidates))


class ProfilePicker(
    Plugin[P], role=Role(title="Profile pickers", stage=Stage.PROFILE_CHOICE, on_error=OnError.FAIL, may_refuse=True)
):
    """Chooses which profiles run next."""

    @abstractmethod
    def pick_profiles(
        self, request: Request, profiles: Sequence[str], results: Mapping[str, ProfileResult | None]
    ) -> Sequence[str]:
        """Return the profiles to run now, given the results so far; none ends the scheduling."""

    def check_profiles(self, profiles: Sequence[str]) -> Sequence[str]:
        """Return warnings about the profiles of the configuration, given by name.

        Raises ValueError where no request could be served. Called once, after `connect` and before any request.
        """
        return ()


class Decider(Plugin[P], role=Role(title="Deciders", stage=Stage.CYCLE)):
    """Decides whether a stage of a disaggregated request runs on an endpoint of its own."""

    @abstractmethod
    def decide(self, request: Request, decode: ProfileResult | None) -> bool:
        """Return true for a leg of its own; `decode` is the result of the decode leg, where that ran already."""

    def _rehearse(self, request: Request, candidates: Candidates) -> None:
        self.decide(request, None)


class Aggregator(
    Plugin[P],
    role=Role(
        title="Aggregators", name="ProcessProfilesResults", stage=Stage.CYCLE, on_error=OnError.FAIL, may_refuse=True
    ),
):
    """Turns the results of all profiles into one destination.

    Name the headers of its destinations in `sets_headers`, in lower case: others are dropped, and `epp check` refuses
    them. The picker removes declared headers from the requests of clients.
    """

    @abstractmethod
    def aggregate(self, request: Request, results: Mapping[str, ProfileResult | None]) -> Destination | None:
        """Return the destination; None when no usable result is among them."""


class Producer(Plugin[P], role=Role(title="Producers", name="DataProducer", stage=Stage.PRODUCERS, hook=True)):
    """Computes, once for each request, data that filters and scorers share."""

    reads_content: bool = False
    """Whether it reads `request.content`."""
    per_candidate: bool = False
    """Whether its cost grows with the candidates. Then `produce`, and `admit` if it is an admitter, may be given only
    the candidates that some profile may keep: filters that read no data of a producer run before it, too."""

    @abstractmethod
    def produce(self, request: Request, candidates: Candidates) -> None:
        """Put the data on the request."""

    def _rehearse(self, request: Request, candidates: Candidates) -> None:
        self.produce(request, candidates)


class RequestHeaders(
    Plugin[P],
    role=Role(title="Request headers", name="RequestHeader", stage=Stage.REQUEST_HEADERS, hook=True, may_refuse=True),
):
    """Runs before any decision about the request; producers of data run before its readers."""

    @abstractmethod
    def request_headers(self, request: Request) -> None:
        """Put on the request what its headers say; raise a RequestError to refuse it."""


class Screener(
    Plugin[P],
    role=Role(title="Screeners", stage=Stage.REQUEST_HEADERS, hook=True, on_error=OnError.FAIL, may_refuse=True),
):
    """Excludes endpoints from a request in all profiles: the endpoints of another rollout, for example."""

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
    """May refuse a request, or hold it for a while, before it is scheduled."""

    @abstractmethod
    def admit(self, request: Request, candidates: Candidates) -> Awaitable[None] | None:
        """Return None to admit; raise a RequestError to refuse: the client gets its status and message.

        To hold the request, return an awaitable: when it ends, the request is scheduled on a new snapshot, or refused
        if it raised a RequestError. It is cancelled when the client leaves.
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
    """Sees the destination before the request leaves, and may add headers for the endpoint."""

    @abstractmethod
    def pre_request(self, request: Request, result: SchedulingResult) -> Mapping[str, str] | None:
        """Record the destination; return request headers to add, which `sets_headers` must name, or None."""

    def added_headers(self, request: Request, result: SchedulingResult) -> Mapping[str, str]:
        """Return the checked result of `pre_request`; raises ResultError."""
        added = self.pre_request(request, result) or {}
        if undeclared := added.keys() - self.sets_headers:
            raise ResultError(f"returned headers {sorted(undeclared)}, which its `sets_headers` does not name")
        return added

    def request_failed(self, request: Request, result: SchedulingResult) -> None:
        """Undo the record: the request failed at the endpoint before its first token."""


class ResponseHeaders(
    Plugin[P], role=Role(title="Response headers", name="ResponseReceived", stage=Stage.RESPONSE_HEADERS, hook=True)
):
    """Sees the headers of a response and may add to them."""

    @abstractmethod
    def response_headers(self, request: Request, response: Response) -> Mapping[str, str]:
        """Return headers to add for the client, in lower case."""


class ResponseTiming(
    Plugin[P], role=Role(title="Response times", name="ResponseStreaming", stage=Stage.RESPONSE_BODY, hook=True)
):
    """Measures how long endpoints take."""

    reads_response_body: bool = True
    """Whether a gateway that shows no bodies of responses is asked for them, as it must be for these times."""
    only_streams: bool = False
    """Whether it is asked for those of event streams only."""

    @abstractmethod
    def first_token(self, request: Request, response: Response, seconds: float) -> None:
        """Record the time from the whole request to the first byte of the response body.

        Only for a streamed response (`request.body.streaming`) is that the time to the first token.
        """

    def ended(self, request: Request, response: Response, seconds: float) -> None:
        """Record the time from the first byte to the natural end of the response."""

    def interrupted(self, request: Request, response: Response) -> None:
        """Record that the request ended without `ended`: the client left, or the end of the response was not seen."""


MetadataValue: TypeAlias = str | float | bool
Metadata: TypeAlias = Mapping[str, Mapping[str, MetadataValue]]
"""Values by namespace and key, as gateways keep them beside a request."""


class ResponseReporter(
    Plugin[P], role=Role(title="Response reports", name="ResponseComplete", stage=Stage.RESPONSE_END, hook=True)
):
    """Sends dynamic metadata about a finished response to the gateway, for its access log or rate limits."""

    reads_response_body: bool = True
    """Whether a gateway that shows no bodies of responses is asked for them: for tokens, or the end of the response."""
    namespaces: tuple[str, ...] = (DESTINATION_NAMESPACE,)
    """Namespaces written to; a gateway accepts only the namespaces in its configuration."""

    @abstractmethod
    def report(self, request: Request, response: Response) -> Metadata:
        """Return the metadata; it is sent with the last piece of the body."""


class EndpointObserver(Plugin[P], role=Role(title="Endpoint observers")):
    """Keeps state by slot."""

    @abstractmethod
    def slots_removed(self, slots: Sequence[int]) -> None:
        """Forget these slots: other endpoints may take them."""


class Parser(Plugin[P], role=Role(title="Parsers")):
    """Reads request bodies of one API, or of several that belong together."""

    names_model: ClassVar[bool] = True
    """Whether a body without a model is refused."""
    takes_others: ClassVar[bool] = False
    """Whether it gets unclaimed paths too, if it is the first such parser."""
    needs_http2: ClassVar[bool] = False
    """Whether its API is gRPC: a pool must have the `appProtocol` `kubernetes.io/h2c`."""

    @property
    def propagates_priority(self) -> bool:
        """Whether the priority of each request is written into its body, for the queue of the engine."""
        return False

    @property
    @abstractmethod
    def suffixes(self) -> tuple[str, ...]:
        """Claimed paths: suffixes of whole segments, or a whole path that starts with a slash.

        A parser without claims gets the unclaimed paths.
        """

    @abstractmethod
    def parse(self, suffix: str, headers: Headers, body: bytes) -> RequestBody:
        """Return what routing needs; raises MalformedBodyError with a sentence for the caller.

        `suffix` is the claim that matched, empty for an unclaimed path. All other requests wait for a parser: refuse a
        body that would take more than 25 ms.
        """


def _made_up_draw() -> "np.random.Generator":
    return np.random.default_rng()  # named here alone: to name it imports a module of megabytes


@dataclass(frozen=True, slots=True)
class ShadowLimits:
    """Limits of shadow profiles."""

    sample_rate: float
    """Share of the requests, 0..1."""
    max_queue: int
    """Requests that wait for their shadows; each holds a snapshot."""
    seconds: float
    """Time for one profile and one request."""


class Shadowing(Plugin[P], role=Role(title="Shadow profiles")):
    """Names profiles that decide nothing: they run afterwards, on the same endpoints, and their picks are compared."""

    @property
    @abstractmethod
    def shadow_profiles(self) -> Sequence[str]:
        """Names of profiles of the same configuration."""

    @property
    @abstractmethod
    def limits(self) -> ShadowLimits:
        """Limits for all of them together."""
