# SPDX-License-Identifier: Apache-2.0
"""Distribution of the ratio of measured to expected times, learned at each endpoint, and quantiles of it."""

from collections import Counter
from collections.abc import Sequence
from math import inf, isfinite, log, nan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epp.framework import ACCELERATOR, AcceleratorTag, Candidates, Floats, Mask, Positions, Records, Snapshot
from epp.framework.plugin_status import endpoint_state
from epp.pool.predicted_latency.messages import Kind

_SIZES = (64.0, 256.0, 1024.0)
"""Uncached prompt tokens at which the next bucket begins."""
_BATCHES = (4.0, 16.0, 64.0)
"""Requests in the batch at which the next bucket begins."""
_LOADS = 4
_BUCKETS = _LOADS * (len(_SIZES) + 1)
_BINS = 96
_REACH = 3.0
"""Largest logarithm of a ratio: a factor of 20."""
_WIDTH = 2 * _REACH / _BINS
_KEPT = 0.99
"""Factor of the weight of older samples with each new sample: about the last 100 samples count."""
_HEAVIEST = 1e6
"""Weight of a new sample at which all weights of a cell are scaled down."""
_PRIOR = 16.0
"""Weight, in samples, of the distribution of the level above."""
_ENOUGH = 10
"""Least number of samples of the endpoint or its class, in a bucket, for a sure prediction."""
_ERRORS_KEPT = 0.998
"""Factor of the weight of older errors with each new error: about the last 500 errors count."""
_BETTER = 0.9
"""Ratio of the errors of learned medians and expected times below which learned medians are used."""
_MOST_CLASSES = 64
_NO_CLASS = _MOST_CLASSES + 1
_FIRST_SLOT = _NO_CLASS + 1
"""Rows of cells: all endpoints, each accelerator class, one for further classes, and each slot."""
_MOST_CELLS = 16_384
"""Most cells: 6 MiB. Further endpoints have the distributions of their class."""
_FIRST_CELLS = 64
_MOST_PENDING = 256
"""Number of samples after which quantiles are updated without waiting: this takes a few milliseconds."""
_UPDATE_SECONDS = 0.1
"""Shortest time between two updates of quantiles."""


class QuantilePrediction(NamedTuple):
    """Predicted times of some endpoints, in seconds."""

    p50: Floats
    p90: Floats
    sure: Mask
    """Whether there are enough samples; otherwise, the predictions are the expected times."""
    samples: Floats
    """Number of samples of the endpoint under similar load."""
    ratio: Floats
    """Median of the learned ratio; only valid if sure."""


class Place(NamedTuple):
    slot: int
    accelerator_class: str
    bucket: int


def load_buckets(uncached: Floats, ahead: Floats, waiting: Floats, batch: Floats) -> tuple[Positions, Positions]:
    """Return buckets for the time to the first token, and for further tokens.

    Both depend on the prompt tokens to compute; the first bucket also on the tokens in flight before them and on
    whether requests wait, the second bucket also on the requests in the batch.
    """
    size = _steps(uncached, _SIZES) * _LOADS
    is_ahead = ahead > 0
    load = is_ahead.astype(np.intp)
    load += is_ahead & (ahead >= uncached)
    load[waiting > 0] = _LOADS - 1
    return size + load, size + _steps(batch, _BATCHES)


def _steps(values: Floats, limits: Sequence[float]) -> Positions:
    """Return the number of limits that each value reaches."""
    found = np.zeros(len(values), dtype=np.intp)
    for limit in limits:
        found += values >= limit
    return found


class LatencyQuantiles:
    """The distribution of the ratio of measured to expected times of one model, for each endpoint and bucket of load.

    It is a histogram of logarithms in which older samples weigh less. Each level adds the distribution of the level
    above with the weight of 16 samples: endpoint, accelerator class, all endpoints, all buckets.
    """

    def __init__(self) -> None:
        self._cells: NDArray[np.intp] = np.zeros((_FIRST_SLOT, _BUCKETS + 1), dtype=np.intp)
        """Cell by row and bucket; the last bucket has all samples. Cell 0 is always empty."""
        self._histograms = np.zeros((_FIRST_CELLS, _BINS), dtype=np.float32)
        """Histogram of each cell; later samples weigh more, so sums are divided by the weight of the next sample."""
        self._weights = np.ones(_FIRST_CELLS)
        self._counts = np.zeros(_FIRST_CELLS)
        self._ratios = np.ones((2, _FIRST_CELLS))
        """p50 and p90 by cell."""
        self._used = 1
        self._free: list[int] = []
        self._pending: list[tuple[int, int, int, int]] = []
        """Row of the class, row of the slot, bucket and bin of each sample since the last update."""
        self._classes: dict[str, int] = {}
        """Row of each class."""
        self._rows: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        """Row of the class of each slot."""
        self._tags: Records[AcceleratorTag] | None = None
        """Tags from which `_rows` were computed."""
        self._updated_at = -inf
        self.errors = [0.0, 0.0]
        """Mean absolute errors of the latest expected times and learned medians, in seconds."""

    def samples(self, capacity: int) -> Floats:
        self._update()
        rows = self._cells[_FIRST_SLOT : _FIRST_SLOT + capacity]
        samples = np.zeros(capacity)
        samples[: len(rows)] = self._counts[rows].sum(axis=1)
        return samples

    def learn(self, place: Place, *, base: float, measured: float) -> None:
        """Add a sample: the measured time and the base that its ratio refers to, in seconds and above 0."""
        row = self._classes.get(place.accelerator_class)
        if row is None:
            row = _NO_CLASS
            if len(self._classes) < _MOST_CLASSES:
                row = self._classes[place.accelerator_class] = 1 + len(self._classes)
                self._tags = None
        logarithm = min(max(log(measured / base), -_REACH), _REACH)
        position = min(int((logarithm + _REACH) / _WIDTH), _BINS - 1)
        self._pending.append((row, _FIRST_SLOT + place.slot, place.bucket, position))
        if len(self._pending) >= _MOST_PENDING:
            self._update()

    def compare(self, measured: float, expected: float, learned: float) -> None:
        """Record the errors of the expected time and of the learned median."""
        for index, predicted in enumerate((expected, learned)):
            self.errors[index] += (1.0 - _ERRORS_KEPT) * (abs(measured - predicted) - self.errors[index])

    def forget(self, slots: Sequence[int]) -> None:
        self._update()
        rows = [_FIRST_SLOT + slot for slot in slots if _FIRST_SLOT + slot < len(self._cells)]
        dropped = self._cells[rows]
        dropped = dropped[dropped > 0]
        self._cells[rows] = 0
        self._histograms[dropped] = self._counts[dropped] = 0.0
        self._weights[dropped] = 1.0
        self._free += dropped.tolist()

    def predict(
        self, snapshot: Snapshot, slots: Positions, buckets: Positions, *, base: Floats, expected: Floats, now: float
    ) -> QuantilePrediction:
        """Return the quantiles of endpoints in these buckets; the expected times if they are not sure.

        The expected time also replaces the median while its latest errors are smaller.
        """
        if self._pending and now - self._updated_at >= _UPDATE_SECONDS and not snapshot.dry_run:
            self._update()
            self._updated_at = now
        self._reach(snapshot.capacity)
        width, cells = _BUCKETS + 1, self._cells.ravel()
        own = cells.take((slots + _FIRST_SLOT) * width + buckets)
        of_class = cells.take(self._class_rows(snapshot).take(slots) * width + buckets)
        own_samples = self._counts.take(own)
        sure: Mask = np.maximum(own_samples, self._counts.take(of_class)) >= _ENOUGH
        sure &= np.isfinite(base)
        chosen = np.where(own, own, of_class)
        ratio = self._ratios[0].take(chosen)
        p50 = np.where(sure, base * ratio, expected) if self.errors[1] < _BETTER * self.errors[0] else expected
        p90 = np.where(sure, np.maximum(base * self._ratios[1].take(chosen), p50), expected)
        return QuantilePrediction(p50, p90, sure, own_samples, ratio)

    def _class_rows(self, snapshot: Snapshot) -> NDArray[np.intp]:
        tags = snapshot.records(ACCELERATOR)
        if tags is self._tags:
            return self._rows
        names = tags.derive_objects(_class_of).tolist()
        rows = np.array([self._classes.get(name, _NO_CLASS) for name in names], dtype=np.intp)
        if not snapshot.dry_run:
            self._tags, self._rows = tags, rows
        return rows

    def _reach(self, capacity: int) -> None:
        missing = _FIRST_SLOT + capacity - len(self._cells)
        if missing > 0:
            self._cells = np.pad(self._cells, ((0, missing), (0, 0)))

    def _update(self) -> None:
        """Add the pending samples, and compute the quantiles of their cells."""
        if not self._pending:
            return
        of_class, own, buckets, bins = np.array(self._pending, dtype=np.intp).T
        self._pending.clear()
        self._reach(own.max() + 1 - _FIRST_SLOT)
        everything, every_bucket = np.zeros_like(own), np.full_like(own, _BUCKETS)
        levels = ((everything, every_bucket), (everything, buckets), (of_class, buckets), (own, buckets))
        shares = np.zeros((len(own), _BINS))
        shares[:, _BINS // 2 - 2 : _BINS // 2 + 2] = 0.25  # little above and below 1
        for rows, columns in levels:
            cells = self._cells_of(rows, columns)
            self._add(cells, bins)
            histograms = self._histograms[cells] / self._weights[cells, None]
            shares = (histograms + _PRIOR * shares) / (histograms.sum(axis=1, keepdims=True) + _PRIOR)
            self._ratios[:, cells] = _quantiles(shares)

    def _cells_of(self, rows: NDArray[np.intp], buckets: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return cells, and create missing ones; 0 if there are too many."""
        for row, bucket in zip(rows.tolist(), buckets.tolist(), strict=True):
            if self._cells[row, bucket]:
                continue
            if self._free:
                self._cells[row, bucket] = self._free.pop()
            elif self._used < _MOST_CELLS:
                self._cells[row, bucket] = self._used
                self._used += 1
        if more := (self._used - 1) // len(self._counts) * len(self._counts):
            self._histograms = np.pad(self._histograms, ((0, more), (0, 0)))
            self._weights = np.pad(self._weights, (0, more), constant_values=1.0)
            self._counts = np.pad(self._counts, (0, more))
            self._ratios = np.pad(self._ratios, ((0, 0), (0, more)), constant_values=1.0)
        return self._cells[rows, buckets]

    def _add(self, cells: NDArray[np.intp], bins: NDArray[np.intp]) -> None:
        known = cells > 0
        np.add.at(self._histograms, (cells[known], bins[known]), self._weights[cells[known]])
        added = np.bincount(cells[known], minlength=len(self._counts))
        self._counts += added
        self._weights /= _KEPT**added
        heavy = self._weights > _HEAVIEST
        self._histograms[heavy] /= self._weights[heavy, None]
        self._weights[heavy] = 1.0


def _quantiles(shares: Floats) -> tuple[Floats, Floats]:
    """Return the ratios of p50 and p90 of distributions over the bins, one distribution per row.

    The median is interpolated. p90 is the upper bound of its bin, so that times with little variation are within it.
    """
    below, lines = np.cumsum(shares, axis=1), np.arange(len(shares))
    half, most = (np.minimum((below < quantile).sum(axis=1), _BINS - 1) for quantile in (0.5, 0.9))
    over = (below[lines, half] - 0.5) / shares[lines, half]
    return np.exp(_WIDTH * (half + 1.0 - np.clip(over, 0.0, 1.0)) - _REACH), np.exp(_WIDTH * (most + 1.0) - _REACH)


def _class_of(tag: AcceleratorTag) -> str:
    return tag.primary_class


_MOST_MODELS = 8
"""Most models that are learned separately; further models are learned together."""
_OTHER = "other models"
_KINDS: tuple[Kind, ...] = ("ttft", "tpot")


class Expected(NamedTuple):
    """Expected times of one kind, by candidate, with the bases and buckets for learning."""

    seconds: Floats
    base: Floats
    """Seconds that the learned ratio refers to."""
    buckets: Positions


class Outlook(NamedTuple):
    """Predicted times of one kind for the candidates of a request."""

    model: str
    slots: Positions
    expected: Expected
    found: QuantilePrediction


class Lesson(NamedTuple):
    """A predicted time that will be compared with the measured time."""

    model: str
    place: Place
    epoch: int
    expected: float
    base: float
    learned: float
    """Learned median; NaN if the prediction was not sure."""
    p90: float
    """Learned p90; NaN if the prediction was not sure."""


class LatencyLearner:
    """Learns the quantiles of both times for each model, from measured responses."""

    def __init__(self) -> None:
        self._models: dict[str, dict[Kind, LatencyQuantiles]] = {}
        self._epochs: Counter[int] = Counter()
        """Epoch of each slot; it changes with the endpoint of the slot."""

    def predict(self, kind: Kind, model: str, candidates: Candidates, expected: Expected, now: float) -> Outlook:
        """Return predicted times for the candidates: the expected times until there are enough samples."""
        name = model if model in self._models or len(self._models) < _MOST_MODELS else _OTHER
        known, slots = self._models.get(name), candidates.slots
        if known is None:
            nothing, seconds = np.zeros(len(slots)), expected.seconds
            found = QuantilePrediction(seconds, seconds, nothing > 0, nothing, nothing)
        else:
            found = known[kind].predict(
                candidates.snapshot, slots, expected.buckets, base=expected.base, expected=expected.seconds, now=now
            )
        return Outlook(name, slots, expected, found)

    def lesson(self, outlook: Outlook, snapshot: Snapshot, slot: int) -> Lesson | None:
        """Return the prediction for a slot, to learn from; None if the slot was not a candidate."""
        at = np.flatnonzero(outlook.slots == slot)
        if not len(at):
            return None
        (model, _, expected, found), index = outlook, at.item(0)
        is_sure = found.sure.item(index)
        return Lesson(
            model,
            Place(slot, snapshot.records(ACCELERATOR).values[slot].primary_class, expected.buckets.item(index)),
            self._epochs[slot],
            expected.seconds.item(index),
            expected.base.item(index),
            expected.base.item(index) * found.ratio.item(index) if is_sure else nan,
            found.p90.item(index) if is_sure else nan,
        )

    def learn(self, kind: Kind, lesson: Lesson, seconds: float) -> None:
        if self._epochs[lesson.place.slot] != lesson.epoch or not isfinite(lesson.base) or lesson.base <= 0:
            return
        model = self._models.get(lesson.model)
        if model is None:
            model = self._models[lesson.model] = {each: LatencyQuantiles() for each in _KINDS}
        model[kind].learn(lesson.place, base=lesson.base, measured=seconds)
        if isfinite(lesson.learned):
            model[kind].compare(seconds, lesson.expected, lesson.learned)

    def forget(self, slots: Sequence[int]) -> None:
        self._epochs.update(slots)
        for model in self._models.values():
            for quantiles in model.values():
                quantiles.forget(slots)

    def dump(self, snapshot: Snapshot) -> dict[str, object]:
        """Return samples and errors by model, for at most 100 endpoints."""
        return {
            name: {
                "meanErrorSeconds": {
                    kind: dict(zip(("rates", "learned"), each.errors, strict=True)) for kind, each in model.items()
                },
                "samples": endpoint_state(
                    snapshot, {kind: each.samples(snapshot.capacity) for kind, each in model.items()}
                ),
            }
            for name, model in self._models.items()
        }
