# SPDX-License-Identifier: Apache-2.0
"""Metric series by labels that clients choose: bounded in number and length, with priority for served models."""

from collections.abc import Hashable, Iterable
from enum import IntEnum
from typing import Any, Generic, TypeAlias, TypeVar

import xxhash

from epp.framework.clock import Clock
from epp.framework.request import DEFAULT_FLOW
from epp.telemetry.families import Counters, Family, Gauges, Level, S

Labels: TypeAlias = tuple[str, str, str, str]
"""Requested model, model sent to the endpoint, fairness id, priority."""

MAX_COMBINATIONS = 256
"""Combinations of labels: about 50,000 lines on the metrics page."""
MAX_UNKNOWN = 16
"""Combinations of models that no endpoint is known to serve: clients can invent any number."""
MAX_CHARACTERS = 128
MAX_PRIORITIES = 16
"""Priorities with their own series of `other` labels."""
OTHER = "other"
V = TypeVar("V", bound=Hashable)
_STALE_SECONDS = 3600.0
_MAX_PROVEN = 1024
_FIXED_FLOWS = frozenset({DEFAULT_FLOW, OTHER, ""})


class Bounded(Generic[V]):
    """A bounded number of label values that clients or objects choose; further values are replaced."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[V] = set()

    def shown(self, value: V, otherwise: V) -> V:
        """Return the value if it is known or there is room for another, `otherwise` if not."""
        if value in self._known:
            return value
        if len(self._known) >= self._most:
            return otherwise
        self._known.add(value)
        return value


class _Rank(IntEnum):
    """Priority of a combination: a new one may replace an idle one of a lower rank."""

    UNKNOWN = 0
    """The model is not known to be served, or was not requested for an hour."""
    FLOW = 1
    """A served model with a fairness id chosen by the client."""
    PROVEN = 2
    """A model with a successful request."""
    REPORTED = 3
    """A model that an endpoint reports to serve."""


class Series:
    """The series of one combination of labels, each created on first use."""

    __slots__ = ("_more", "_own", "labels", "last_used", "open", "rank", "running")

    def __init__(self, labels: Labels, rank: _Rank) -> None:
        self.labels = labels
        self.rank = rank
        self.open = 0
        """Requests in flight."""
        self.running: Level | None = None
        """Gauge of the requests in flight."""
        self.last_used = 0.0
        """End of the last request, in seconds on the clock."""
        self._own: dict[Family[Any], Any] = {}
        self._more: dict[tuple[Family[Any], tuple[str, ...]], Any] = {}

    @property
    def is_known(self) -> bool:
        return self.rank is not _Rank.UNKNOWN

    def of(self, family: Family[S]) -> S:
        series: S | None = self._own.get(family)
        if series is None:
            series = self._own[family] = family.labels(*self.labels)
        return series

    def with_more(self, family: Family[S], *more: str) -> S:
        series: S | None = self._more.get((family, more))
        if series is None:
            series = self._more[family, more] = family.labels(*self.labels, *more)
        return series

    def remove(self) -> None:
        for family in self._own:
            family.remove(*self.labels)
        for family, more in self._more:
            family.remove(*self.labels, *more)


class RequestSeries:
    """Assigns requests to series; a request keeps its series until its end.

    At most `max_combinations` of labels have their own series, and few of them are for models that no endpoint is known
    to serve. When all are in use, the fairness id becomes `other`. If that is not enough, all labels except the
    priority become `other`, and with more than 16 such priorities the priority too.
    """

    def __init__(
        self, clock: Clock, running: Gauges, folded: Counters, *, max_combinations: int = MAX_COMBINATIONS
    ) -> None:
        self._clock = clock
        self._running = running
        self._folded = folded
        self._max_combinations = max_combinations
        self._combinations: dict[Labels, Series] = {}
        self._others: dict[Labels, Series] = {}
        self._reported: set[str] = {""}  # requests without a model count as known
        self._proven: dict[tuple[str, str], None] = {}
        self._last_proven: tuple[str, str] | None = None

    def begin(self, model: str, target: str, fairness_id: str, priority: str) -> Series:
        """Return the series of a new request; pass it to `end` once."""
        series = self.hold(model, target, fairness_id, priority)
        if series.running is None:
            series.running = series.of(self._running)
        series.running.value += 1
        return series

    def end(self, series: Series, now: float) -> None:
        if series.running is not None:
            series.running.value -= 1
        self.release(series, now)

    def hold(self, model: str, target: str, fairness_id: str, priority: str) -> Series:
        """Return the series of a request that is not in flight; pass it to `release` once."""
        # Most requests have a known combination of labels that need not be shortened.
        series = self._combinations.get((model, target, fairness_id, priority))
        if series is None:
            series = self._find(model, target, fairness_id, priority)
        series.open += 1
        return series

    def release(self, series: Series, now: float) -> None:
        series.open -= 1
        series.last_used = now
        if not series.open and series.labels in self._combinations:
            series.rank = self._rank_of(series.labels)

    def immediate(self, model: str, target: str, fairness_id: str, priority: str) -> Series:
        """Return the series of a request that is over."""
        series = self.hold(model, target, fairness_id, priority)
        self.release(series, self._clock.now())
        return series

    def succeeded(self, model: str, target: str) -> None:
        if (model, target) == self._last_proven:
            return
        self._last_proven = model, target
        pair = shortened(model), shortened(target)
        self._proven.pop(pair, None)
        self._proven[pair] = None
        if len(self._proven) > _MAX_PROVEN:
            del self._proven[next(iter(self._proven))]

    def reported(self, models: Iterable[str]) -> None:
        """Set the models that endpoints report, and update the ranks of idle combinations."""
        self._reported = {"", *map(shortened, models)}
        stale = self._clock.now() - _STALE_SECONDS
        for series in self._combinations.values():
            if not series.open:
                series.rank = _Rank.UNKNOWN if series.last_used < stale else self._rank_of(series.labels)

    def _find(self, model: str, target: str, fairness_id: str, priority: str) -> Series:
        pair = shortened(model), shortened(target)
        series = self._get_or_add((*pair, shortened(fairness_id), priority))
        if series is not None:
            return series
        series = self._get_or_add((*pair, OTHER, priority))
        if series is not None:
            self._folded.labels("fairness_id").inc()
            return series
        self._folded.labels("model_name").inc()
        labels = OTHER, OTHER, OTHER, priority
        if labels not in self._others and len(self._others) >= MAX_PRIORITIES:
            labels = OTHER, OTHER, OTHER, OTHER
        if labels not in self._others:
            self._others[labels] = Series(labels, _Rank.REPORTED)
        return self._others[labels]

    def _get_or_add(self, labels: Labels) -> Series | None:
        series = self._combinations.get(labels)
        if series is None:
            rank = self._rank_of(labels)
            if self._has_place(rank) or self._make_room(rank):
                series = self._combinations[labels] = Series(labels, rank)
        return series

    def _has_place(self, rank: _Rank) -> bool:
        if rank is _Rank.UNKNOWN and sum(each.rank is rank for each in self._combinations.values()) >= MAX_UNKNOWN:
            return False
        return len(self._combinations) < self._max_combinations

    def _make_room(self, rank: _Rank) -> bool:
        """Remove the least recently used idle series of the lowest rank below `rank`; return whether there was one."""
        idle = [series for series in self._combinations.values() if not series.open and series.rank < rank]
        if not idle:
            return False
        series = min(idle, key=lambda each: (each.rank, each.last_used))
        del self._combinations[series.labels]
        series.remove()
        return True

    def _rank_of(self, labels: Labels) -> _Rank:
        model, target, fairness_id, _ = labels
        if model in self._reported and target in self._reported:
            rank = _Rank.REPORTED
        elif (model, target) in self._proven:
            rank = _Rank.PROVEN
        else:
            return _Rank.UNKNOWN
        return rank if fairness_id in _FIXED_FLOWS else _Rank.FLOW


def shortened(value: str) -> str:
    """Return a label value of at most 128 characters; longer ones end in a hash, which keeps them distinct."""
    if len(value) <= MAX_CHARACTERS:
        return value
    digest = "~" + xxhash.xxh3_64_hexdigest(value.encode("utf-8", "surrogatepass"))
    return value[: MAX_CHARACTERS - len(digest)] + digest
