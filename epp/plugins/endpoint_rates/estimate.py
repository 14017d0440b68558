# SPDX-License-Identifier: Apache-2.0
"""Rates of every slot, from profiles, learned ratios, and the hardware and engine of the slot."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from epp.framework import ACCELERATOR, AcceleratorTag, Endpoint, Floats, Mask, Records, Snapshot
from epp.framework.accelerators.tag import BOOT_ID, POD_UID
from epp.framework.arrays import any_true
from epp.framework.expected_times import EndpointRates
from epp.plugins.endpoint_rates.learning import FREE, fill_unlearned, median
from epp.plugins.endpoint_rates.profiles import Hardware, KindRates, hardware_of, plain_key

EMPTY = Hardware()


class Fleet(NamedTuple):
    """Kinds of the endpoints of a snapshot: equal hardware and engine are one kind, and free slots are of kind 0."""

    endpoints: Records[Endpoint | None]
    tags: Records[AcceleratorTag]
    hardware: tuple[Hardware, ...]
    """Hardware and engine of each kind."""
    kinds: NDArray[np.intp]
    """Kind of each slot."""
    pods: NDArray[np.object_]
    """Pod identity of each slot."""

    @classmethod
    def of(cls, snapshot: Snapshot, engine_label_key: str, default_engine: str) -> Self:
        endpoints, tags = snapshot.endpoints, snapshot.records(ACCELERATOR)
        hardware = tags.derive_objects(_hardware_of)[snapshot.slots].tolist()
        engines = endpoints.derive_objects(_engine_of, engine_label_key, default_engine)[snapshot.slots].tolist()
        pairs = list(zip(map(id, hardware), engines, strict=True))  # by identity, as most equal ones are one object
        numbers: dict[Hardware, int] = {}
        kind_of: dict[tuple[int, str], int] = {}
        for pair, one in dict(zip(pairs, hardware, strict=True)).items():
            kind_of[pair] = numbers.setdefault(one._replace(engine=pair[1]), len(numbers) + 1)
        kinds = np.full(len(endpoints.values), FREE, dtype=np.intp)
        kinds[snapshot.slots] = [kind_of[pair] for pair in pairs]
        return cls(endpoints, tags, (EMPTY, *numbers), kinds, tags.derive_objects(_pod_of))

    def is_of(self, snapshot: Snapshot) -> bool:
        """Return whether the snapshot has the same endpoints and tags."""
        return snapshot.endpoints is self.endpoints and snapshot.records(ACCELERATOR) is self.tags

    def changed_since(self, former: "Fleet") -> list[int]:
        """Return the slots whose endpoint left, was replaced or has other hardware.

        A new pod of the same name and a reboot of the node count as replacements. Changes of a tag that do not affect
        rates, such as its price or state, do not count.
        """
        values, previous = self.endpoints.values, former.endpoints.values
        touched = {*self.endpoints.changed_since(previous), *self.tags.changed_since(former.tags.values)}
        touched.update(range(len(values), len(previous)))
        return [
            slot
            for slot in sorted(touched)
            if slot < len(previous)
            and (before := previous[slot]) is not None
            and (
                slot >= len(values)
                or (now := values[slot]) is None
                or now.hostport != before.hostport
                or now.id != before.id
                or self.hardware[self.kinds[slot]] != former.hardware[former.kinds[slot]]
                or _is_another_pod(self.pods[slot], former.pods[slot])
            )
        ]


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
