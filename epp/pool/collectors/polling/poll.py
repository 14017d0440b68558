# SPDX-License-Identifier: Apache-2.0
"""Polls of one feed of one endpoint, and the log of their problems."""

import logging
from collections import deque
from collections.abc import Collection
from functools import lru_cache
from typing import Any

import structlog

from epp.framework.clock import Clock
from epp.framework.datalayer import Contact, Extractor, Feed, NotAskedError, PageError, Report, UnreachableError
from epp.framework.endpoint import Endpoint
from epp.framework.messages import described
from epp.framework.snapshot import KV_USAGE, RUNNING, WAITING, Column
from epp.pool.collectors.page_limits import ImpossibleValueError, Limit, MetricFilter, PageLimitError, cut_short
from epp.pool.collectors.polling.conditions import Condition, Reachability
from epp.pool.settings import PageLimits
from epp.routing.datastore import Datastore
from epp.runtime.supervisor import TaskObserver

PAGE = "page"
IN_PART = "in part"
_MOST_LOGGED, _LOGGED_SECONDS = 6, 60.0
"""Most problems that are logged in this time, since a server may fail at every other poll."""

_log = structlog.get_logger()
_LONGEST_BACKOFF_SECONDS = 1.0
_BACKOFF_TURNS = 4
"""Longest interval of a failing endpoint, as a multiple of the delay of polls."""
_LOAD = frozenset({WAITING, RUNNING, KV_USAGE})
_REQUESTS = frozenset({WAITING, RUNNING})
_STALE_SECONDS, _STALE_POLLS = 2.0, 3
"""Age of numbers, and number of failed polls, after which the load of an endpoint is unknown."""


class Problems:
    """Problems of one feed of one endpoint, by kind: `PAGE`, `IN_PART`, or the name of an extractor."""

    __slots__ = ("_clock", "_feed", "_logged", "_logged_at", "_present")

    def __init__(self, feed: Feed, clock: Clock) -> None:
        self._feed = feed
        self._clock = clock
        self._present: dict[str, str] = {}
        """The type of the last problem of each kind."""
        self._logged: set[str] = set()
        """Kinds whose current problem was logged."""
        self._logged_at: deque[float] = deque(maxlen=_MOST_LOGGED)

    def __bool__(self) -> bool:
        return bool(self._present)

    def occurred(self, kind: str, endpoint: Endpoint, error: Exception) -> None:
        """Log a problem, unless it is known or too many were logged recently."""
        sort = error.contact if isinstance(error, UnreachableError) else type(error).__name__
        if self._present.get(kind) == sort:
            return
        self._present[kind] = sort
        now = self._clock.now()
        if len(self._logged_at) == _MOST_LOGGED and now < self._logged_at[0] + _LOGGED_SECONDS:
            return
        self._logged_at.append(now)
        self._logged.add(kind)
        expected = isinstance(error, NotAskedError | PageError | UnreachableError)
        is_in_conditions = self._feed.asks(endpoint) and isinstance(error, PageError | UnreachableError)
        in_part = isinstance(error, PageLimitError) and error.in_part
        _log.log(
            logging.DEBUG if is_in_conditions else logging.WARNING,
            "endpoint read in part" if in_part else "endpoint not read",
            endpoint=endpoint.id,
            source=self._feed.source.name,
            extractor=None if kind in {PAGE, IN_PART} else kind,
            reason=str(error) if expected else described(error),
            remedy=getattr(error, "remedy", "") or None,
            exc_info=None if expected else error,
        )

    def resolved(self, kind: str, endpoint: Endpoint) -> None:
        """Log that a problem is resolved, if it was logged."""
        if self._present.pop(kind, None) is not None and kind in self._logged:
            self._logged.discard(kind)
            _log.info("endpoint read again", endpoint=endpoint.id, source=self._feed.source.name)


class CollectorObserver(TaskObserver):
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def poll_error(self, source_type: str) -> None:
        """Record a page that could not be fetched."""

    def extract_error(self, source_type: str, extractor_type: str) -> None:
        """Record a failure of an extractor or a tagger."""

    def page_limited(self, source_type: str, limit: str) -> None:
        """Record a page beyond a limit, which was refused or read in part."""

    def poll_interval(self, seconds: float) -> None:
        """Record the time between two polls of an endpoint, which grows with the pool."""


class Poll:
    """Reports the data of pages, and logs each kind of problem once until it is resolved.

    Problems of the endpoint itself are logged for all endpoints together: see `Conditions`.
    """

    __slots__ = (
        "_backoff_seconds", "_clock", "_delay_seconds", "_interval_seconds", "_last", "_limits",
        "_observer", "_problems", "_reachability", "_reported_at", "_store", "changed", "feed", "metric_filter",
        "wanted", "was_tried",
    )  # fmt: skip

    def __init__(
        self,
        store: Datastore,
        feed: Feed,
        reachability: Reachability,
        *,
        clock: Clock,
        interval_seconds: float,
        observer: CollectorObserver,
        limits: PageLimits | None = None,
    ) -> None:
        self._limits = limits = limits or PageLimits()
        names, newest = self.wanted = _wanted(feed)
        """Names of series to keep, and of series with the newest sample only; equal for feeds that share pages."""
        self.metric_filter = MetricFilter(names, limits, newest=newest) if names else None
        """Filter for the series that extractors read; None if one of them reads whole pages."""
        self._store = store
        self.feed = feed
        self._reachability = reachability
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._delay_seconds = 0.0
        self._observer = observer
        self._problems = Problems(feed, clock)
        self._backoff_seconds = interval_seconds
        self._reported_at: dict[Extractor[Any], float] = {}
        self._last: dict[Extractor[Any], Report] = {}
        self.changed = False
        """Whether the reports of the last page differ from those before."""
        self.was_tried = False
        """Whether a poll has ended, successfully or not."""

    @property
    def cut(self) -> Collection[Limit]:
        """The limits that the last page exceeded."""
        return () if self.metric_filter is None else self.metric_filter.cut

    @property
    def reads_requests(self) -> bool:
        """Whether pages have the number of requests of an endpoint."""
        return self._reads(_REQUESTS)

    def _reads(self, columns: Collection[Column]) -> bool:
        return any(datum in columns for extractor in self.feed.extractors for datum in extractor.writes)

    def settle(self, endpoint: Endpoint, outcome: bytes | Exception, delay_seconds: float = 0.0) -> float:
        """Report a page or the failure to fetch it; return the seconds until the next poll is due.

        `delay_seconds` is the time between the due time and the start of polls. It is large in large pools, where
        failing endpoints are polled less often.

        A failed page changes no data; numbers that could not be read for a while become unknown.
        """
        self._delay_seconds = delay_seconds
        self.changed = False
        self.was_tried = True
        if isinstance(outcome, Exception):
            self._failed(endpoint, outcome)
        else:
            self._problems.resolved(PAGE, endpoint)
            problem = self._extract(outcome, endpoint)
            self._answered(endpoint, self._cut(endpoint) if problem is None else problem)
        if self._problems:  # otherwise, all numbers were just reported
            self._forget_stale(endpoint)
        return self._backoff_seconds

    def _failed(self, endpoint: Endpoint, error: Exception) -> None:
        self._observer.poll_error(self.feed.source.plugin_type)
        if isinstance(error, PageLimitError):
            self._observer.page_limited(self.feed.source.plugin_type, error.limit)
        self._problems.occurred(PAGE, endpoint, error)
        if isinstance(error, PageError):
            self._answered(endpoint, error)
            return
        backs_off = isinstance(error, NotAskedError)
        if isinstance(error, UnreachableError):
            backs_off = error.refused
            if self.feed.asks(endpoint):
                self._reachability.missed(error)
                backs_off = self._reachability.lost
        if backs_off:
            self._back_off()

    def _cut(self, endpoint: Endpoint) -> PageLimitError | None:
        """Return the error of a page that was read in part, and record it; None for a whole page."""
        if not self.cut:
            self._problems.resolved(IN_PART, endpoint)
            return None
        for limit in self.cut:
            self._observer.page_limited(self.feed.source.plugin_type, limit)
        error = cut_short(min(self.cut), self._limits)
        self._problems.occurred(IN_PART, endpoint, error)
        return error

    def _extract(self, page: bytes, endpoint: Endpoint) -> PageError | None:
        """Report the data of a page; return the problem of a page that no extractor can read."""
        problem: PageError | None = None
        impossible: ImpossibleValueError | None = None
        failures = 0
        for extractor in self.feed.extractors:
            try:
                report = extractor.extract(page, endpoint)
                self._store.report(endpoint, report)
            except Exception as error:  # noqa: BLE001  a plugin may raise anything; other extractors continue
                self._observer.extract_error(self.feed.source.plugin_type, extractor.plugin_type)
                self._problems.occurred(extractor.name, endpoint, error)
                failures += 1
                problem = error if isinstance(error, PageError) else problem
            else:
                self._reported_at[extractor] = self._clock.now()
                before = self._last.get(extractor)
                if report is not before:
                    self.changed = self.changed or report != before
                    self._last[extractor] = report
                if report.problems:
                    impossible = ImpossibleValueError(report.problems)
                    self._problems.occurred(extractor.name, endpoint, impossible)
                else:
                    self._problems.resolved(extractor.name, endpoint)
        return problem if failures == len(self.feed.extractors) else impossible

    def _forget_stale(self, endpoint: Endpoint) -> None:
        interval = max(self._interval_seconds, self._delay_seconds)
        limit = self._clock.now() - max(_STALE_SECONDS, _STALE_POLLS * interval)
        stale = [extractor for extractor, at in self._reported_at.items() if at <= limit]
        for extractor in stale:
            del self._reported_at[extractor]
            numbers = (datum for datum in extractor.writes if isinstance(datum, Column) and not datum.lasting)
            self._store.forget(numbers, endpoint)

    def _answered(self, endpoint: Endpoint, problem: PageError | None) -> None:
        if problem is None or _is_read_in_part(problem):
            self._backoff_seconds = self._interval_seconds
        else:
            self._back_off()
        if self.feed.asks(endpoint):
            self._reachability.answered(self.feed.source.name, self._condition(problem))

    def _condition(self, problem: PageError | None) -> Condition | None:
        if problem is None:
            return None
        why, remedy = str(problem), problem.remedy
        if _is_read_in_part(problem):
            return Condition(Contact.READ_IN_PART, why, remedy)
        if self._reads(_LOAD):
            why = f"{why}; its load is estimated from the requests sent to it"
            remedy = remedy or f"enable its metrics, or set path or port of {self.feed.source.name}"
        return Condition(Contact.NO_PAGE, why, remedy)

    def _back_off(self) -> None:
        longest = max(_LONGEST_BACKOFF_SECONDS, self._interval_seconds, _BACKOFF_TURNS * self._delay_seconds)
        self._backoff_seconds = min(2 * self._backoff_seconds, longest)


def _is_read_in_part(problem: PageError) -> bool:
    return isinstance(problem, ImpossibleValueError) or (isinstance(problem, PageLimitError) and problem.in_part)


@lru_cache(maxsize=64)  # one for thousands of endpoints
def _wanted(feed: Feed) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of series that extractors read (none for whole pages), and the newest-only names.

    A name is newest-only if all extractors that read it need only the newest sample.
    """
    names: set[str] = set()
    newest: set[str] = set()
    ordinary: set[str] = set()
    for extractor in feed.extractors:
        series = extractor.series
        if series is None:
            return frozenset(), frozenset()
        names.update(series)
        newest.update(extractor.newest)
        ordinary.update(set(series) - set(extractor.newest))
    return frozenset(names), frozenset(newest - ordinary)
