# SPDX-License-Identifier: Apache-2.0
"""Parsers, producers, scheduler and hooks of one configuration, replaced as a whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from epp.admission.flow_control import FlowControlSettings
from epp.framework.errors import NoParserError
from epp.framework.flow_control import SaturationDetector
from epp.framework.headers import CONTROL, Spellings
from epp.framework.plugin import Plugin, R
from epp.framework.request import Headers
from epp.framework.roles import Parser, ResponseHeaders, ResponseReporter, ResponseTiming
from epp.routing.scheduling import Profile
from epp.routing.scheduling.scheduler import Scheduler

_MOST_PATHS = 16


class ParserTable:
    """Parsers by path: a whole path first, then the longest suffix of whole segments, then the fallback.

    The first counts of several parsers of one type, claims to one path, and fallbacks.
    """

    __slots__ = ("_by_path", "_by_suffix", "_fallback", "_found", "_longest", "parsers")

    def __init__(self, parsers: Sequence[Parser[Any]]) -> None:
        self._by_path: dict[str, Parser[Any]] = {}
        self._by_suffix: dict[tuple[str, ...], tuple[str, Parser[Any]]] = {}
        self._fallback: Parser[Any] | None = None
        first_of_type: dict[str, Parser[Any]] = {}
        for parser in parsers:
            first_of_type.setdefault(parser.plugin_type, parser)
        self.parsers = tuple(first_of_type.values())
        for parser in self.parsers:
            if not parser.suffixes and self._fallback is None:
                self._fallback = parser
            for suffix in parser.suffixes:
                if suffix.startswith("/"):
                    self._by_path.setdefault(suffix, parser)
                else:
                    self._by_suffix.setdefault(tuple(suffix.split("/")), (suffix, parser))
        self._longest = max(map(len, self._by_suffix), default=0)
        self._found: dict[str, tuple[str, Parser[Any]]] = {}
        """The last few paths, and the claim that matches each: clients name them."""

    def find(self, path: str) -> tuple[str, Parser[Any]]:
        """Return the claim that matches a path, and its parser; raises NoParserError."""
        found = self._found.get(path)
        if found is None:
            found = self._find(path)
            if len(self._found) >= _MOST_PATHS:
                self._found.clear()
            self._found[path] = found
        return found

    def claims(self, path: str) -> bool:
        """Return whether a parser reads the API at a path, as opposed to one that takes any."""
        return self._claimed(path) is not None

    def _find(self, path: str) -> tuple[str, Parser[Any]]:
        found = self._claimed(path)
        if found is not None:
            return found
        if self._fallback is None:
            raise NoParserError(path)
        return "", self._fallback

    def _claimed(self, path: str) -> tuple[str, Parser[Any]] | None:
        """Return the claim that matches a path, a trailing slash apart, and whose it is."""
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
    """What plugins need of the bodies of responses."""

    body: bool = False
    """Times, tokens or the end."""
    streams: bool = False
    """Those of event streams: prompts count as in flight until they begin, and plugins measure them."""


NO_NEEDS = ResponseNeeds()


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Immutable; a request keeps the one it started with."""

    parsers: ParserTable
    scheduler: Scheduler
    plugins: Mapping[type[Plugin[Any]], tuple[Any, ...]] = field(default_factory=dict)
    """By role; producers and request-header plugins run after the producers of their inputs."""
    sets_headers: frozenset[str] = frozenset()
    """Request headers that the plugins declare to set."""
    response_needs: ResponseNeeds = NO_NEEDS
    flow_control: FlowControlSettings | None = None
    """None where requests do not wait for room."""
    shedding: SaturationDetector[Any] | None = None
    """What says then that the pool is saturated; None for the usual."""
    shadows: Mapping[str, Profile] = field(default_factory=dict)
    """Shadow profiles by name: they run after the response, and only their picks are recorded."""
    _kept_back: Spellings = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Prepare the search for headers that must not reach an endpoint."""
        object.__setattr__(self, "_kept_back", CONTROL.beside(self.sets_headers))

    def of(self, role: type[R]) -> tuple[R, ...]:
        """Return the plugins of a role, in the order in which they run."""
        found: tuple[R, ...] = self.plugins.get(role, ())
        return found

    def control_names(self, headers: Headers) -> list[str]:
        """Return the names present that must not reach an endpoint: those of the protocol, and those plugins set."""
        return self._kept_back.among(headers)

    @property
    def sees_responses(self) -> bool:
        """Whether a plugin is shown the headers of responses."""
        return bool(self.of(ResponseHeaders) or self.of(ResponseTiming) or self.of(ResponseReporter))

    @property
    def metadata_namespaces(self) -> frozenset[str]:
        """Namespaces of the dynamic metadata that plugins send."""
        return frozenset(namespace for reporter in self.of(ResponseReporter) for namespace in reporter.namespaces)
