"""Series of requests by labels that clients choose: bounded in number and length, with models that are served first."""

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, TypeAlias, TypeVar

import xxhash
from prometheus_client import Counter, Gauge, Histogram

from epp.framework.clock import Clock
from epp.framework.request import DEFAULT_FLOW

Labels: TypeAlias = tuple[str, str, str, str]
"""Model asked for, model sent to the endpoint, fairness id, priority."""
Metric = TypeVar("Metric", Counter, Histogram)

MOST_COMBINATIONS = 256
"""Of labels: about 50,000 lines on the metrics page."""
MOST_CHARACTERS = 128
OTHER = "other"
_STALE_SECONDS = 3600.0
_PROVEN_MODELS = 1024
_FIXED_FLOWS = frozenset({DEFAULT_FLOW, OTHER, ""})


class _Rank(IntEnum):
    """A combination may take the place of an idle one of a lower rank; one of the lowest takes none."""

    INVENTED = 0
    """A model that no endpoint is known to serve; or no request for an hour."""
    FLOW = 1
    """A fairness id of its own, of a model that is served."""
    PROVEN = 2
    """A model of which a request has succeeded."""
    REPORTED = 3
    """A model that an endpoint reports."""


class Series:
    """Series of one combination of labels, each created when first used."""

    __slots__ = ("_children", "labels", "last_used", "open", "rank", "running")

    def __init__(self, labels: Labels, rank: _Rank) -> None:
        self.labels = labels
        self.rank = rank
        self.open = 0
        """Requests that have begun and not ended."""
        self.running: Gauge | None = None
        """Requests under way of the same model."""
        self.last_used = 0.0
        """Seconds on the clock."""
        self._children: dict[tuple[Counter | Histogram, tuple[str, ...]], Any] = {}

    def of(self, metric: Metric, *more: str) -> Metric:
        """Return the series of a metric; `more` are the values of its labels beyond those of all."""
        child: Metric | None = self._children.get((metric, more))
        if child is None:
            child = self._children[metric, more] = metric.labels(*self.labels, *more)
        return child

    def remove(self) -> None:
        """Remove all of them from their metrics."""
        for metric, more in self._children:
            metric.remove(*self.labels, *more)


class RequestSeries:
    """Finds the series that a request counts into, and keeps it there to the end of the request.

    When all places are taken, the fairness id is folded into `other` first, then the model. At most `most` combinations
    have series, and one of nothing but `other` for each priority.
    """

    def __init__(self, clock: Clock, running: Gauge, folded: Counter, *, most: int = MOST_COMBINATIONS) -> None:
        self._clock = clock
        self._running = running
        self._folded = folded
        self._most = most
        self._places: dict[Labels, Series] = {}
        self._others: dict[Labels, Series] = {}
        self._idle: tuple[dict[Series, None], ...] = tuple({} for _ in _Rank)
        """By rank, the least recently used one first."""
        self._reported: set[str] = {""}  # the name of no model is not invented
        self._proven: dict[tuple[str, str], None] = {}

    def begin(self, model: str, target: str, fairness_id: str, priority: str) -> Series:
        """Return the series of a request that begins; `end` it once."""
        series = self._find(model, target, fairness_id, priority)
        if series.running is None:
            series.running = self._running.labels(series.labels[0])
        series.running.inc()
        self._use(series)
        return series

    def end(self, series: Series) -> None:
        """Take note that a request has ended."""
        if series.running is not None:
            series.running.dec()
        self._rest(series)

    def moment(self, model: str, fairness_id: str, priority: str) -> Series:
        """Return the series of a request that ends as it begins."""
        series = self._find(model, model, fairness_id, priority)
        self._use(series)
        self._rest(series)
        return series

    def succeeded(self, model: str, target: str) -> None:
        """Take note that an endpoint served a model."""
        pair = shortened(model), shortened(target)
        self._proven.pop(pair, None)
        self._proven[pair] = None
        if len(self._proven) > _PROVEN_MODELS:
            del self._proven[next(iter(self._proven))]

    def reported(self, models: Iterable[str]) -> None:
        """Take note of all models that endpoints report now, and of combinations that have gone out of use."""
        self._reported = {"", *map(shortened, models)}
        stale = self._clock.now() - _STALE_SECONDS
        for places in self._idle:
            places.clear()
        for series in sorted(self._places.values(), key=lambda series: series.last_used):
            if not series.open:
                series.rank = _Rank.INVENTED if series.last_used < stale else self._rank_of(series.labels)
                self._idle[series.rank][series] = None

    def _find(self, model: str, target: str, fairness_id: str, priority: str) -> Series:
        pair = shortened(model), shortened(target)
        series = self._place((*pair, shortened(fairness_id), priority))
        if series is not None:
            return series
        series = self._place((*pair, OTHER, priority))
        if series is not None:
            self._folded.labels("fairness_id").inc()
            return series
        self._folded.labels("model_name").inc()
        labels = OTHER, OTHER, OTHER, priority
        if labels not in self._others:
            self._others[labels] = Series(labels, _Rank.REPORTED)
        return self._others[labels]

    def _place(self, labels: Labels) -> Series | None:
        series = self._places.get(labels)
        if series is None:
            rank = self._rank_of(labels)
            if len(self._places) < self._most or self._make_room(rank):
                series = self._places[labels] = Series(labels, rank)
        return series

    def _make_room(self, rank: _Rank) -> bool:
        for places in self._idle[:rank]:
            for series in places:
                del places[series], self._places[series.labels]
                series.remove()
                model = series.labels[0]
                if all(model != labels[0] for labels in (*self._places, *self._others)):
                    self._running.remove(model)
                return True
        return False

    def _rank_of(self, labels: Labels) -> _Rank:
        model, target, fairness_id, _ = labels
        if model in self._reported and target in self._reported:
            rank = _Rank.REPORTED
        elif (model, target) in self._proven:
            rank = _Rank.PROVEN
        else:
            return _Rank.INVENTED
        return rank if fairness_id in _FIXED_FLOWS else _Rank.FLOW

    def _use(self, series: Series) -> None:
        self._idle[series.rank].pop(series, None)
        series.open += 1
        series.last_used = self._clock.now()

    def _rest(self, series: Series) -> None:
        series.open -= 1
        series.last_used = self._clock.now()
        if not series.open and series.labels in self._places:
            series.rank = self._rank_of(series.labels)
            self._idle[series.rank][series] = None


def shortened(value: str) -> str:
    """Return a label value of at most 128 characters; one that was longer ends in a hash, so that two stay two."""
    if len(value) <= MOST_CHARACTERS:
        return value
    digest = "~" + xxhash.xxh3_64_hexdigest(value.encode("utf-8", "surrogatepass"))
    return value[: MOST_CHARACTERS - len(digest)] + digest
