# SPDX-License-Identifier: Apache-2.0
"""Learned ratios of endpoints, as payloads for other pickers, and theirs."""

from math import inf, isfinite

import msgspec
import numpy as np

from epp.framework import Snapshot
from epp.framework.sharing import MOST_PAYLOAD_BYTES, slots_by_address
from epp.plugins.endpoint_rates.learning import RateLearner

_ENTRY_BYTES = 100
_MOST_ENTRIES = MOST_PAYLOAD_BYTES // _ENTRY_BYTES
_MOST_SAMPLES = 1_000_000_000
_TELL_SECONDS = 2.0
"""Shortest time between two payloads."""


class _Learned(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Logarithm of the ratio and samples of one endpoint, of prefill and of ITL; 0 samples for nothing learned."""

    address: str
    prefill: tuple[float, int]
    itl: tuple[float, int]

    def __post_init__(self) -> None:
        if not all(isfinite(ratio) and 0 <= samples <= _MOST_SAMPLES for ratio, samples in (self.prefill, self.itl)):
            raise ValueError("learned ratios are not numbers")


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Learned]).decode


class SharedRates:
    """Payloads of a pair of learners, of prefill and of ITL, and for them."""

    __slots__ = ("_learners", "_told", "_told_at")

    def __init__(self, prefill: RateLearner, itl: RateLearner) -> None:
        self._learners = prefill, itl
        self._told = np.zeros((2, 0))
        """Samples that others know of, by slot."""
        self._told_at = -inf

    def take(self, snapshot: Snapshot, now: float) -> bytes | None:
        """Return the ratios with new samples, of at most 327 endpoints; None too soon after the last payload."""
        if now - self._told_at < _TELL_SECONDS:
            return None
        self._told_at = now
        (prefill, of_prefill), (itl, of_itl) = (each.own(snapshot.capacity, now) for each in self._learners)
        samples = np.stack((of_prefill, of_itl))
        self._told = np.pad(self._told, ((0, 0), (0, samples.shape[1] - self._told.shape[1])))
        slots = ((samples != self._told) & (samples > 0)).any(axis=0).nonzero()[0][:_MOST_ENTRIES]
        if not len(slots):
            return None
        self._told[:, slots] = samples[:, slots]
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
        """Teach the ratios of another picker for endpoints of the pool; raises ValueError for an invalid payload."""
        slots, count = snapshot.endpoints.derive(slots_by_address), 0
        for learned in _decode(payload):
            slot = slots.get(learned.address)
            if slot is None:
                continue
            count += 1
            for learner, (ratio, samples) in zip(self._learners, (learned.prefill, learned.itl), strict=True):
                if samples:
                    learner.teach(slot, ratio, samples, now)
        return count
