# SPDX-License-Identifier: Apache-2.0
"""Rates of every slot, from profiles, learned ratios, and the hardware and engine of the slot."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from epp.framework import ACCELERATOR, AcceleratorTag, Endpoint, Floats, Mask, Records, Snapshot
from epp.framework.accelerators.tag import BOOT_ID, POD_UID
from epp.framework.arrays import any_true
from epp.framework.rates import EndpointRates
from epp.plugins.endpoint_rates.learning import FREE, fill_unlearned, median
from epp.plugins.endpoint_rates.profiles import Hardware, KindRates, hardware_of, plain_key

EMPTY = Hardware()
_MOST_FORMER = 8
"""Unused kinds that are kept, in addition to twice the number of kinds in use."""


class RateFleet:
    """Kind numbers of endpoints: equal hardware and engine have one number, free slots have 0."""

    def __init__(self, engine_label_key: str, default_engine: str) -> None:
        self._label = engine_label_key
        self._default_engine = default_engine
        self._endpoints: Records[Endpoint | None] = Records(())
        self._tags: Records[AcceleratorTag] = Records(())
        self._hardware = self._pods = self._engines = np.zeros(0, dtype=np.object_)
        """Hardware without the engine, pod identity, and engine name of each slot."""
        self._numbers: dict[Hardware, int] = {}
        """Number of each kind, from 1."""
        self.kinds: NDArray[np.intp] = np.zeros(0, dtype=np.intp)

    @property
    def hardware(self) -> tuple[Hardware, ...]:
        """Hardware of each kind, including kinds without endpoints."""
        return (EMPTY, *self._numbers)

    def is_current(self, snapshot: Snapshot) -> bool:
        """Return whether the kinds are those of the snapshot."""
        return snapshot.endpoints is self._endpoints and snapshot.records(ACCELERATOR) is self._tags

    def follow(self, snapshot: Snapshot) -> list[int]:
        """Update to the snapshot; return the slots whose endpoint left, was replaced or has other hardware.

        A new pod of the same name and a reboot of the node count as replacements. Changes of a tag that do not affect
        rates, such as its price or state, do not count.
        """
        endpoints, tags = snapshot.endpoints, snapshot.records(ACCELERATOR)
        hardware = tags.derive_objects(_hardware_of)
        pods = tags.derive_objects(_pod_of)
        engines = endpoints.derive_objects(_engine_of, self._label, self._default_engine)
        values, previous = endpoints.values, self._endpoints.values
        capacity, former = len(values), len(previous)
        touched: Sequence[int] = range(capacity)
        if former:
            touched = sorted({*endpoints.changed_since(previous), *tags.changed_since(self._tags.values)})
        changed = [slot for slot in range(capacity, former) if previous[slot] is not None]
        changed += [
            slot
            for slot in touched
            if slot < former
            and (before := previous[slot]) is not None
            and (
                (now := values[slot]) is None
                or now.hostport != before.hostport
                or now.id != before.id
                or engines[slot] != self._engines[slot]
                or hardware[slot] != self._hardware[slot]
                or _is_another_pod(pods[slot], self._pods[slot])
            )
        ]
        kinds = np.zeros(capacity, dtype=np.intp)
        kinds[:former] = self.kinds[:capacity]
        kinds[touched] = 0
        taken = [slot for slot in touched if values[slot] is not None]
        kinds[taken] = self._kinds_of(hardware[taken].tolist(), engines[taken].tolist())
        self._endpoints, self._tags = endpoints, tags
        self._hardware, self._pods, self._engines = hardware, pods, engines
        self.kinds = kinds
        if len(self._numbers) > _MOST_FORMER and len(self._numbers) > _MOST_FORMER + 2 * len(np.unique(kinds)):
            self._renumber()
        return changed

    def _kinds_of(self, fleet: Iterable[Hardware], engines: Iterable[str]) -> list[int]:
        """Return the number for each hardware and its engine."""
        numbers: dict[tuple[int, str], int] = {}
        found = []
        for hardware, engine in zip(fleet, engines, strict=True):
            kind = numbers.get((id(hardware), engine))
            if kind is None:
                kind = self._numbers.setdefault(hardware._replace(engine=engine), len(self._numbers) + 1)
                numbers[id(hardware), engine] = kind
            found.append(kind)
        return found

    def _renumber(self) -> None:
        """Drop kinds without endpoints."""
        hardware, used = self.hardware, np.unique(self.kinds[self.kinds > 0])
        self._numbers = {hardware[kind]: number for number, kind in enumerate(used.tolist(), 1)}
        self.kinds = np.where(self.kinds > 0, np.searchsorted(used, self.kinds) + 1, 0)


def _engine_of(endpoint: Endpoint | None, label: str, default: str) -> str:
    return "" if endpoint is None else plain_key(endpoint.labels.get(label, default))


def _hardware_of(tag: AcceleratorTag) -> Hardware:
    return _interned(hardware_of(tag, ""))


def _pod_of(tag: AcceleratorTag) -> tuple[str, str]:
    """Return the boot of the node and the UID of the pod; empty if unknown."""
    return str(tag.attributes.get(BOOT_ID, "")), str(tag.attributes.get(POD_UID, ""))


@lru_cache
def _interned(hardware: Hardware) -> Hardware:
    """Return one object for equal values: many endpoints share a few kinds."""
    return hardware


def _is_another_pod(now: tuple[str, str], before: tuple[str, str]) -> bool:
    """Return whether the pod or the boot of its node changed; unknown values count as unchanged."""
    return any(one != other and one and other for one, other in zip(now, before, strict=True))


Learned = tuple[Floats, NDArray[np.intp]]
"""Logarithms of ratios and numbers of samples, as `RateLearner.learned` returns them."""


class InitialRates(NamedTuple):
    """Rates of one model before learning: arrays by slot, and the rates of each kind of hardware."""

    by_kind: Sequence[KindRates]
    kinds: NDArray[np.intp]
    prefill_tokens_per_second: Floats
    itl_base_seconds: Floats
    itl_seconds_per_request: Floats
    ttft_base_seconds: Floats
    ttft_seconds_per_token: Floats

    @classmethod
    def of(cls, by_kind: Sequence[KindRates], kinds: NDArray[np.intp]) -> Self:
        """Return the rates of slots of these kinds."""
        rates = np.array([one[:5] for one in by_kind], dtype=np.float64)  # the numbers among the fields
        return cls(by_kind, kinds, *rates.T.take(kinds, axis=1))


def estimate(
    initial: InitialRates,
    prefill: Learned,
    itl: Learned,
    *,
    output_tokens: float,
    places: Floats | None,
) -> EndpointRates:
    """Return the rates of all slots.

    A rate is the initial rate times the ratio learned for the slot, else for its kind, else for all. Kinds without a
    profile or samples get the median of the other slots.
    """
    prefill_log, prefill_samples = prefill
    itl_log, itl_samples = itl
    kinds = initial.kinds
    rate = initial.prefill_tokens_per_second * np.exp(fill_unlearned(prefill_log, kinds))
    slowdown = np.exp(-fill_unlearned(itl_log, kinds))
    prefill_known = _known([one.prefill_known for one in initial.by_kind], kinds, prefill_samples)
    itl_known = _known([one.itl_known for one in initial.by_kind], kinds, itl_samples)
    return EndpointRates(
        prefill_tokens_per_second=_with_median(rate, prefill_known, kinds),
        itl_base_seconds=_with_median(initial.itl_base_seconds * slowdown, itl_known, kinds),
        itl_seconds_per_request=_with_median(initial.itl_seconds_per_request * slowdown, itl_known, kinds),
        ttft_base_seconds=initial.ttft_base_seconds,
        ttft_seconds_per_token=initial.ttft_seconds_per_token,
        kinds=kinds,
        sources=tuple(
            zip(
                _sources([one.prefill_source for one in initial.by_kind], prefill_known, kinds, prefill_samples),
                _sources([one.itl_source for one in initial.by_kind], itl_known, kinds, itl_samples),
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
        source + suffix if is_known or not median_of_others else "median of the pool"
        for source, is_known in zip(sources, known.tolist(), strict=True)
    ]
