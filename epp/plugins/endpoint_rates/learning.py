"""Learns how many times as fast as expected each endpoint is, from what was seen of it lately."""

from collections import deque
from math import log
from statistics import median

import numpy as np
from numpy.typing import NDArray

from epp.framework import Floats

_LARGEST_LOG_RATIO = log(1e4)
_LEAST_TRUST = 0.25


class RateLearner:
    """For each slot the median of the last `window` ratios of seen to expected rate; medians bear half of them wrong.

    What was learned is trusted by `0.5 ** (age / half_life_seconds)`, age being that of the last sample: the ratio's
    logarithm is multiplied by it. Fewer than `min_samples`, and a trust below 1/4, count as nothing learned.
    """

    __slots__ = ("_counts", "_half_life", "_last", "_logs", "_min_samples", "_recent", "_stays", "_window", "version")

    def __init__(self, *, half_life_seconds: float, min_samples: int, window: int) -> None:
        self._half_life = half_life_seconds
        self._min_samples = min_samples
        self._window = window
        self._recent: dict[int, deque[float]] = {}
        self._stays: dict[int, int] = {}
        self._logs: Floats = np.zeros(0)
        self._last: Floats = np.zeros(0)
        self._counts: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self.version = 0
        """Grows with everything learned or forgotten."""

    def stay(self, slot: int) -> int:
        """Return a number that is another after the slot was forgotten."""
        return self._stays.get(slot, 0)

    def add(self, slot: int, stay: int, ratio: float, now: float) -> None:
        """Learn from one sample; one of an earlier stay, and one that is no positive number, changes nothing."""
        if stay != self.stay(slot) or not 0.0 < ratio < np.inf:
            return
        self._reach(slot + 1)
        recent = self._recent.setdefault(slot, deque(maxlen=self._window))
        if recent and self._trust(now - self._last[slot]) < _LEAST_TRUST:
            recent.clear()
            self._counts[slot] = 0
        recent.append(min(max(log(ratio), -_LARGEST_LOG_RATIO), _LARGEST_LOG_RATIO))
        self._logs[slot] = median(recent)
        self._last[slot] = now
        self._counts[slot] += 1
        self.version += 1

    def forget(self, slot: int) -> None:
        """Unlearn the slot: another endpoint, or other hardware, is there."""
        self._stays[slot] = self.stay(slot) + 1
        self._recent.pop(slot, None)
        if slot < len(self._counts):
            self._counts[slot] = 0
        self.version += 1

    def learned(self, capacity: int, now: float) -> tuple[Floats, NDArray[np.intp]]:
        """Return logarithms of ratios and numbers of samples of so many slots; NaN and 0 where nothing is learned."""
        self._reach(capacity)
        trust = self._trust(now - self._last[:capacity])
        usable = (self._counts[:capacity] >= self._min_samples) & (trust >= _LEAST_TRUST)
        logs = np.where(usable, self._logs[:capacity] * trust, np.nan)
        return logs, np.where(usable, self._counts[:capacity], 0)

    def _trust(self, age_seconds: Floats | float) -> Floats:
        return np.exp2(-np.asarray(age_seconds) / self._half_life)

    def _reach(self, length: int) -> None:
        missing = length - len(self._counts)
        if missing > 0:
            self._logs = np.pad(self._logs, (0, missing))
            self._last = np.pad(self._last, (0, missing))
            self._counts = np.pad(self._counts, (0, missing))


def like_the_others(logs: Floats, kinds: NDArray[np.intp]) -> Floats:
    """Return the logarithms, with those not learned replaced by the median of their kind, or else of all; 0 for none.

    So an endpoint that nothing is known of yet is not shunned, or overrun, for a profile that is wrong for all of them.
    """
    learned = ~np.isnan(logs)
    if learned.all() or not learned.any():
        return logs if learned.all() else np.zeros(len(logs))
    typical = np.full(int(kinds.max()) + 1, np.median(logs[learned]))
    for kind in np.unique(kinds[learned]):
        typical[kind] = np.median(logs[learned & (kinds == kind)])
    return np.where(learned, logs, typical[kinds])
