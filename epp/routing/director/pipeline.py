# SPDX-License-Identifier: Apache-2.0
"""Pipeline and policies: the parts of configuration and pool that apply to requests, each replaced as a whole."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from epp.admission.flow_control.settings import FlowControlSettings
from epp.framework.errors import NoParserError
from epp.framework.flow_control import SaturationDetector
from epp.framework.headers import CONTROL, Spellings
from epp.framework.plugin import Plugin, R
from epp.framework.quotas import Tenant
from epp.framework.request import Headers, Request
from epp.framework.roles import Parser, Producer, ResponseHeaders, ResponseReporter, ResponseTiming
from epp.routing.scheduling.profile import Profile
from epp.routing.scheduling.scheduler import Scheduler, Shortlist

_MOST_PATHS = 16


class ParserTable:
    """Parsers by path: a whole path first, then the longest suffix of whole segments, then the fallback.

    If several parsers have the same type, claim the same path, or are fallbacks, the first one is used.
    """

    def __init__(self, parsers: Sequence[Parser[Any]]) -> None:
        self._by_path: dict[str, Parser[Any]] = {}
        self._by_suffix: dict[tuple[str, ...], tuple[str, Parser[Any]]] = {}
        self._fallback: Parser[Any] | None = None
        first_of_type: dict[str, Parser[Any]] = {}
        for parser in parsers:
            first_of_type.setdefault(parser.plugin_type, parser)
        self.parsers = tuple(first_of_type.values())
        for parser in self.parsers:
            if self._fallback is None and (parser.takes_others or not parser.suffixes):
                self._fallback = parser
            for suffix in parser.suffixes:
                if suffix.startswith("/"):
                    self._by_path.setdefault(suffix, parser)
                else:
                    self._by_suffix.setdefault(tuple(suffix.split("/")), (suffix, parser))
        self._longest = max(map(len, self._by_suffix), default=0)
        self._found: dict[str, tuple[str, Parser[Any]]] = {}
        """Matching claim of the last few paths; their number is limited, since clients choose paths."""

    def find(self, path: str) -> tuple[str, Parser[Any]]:
        """Return the claim that matches a path, and its parser; raises NoParserError."""
        found = self._found.get(path)
        if found is None:
            found = self._claimed(path)
            if found is None:
                if self._fallback is None:
                    raise NoParserError(path)
                found = "", self._fallback
            if len(self._found) >= _MOST_PATHS:
                self._found.clear()
            self._found[path] = found
        return found

    def claims(self, path: str) -> bool:
        """Return whether a parser other than the fallback claims a path."""
        return self._claimed(path) is not None

    def _claimed(self, path: str) -> tuple[str, Parser[Any]] | None:
        whole = path.rstrip("/")
        if whole in self._by_path:
            return whole, self._by_path[whole]
        segments = tuple(whole.split("/"))
        for length in range(min(self._longest, len(segments)), 0, -1):
            found = self._by_suffix.get(segments[-length:])
            if found is not None:
                return found
        return None


class ResponseNeeds(NamedTuple):
    """Parts of response bodies that plugins need."""

    body: bool = False
    """Whether plugins need times, tokens or the end of any body."""
    streams: bool = False
    """Whether event streams are needed: prompts count as in flight until the first event, and plugins measure them."""


NO_NEEDS = ResponseNeeds()


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Plugins and settings for requests; immutable. A request keeps the pipeline that it started with."""

    parsers: ParserTable
    scheduler: Scheduler
    plugins: Mapping[type[Plugin[Any]], tuple[Any, ...]] = field(default_factory=dict)
    """Plugins by role; producers, request-header plugins and admitters run after the producers of their inputs."""
    sets_headers: frozenset[str] = frozenset()
    """Request headers that plugins may set."""
    response_needs: ResponseNeeds = NO_NEEDS
    flow_control: FlowControlSettings | None = None
    """None if requests do not wait for room."""
    shedding: SaturationDetector[Any] | None = None
    """The saturation detector for shedding; None for the default."""
    shadows: Mapping[str, Profile] = field(default_factory=dict)
    """Shadow profiles by name: they run after the response, and only their picks are recorded."""
    propagates_priority: bool = False
    """Whether the priority of a request is written into its body, for the queue of the engine."""
    shortlist: Shortlist | None = field(init=False, repr=False, compare=False)
    """Narrows the candidates of `per_candidate` producers; None without any."""
    reads_content: bool = field(init=False)
    """Whether a producer reads the content of requests."""
    _kept_back: Spellings = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads_content", any(producer.reads_content for producer in self.of(Producer)))
        producers = self.of(Producer)
        shortlist = None
        if any(each.per_candidate for each in producers):
            profiles = (*self.scheduler.profiles.values(), *self.shadows.values())
            shortlist = Shortlist(profiles, {datum for each in producers for datum in each.writes})
        object.__setattr__(self, "shortlist", shortlist)
        object.__setattr__(self, "_kept_back", CONTROL.beside(self.sets_headers))

    def of(self, role: type[R]) -> tuple[R, ...]:
        """Return the plugins of a role, in the order in which they run."""
        found: tuple[R, ...] = self.plugins.get(role, ())
        return found

    def control_names(self, headers: Headers) -> list[str]:
        """Return the headers that must not reach an endpoint: protocol headers, and headers that plugins set."""
        return self._kept_back.among(headers)

    @property
    def sees_responses(self) -> bool:
        return bool(self.of(ResponseHeaders) or self.of(ResponseTiming) or self.of(ResponseReporter))

    @property
    def metadata_namespaces(self) -> frozenset[str]:
        return frozenset(namespace for reporter in self.of(ResponseReporter) for namespace in reporter.namespaces)


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One rule of an InferenceModelRewrite: the models that share the matching requests, by weight."""

    name: str
    generic: bool = False
    """Whether it matches any model, not one model by name."""
    models: tuple[str, ...] = ()
    """Target models; empty for a rule with invalid targets, which keeps the model of the request."""
    weights: tuple[int, ...] = ()
    """Share of each model, 1 or more."""
    _limits: tuple[int, ...] = field(init=False, repr=False)
    """Sums of the weights up to each model."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_limits", tuple(accumulate(self.weights)))

    def model_at(self, share: float) -> str:
        """Return the model for a number in [0, 1); empty if the rule keeps the model of the request."""
        if not self.models:
            return ""
        index = bisect_right(self._limits, share * self._limits[-1])
        return self.models[min(index, len(self.models) - 1)]


@dataclass(frozen=True, slots=True)
class PoolPolicies:
    """All policies of a pool at one moment; immutable, its mappings included."""

    priorities: Mapping[str, int] = field(default_factory=dict)
    exact: Mapping[str, Rewrite] = field(default_factory=dict)
    """Rules by the model that they name."""
    generic: Rewrite | None = None
    """Rule for all other models, and for requests that name none."""

    def rewrite_of(self, model: str) -> Rewrite | None:
        return self.exact.get(model, self.generic)


NO_POLICIES = PoolPolicies()
"""No objectives, no rewrites."""


def assign_priority(request: Request, tenant: Tenant) -> None:
    """Set the flow to the tenant, and its priority unless there is an objective, up to the tenant's highest one."""
    request.fairness_id = tenant.name
    if tenant.priority is not None and not request.objective:
        request.priority = tenant.priority
    if tenant.highest_priority is not None and request.priority > tenant.highest_priority:
        request.priority = tenant.highest_priority
