# SPDX-License-Identifier: Apache-2.0
"""Rates and batch limits learned from responses and metrics, and from the payloads of other pickers."""

from collections import deque
from collections.abc import Sequence
from math import inf, isfinite, log

import msgspec
import numpy as np
from numpy.typing import NDArray

from epp.framework import Floats, Snapshot
from epp.framework.arrays import any_true, highest
from epp.framework.sharing import MOST_PAYLOAD_BYTES, slots_by_address

_LARGEST_LOG_RATIO = log(1e4)
_LEAST_TRUST = 0.25
_LONGEST_PAUSE = 2.0
"""Half-lives after which trust falls to `_LEAST_TRUST`."""
FREE = 0


class RateLearner:
    """The median, for each slot, of the last `window` ratios of observed to expected rate, robust to outliers.

    The logarithm of the ratio is multiplied by a trust of `0.5 ** (age / half_life_seconds)`, with the age of the last
    sample. Slots with fewer than `min_samples`, or a trust below 1/4, count as not learned.
    """

    def __init__(self, *, half_life_seconds: float, min_samples: int, window: int) -> None:
        self._half_life = half_life_seconds
        self._min_samples = min_samples
        self._window = window
        self._recent: dict[int, deque[float]] = {}
        self._peers: dict[int, tuple[float, int, float]] = {}
        """Logarithm, number of samples and time of the best ratio of other pickers, by slot."""
        self._epochs: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._logs: Floats = np.zeros(0)
        self._last: Floats = np.zeros(0)
        self._counts: NDArray[np.intp] = np.zeros(0, dtype=np.intp)

    def epoch(self, slot: int) -> int:
        """Return the epoch of the slot, which increments on `forget()`."""
        return self._epochs.item(slot) if slot < len(self._epochs) else 0

    def add(self, slot: int, epoch: int, ratio: float, now: float) -> None:
        """Add a sample, unless it is of an earlier epoch, or not positive and finite."""
        if epoch != self.epoch(slot) or not 0.0 < ratio < inf:
            return
        recent = self._recent.get(slot)
        if recent is None:
            self._grow(slot + 1)
            recent = self._recent[slot] = deque(maxlen=self._window)
        elif now - self._last.item(slot) > _LONGEST_PAUSE * self._half_life:
            recent.clear()
            self._counts[slot] = 0
        recent.append(min(max(log(ratio), -_LARGEST_LOG_RATIO), _LARGEST_LOG_RATIO))
        self._last[slot] = now
        self._counts[slot] += 1
        self._logs[slot] = _middle(sorted(recent))

    def forget(self, *slots: int) -> None:
        """Drop the samples of slots whose endpoint or hardware changed."""
        if not slots:
            return
        self._grow(max(slots) + 1)
        positions = list(slots)
        self._epochs[positions] += 1
        self._counts[positions] = 0
        for slot in self._recent.keys() & slots:
            del self._recent[slot]
        for slot in self._peers.keys() & slots:
            del self._peers[slot]

    def learned(self, capacity: int, now: float) -> tuple[Floats, NDArray[np.intp]]:
        """Return logarithms of ratios and sample counts of the first `capacity` slots; NaN and 0 if not learned.

        If another picker has more samples of a slot, its ratio is used.
        """
        logs, counts = self.own_ratios(capacity, now)
        for slot, (ratio, samples, at) in self._peers.items():
            trust = 0.5 ** ((now - at) / self._half_life)
            if slot < capacity and samples > counts[slot] and trust >= _LEAST_TRUST:
                logs[slot], counts[slot] = ratio * trust, samples
        return logs, counts

    def merge(self, slot: int, ratio: float, samples: int, now: float) -> None:
        """Store another picker's ratio, unless a recent one has more samples."""
        known = self._peers.get(slot)
        if known is None or samples >= known[1] or now - known[2] > self._half_life:
            self._peers[slot] = min(max(ratio, -_LARGEST_LOG_RATIO), _LARGEST_LOG_RATIO), samples, now

    def own_ratios(self, capacity: int, now: float) -> tuple[Floats, NDArray[np.intp]]:
        """Return the same from the samples of this picker only."""
        self._grow(capacity)
        trust = np.exp2((self._last[:capacity] - now) / self._half_life)
        usable = (self._counts[:capacity] >= self._min_samples) & (trust >= _LEAST_TRUST)
        logs = np.where(usable, self._logs[:capacity] * trust, np.nan)
        return logs, np.where(usable, self._counts[:capacity], 0)

    def _grow(self, length: int) -> None:
        missing = length - len(self._counts)
        if missing > 0:
            self._logs = np.pad(self._logs, (0, missing))
            self._last = np.pad(self._last, (0, missing))
            self._counts = np.pad(self._counts, (0, missing))
            self._epochs = np.pad(self._epochs, (0, missing))


def median(values: Floats) -> float:
    """Return the median of some numbers; raises IndexError for none. A fast `np.median`."""
    return _middle(np.sort(values).tolist())


def _middle(ordered: Sequence[float]) -> float:
    """Return the middle number, or the mean of the two middle numbers."""
    count = len(ordered)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def fill_unlearned(logs: Floats, kinds: NDArray[np.intp]) -> Floats:
    """Return the logarithms with NaN replaced by the median of their kind, else of all; 0 if all are NaN.

    This keeps a wrong profile from starving or overloading a new endpoint. Free slots get 0.
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
        of_kind = logs[learned & (kinds == kind)]
        if len(of_kind):
            typical[kind] = median(of_kind)
    typical[FREE] = 0.0
    return np.where(learned, logs, typical[kinds])


_QUEUED_REPORTS = 5
"""Reports of a queue behind the largest batch so far, after which that batch counts as the limit. One report is not
enough: an engine with free places also queues briefly while it computes a prompt."""


class PlacesLearner:
    """Learns the places in the batch of each slot: the largest batch, once several reports show a queue behind it."""

    def __init__(self) -> None:
        self._largest: Floats = np.zeros(0)
        self._queued_reports: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._reported_at: Floats = np.zeros(0)

    def update(self, running: Floats, waiting: Floats, reported_at: Floats) -> None:
        """Update from the batches and queues of all slots, NaN if unknown; each report counts once."""
        missing = len(running) - len(self._largest)
        if missing > 0:
            self._largest = np.pad(self._largest, (0, missing))
            self._queued_reports = np.pad(self._queued_reports, (0, missing))
            self._reported_at = np.pad(self._reported_at, (0, missing), constant_values=-np.inf)
        largest, queued_reports = (
            self._largest[: len(running)],
            self._queued_reports[: len(running)],
        )  # views, changed in place
        queued_reports[running > largest] = 0
        np.fmax(largest, running, out=largest)
        known_at = self._reported_at[: len(running)]
        is_new = reported_at > known_at
        np.fmax(known_at, reported_at, out=known_at)
        queued_reports[is_new & (waiting > 0) & (running > 0) & (running == largest)] += 1

    def learned(self, capacity: int) -> Floats | None:
        """Return the places of the first `capacity` slots, infinite if not learned; None without any learned slot."""
        known = self._queued_reports[:capacity] >= _QUEUED_REPORTS
        if not known.any():
            return None
        places = np.full(capacity, np.inf)
        places[: len(known)][known] = self._largest[:capacity][known]
        return places

    def forget(self, *slots: int) -> None:
        """Drop the places of slots whose endpoint or hardware changed."""
        left = np.array(slots, dtype=np.intp)
        known = left[left < len(self._largest)]
        self._largest[known] = 0.0
        self._queued_reports[known] = 0


_ENTRY_BYTES = 100
_MOST_ENTRIES = MOST_PAYLOAD_BYTES // _ENTRY_BYTES
_MOST_SAMPLES = 1_000_000_000
_SEND_SECONDS = 2.0
"""Minimum time between two payloads."""


class _Learned(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Logarithm of the ratio and number of samples, for prefill and ITL of one endpoint; 0 samples if not learned."""

    address: str
    prefill: tuple[float, int]
    itl: tuple[float, int]

    def __post_init__(self) -> None:
        if not all(isfinite(ratio) and 0 <= samples <= _MOST_SAMPLES for ratio, samples in (self.prefill, self.itl)):
            raise ValueError("a learned ratio is not a finite number, or its number of samples is out of range")


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Learned]).decode


class SharedRates:
    """Payloads of the learners of prefill and ITL for other pickers, and the reader of such payloads."""

    def __init__(self, prefill: RateLearner, itl: RateLearner) -> None:
        self._learners = prefill, itl
        self._sent = np.zeros((2, 0))
        """Number of samples sent last, by learner and slot."""
        self._sent_at = -inf

    def take(self, snapshot: Snapshot, now: float) -> bytes | None:
        """Return the ratios with new samples, of at most 327 endpoints; None too soon after the last payload."""
        if now - self._sent_at < _SEND_SECONDS:
            return None
        self._sent_at = now
        (prefill, of_prefill), (itl, of_itl) = (each.own_ratios(snapshot.capacity, now) for each in self._learners)
        samples = np.stack((of_prefill, of_itl))
        self._sent = np.pad(self._sent, ((0, 0), (0, samples.shape[1] - self._sent.shape[1])))
        slots = ((samples != self._sent) & (samples > 0)).any(axis=0).nonzero()[0][:_MOST_ENTRIES]
        if not len(slots):
            return None
        self._sent[:, slots] = samples[:, slots]
        columns = (np.nan_to_num(each)[slots].tolist() for each in (prefill, of_prefill, itl, of_itl))
        endpoints = snapshot.endpoints.values
        return _encode(
            [
                _Learned(endpoint.hostport, (one, count), (other, others))
                for slot, one, count, other, others in zip(slots.tolist(), *columns, strict=True)
                if (endpoint := endpoints[slot]) is not None
            ]
        )

    def apply(self, payload: bytes, snapshot: Snapshot, now: float) -> int:
        """Apply the ratios of another picker to endpoints of the pool; raises ValueError for an invalid payload."""
        slots, count = snapshot.endpoints.derive(slots_by_address), 0
        for learned in _decode(payload):
            slot = slots.get(learned.address)
            if slot is None:
                continue
            count += 1
            for learner, (ratio, samples) in zip(self._learners, (learned.prefill, learned.itl), strict=True):
                if samples:
                    learner.merge(slot, ratio, samples, now)
        return count
