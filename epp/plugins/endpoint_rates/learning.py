# SPDX-License-Identifier: Apache-2.0
"""Learn rates and batch limits from responses and metrics, and combine them with the rates of profiles."""

from collections import deque
from collections.abc import Sequence
from math import inf, log
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from epp.framework import Floats, Mask
from epp.framework.arrays import any_true, highest
from epp.framework.rates import EndpointRates
from epp.plugins.endpoint_rates.profiles import KindRates

_LARGEST_LOG_RATIO = log(1e4)
_LEAST_TRUST = 0.25
_LONGEST_PAUSE = 2.0
"""Half-lives after which trust falls to `_LEAST_TRUST`."""
FREE = 0
"""Kind of free slots."""


Learned: TypeAlias = tuple[Floats, NDArray[np.intp]]
"""Logarithms of ratios and numbers of samples, by slot."""


class RateLearner:
    """The median, for each slot, of the last `window` ratios of observed to expected rate, robust to outliers.

    The logarithm of the ratio is multiplied by a trust of `0.5 ** (age / half_life_seconds)`, with the age of the last
    sample. Slots with fewer than `min_samples`, or a trust below 1/4, count as not learned.
    """

    __slots__ = ("_counts", "_half_life", "_last", "_logs", "_min_samples", "_new", "_recent", "_window", "has_learned")

    def __init__(self, *, half_life_seconds: float, min_samples: int, window: int) -> None:
        self._half_life = half_life_seconds
        self._min_samples = min_samples
        self._window = window
        self._recent: dict[int, deque[float]] = {}
        self._new: set[int] = set()
        """Slots with new samples since their median was computed; many responses arrive between two updates."""
        self._logs = self._last = self._counts = np.zeros(0)
        """By slot: logarithm of the median, time of the last sample, number of samples."""
        self.has_learned = False
        """Whether there ever was a sample."""

    def add(self, slot: int, ratio: float, now: float) -> None:
        """Add a sample, unless it is not positive and finite."""
        if not 0.0 < ratio < inf:
            return
        recent = self._recent.get(slot)
        if recent is None:
            self._reach(slot + 1)
            recent = self._recent[slot] = deque(maxlen=self._window)
        if recent and now - self._last.item(slot) > _LONGEST_PAUSE * self._half_life:
            recent.clear()
            self._counts[slot] = 0
        recent.append(min(max(log(ratio), -_LARGEST_LOG_RATIO), _LARGEST_LOG_RATIO))
        self._last[slot] = now
        self._counts[slot] += 1
        self._new.add(slot)
        self.has_learned = True

    def forget(self, *slots: int) -> None:
        """Drop the samples of slots whose endpoint or hardware changed."""
        for slot in self._recent.keys() & slots:
            del self._recent[slot]
            self._logs[slot] = self._last[slot] = self._counts[slot] = 0.0
        self._new.difference_update(slots)

    def learned(self, capacity: int, now: float) -> Learned:
        """Return logarithms of ratios and sample counts of the first `capacity` slots; NaN and 0 if not learned."""
        self._reach(capacity)
        for slot in self._new:
            self._logs[slot] = _middle(sorted(self._recent[slot]))
        self._new.clear()
        counts = self._counts[:capacity]
        trust = np.exp2((self._last[:capacity] - now) / self._half_life)
        usable = (counts >= self._min_samples) & (trust >= _LEAST_TRUST)
        return np.where(usable, self._logs[:capacity] * trust, np.nan), np.where(usable, counts, 0).astype(np.intp)

    def _reach(self, length: int) -> None:
        missing = length - len(self._counts)
        if missing > 0:
            self._logs, self._last, self._counts = (
                np.pad(column, (0, missing)) for column in (self._logs, self._last, self._counts)
            )


def median(values: Floats) -> float:
    """Return the median of some numbers; raises IndexError for none. A fast `np.median`."""
    return _middle(np.sort(values).tolist())


def _middle(ordered: Sequence[float]) -> float:
    """Return the middle number, or the mean of the two middle numbers."""
    count = len(ordered)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def like_the_others(logs: Floats, kinds: NDArray[np.intp]) -> Floats:
    """Return the logarithms with NaN replaced by the median of their kind, else of all; 0 if all are NaN.

    A wrong profile thus neither starves nor overloads a new endpoint. Free slots get 0.
    """
    unlearned = np.isnan(logs)
    learned = ~unlearned
    if not any_true(learned):
        return np.zeros(len(logs))
    others = kinds[unlearned]
    if not len(others) or highest(others) == FREE:
        return np.where(learned, logs, 0.0)
    typical = np.full(int(highest(kinds)) + 1, median(logs[learned]))
    for kind in np.unique(others).tolist():
        theirs = logs[learned & (kinds == kind)]
        if len(theirs):
            typical[kind] = median(theirs)
    typical[FREE] = 0.0
    return np.where(learned, logs, typical[kinds])


_SIGHTINGS = 5
"""Reports of a queue behind the largest batch so far, after which that batch is the limit. One report is not enough:
an engine with free places also queues briefly while it computes a prompt."""


class PlacesLearner:
    """Learns the places in the batch of each slot: the largest batch, once several reports show a queue behind it."""

    __slots__ = ("_by_slot", "has_learned")

    def __init__(self) -> None:
        self._by_slot: Floats = np.zeros((3, 0))
        """Largest batch, reports of a queue behind it, time of the last report."""
        self.has_learned = False
        """Whether the places of any slot ever were known."""

    def update(self, running: Floats, waiting: Floats, reported_at: Floats) -> None:
        """Update from the batches and queues of all slots, NaN if unknown; each report counts once."""
        missing = len(running) - self._by_slot.shape[1]
        if missing > 0:
            added = np.tile([[0.0], [0.0], [-inf]], missing)
            self._by_slot = np.concatenate((self._by_slot, added), axis=1)
        largest, sightings, known_at = self._by_slot[:, : len(running)]  # views, changed in place
        sightings[running > largest] = 0
        np.fmax(largest, running, out=largest)
        is_new = reported_at > known_at
        np.fmax(known_at, reported_at, out=known_at)
        sightings[is_new & (waiting > 0) & (running > 0) & (running == largest)] += 1
        self.has_learned |= any_true(sightings >= _SIGHTINGS)

    def learned(self, capacity: int) -> Floats | None:
        """Return the places of the first `capacity` slots, infinite if not learned; None without any learned slot."""
        largest, sightings, _ = self._by_slot[:, :capacity]
        known = sightings >= _SIGHTINGS
        if not any_true(known):
            return None
        places = np.full(capacity, np.inf)
        places[: len(known)][known] = largest[known]
        return places

    def forget(self, *slots: int) -> None:
        """Drop the places of slots whose endpoint or hardware changed."""
        self._by_slot[:2, [slot for slot in slots if slot < self._by_slot.shape[1]]] = 0.0


def estimate(
    by_kind: Sequence[KindRates],
    kinds: NDArray[np.intp],
    prefill: Learned,
    itl: Learned,
    *,
    output_tokens: float,
    places: Floats | None,
) -> EndpointRates:
    """Return the rates of all slots, whose `kinds` have these rates before learning.

    A rate is the initial rate times the ratio learned for the slot, else for its kind, else for all. Kinds without a
    profile or samples get the median of the other slots.
    """
    prefill_log, prefill_samples = prefill
    itl_log, itl_samples = itl

    def initial(name: str) -> Floats:
        return np.array([getattr(one, name) for one in by_kind], dtype=np.float64)[kinds]

    rate = initial("prefill_tokens_per_second") * np.exp(like_the_others(prefill_log, kinds))
    slowdown = np.exp(-like_the_others(itl_log, kinds))
    prefill_known = _known([one.prefill_known for one in by_kind], kinds, prefill_samples)
    itl_known = _known([one.itl_known for one in by_kind], kinds, itl_samples)
    return EndpointRates(
        prefill_tokens_per_second=_with_median(rate, prefill_known, kinds),
        itl_base_seconds=_with_median(initial("itl_base_seconds") * slowdown, itl_known, kinds),
        itl_seconds_per_request=_with_median(initial("itl_seconds_per_request") * slowdown, itl_known, kinds),
        ttft_base_seconds=initial("ttft_base_seconds"),
        ttft_seconds_per_token=initial("ttft_seconds_per_token"),
        kinds=kinds,
        sources=tuple(
            zip(
                _sources([one.prefill_source for one in by_kind], prefill_known, kinds, prefill_samples),
                _sources([one.itl_source for one in by_kind], itl_known, kinds, itl_samples),
                strict=True,
            )
        ),
        prefill_samples=prefill_samples,
        itl_samples=itl_samples,
        output_tokens=output_tokens,
        places=places,
    )


def _known(profiled: Sequence[bool], kinds: NDArray[np.intp], samples: NDArray[np.intp]) -> Mask:
    """Mark the kinds that have a profile or samples."""
    known = np.array(profiled, dtype=np.bool_)
    known[kinds[samples > 0]] = True
    known[FREE] = False
    return known


def _with_median(values: Floats, known: Mask, kinds: NDArray[np.intp]) -> Floats:
    """Return the values of slots, with the median of the others for unknown kinds."""
    by_slot = known[kinds]
    if not any_true(~by_slot & (kinds != FREE)) or not any_true(by_slot):
        return values
    return np.where(by_slot, values, median(values[by_slot]))


def _sources(sources: Sequence[str], known: Mask, kinds: NDArray[np.intp], samples: NDArray[np.intp]) -> Sequence[str]:
    """Return, for each kind, the source of the rate of slots without samples."""
    median_of_others = any_true(known[kinds])
    suffix = ", times the ratio learned from others" if any_true(samples > 0) else ""
    return [
        source + suffix if its or not median_of_others else "median of the pool"
        for source, its in zip(sources, known.tolist(), strict=True)
    ]
