# SPDX-License-Identifier: Apache-2.0
"""Tracks the hardware and engine of each slot, and the slots where they changed."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epp.framework import ACCELERATOR, AcceleratorTag, Endpoint, Records, Snapshot
from epp.framework.accelerators.tag import BOOT_ID, POD_UID
from epp.plugins.endpoint_rates.table import Hardware, hardware_of

EMPTY = Hardware()
_MOST_FORMER = 8
"""Kinds without an endpoint that are kept beyond as many as there are with one."""


class _Inhabitant(NamedTuple):
    """Identity of an endpoint; boot and pod are empty if unknown."""

    id: str
    hostport: str
    hardware: Hardware
    boot: str
    pod: str

    def is_another_than(self, before: "_Inhabitant") -> bool:
        """Return whether samples of `before` are void for this one; an unknown boot or pod counts as the same."""
        return (
            self[:3] != before[:3]
            or (self.boot != before.boot and "" not in {self.boot, before.boot})
            or (self.pod != before.pod and "" not in {self.pod, before.pod})
        )


class RateFleet:
    """Numbers the kinds of endpoints; free slots have number 0."""

    __slots__ = ("_default_engine", "_endpoints", "_inhabitants", "_label", "_numbers", "_tags", "kinds")

    def __init__(self, engine_label_key: str, default_engine: str) -> None:
        self._label = engine_label_key
        self._default_engine = default_engine
        self._endpoints: Records[Endpoint | None] = Records(())
        self._tags: Records[AcceleratorTag] = Records(())
        self._inhabitants: list[_Inhabitant | None] = []
        self._numbers: dict[Hardware, int] = {}
        """Of all kinds, in order from 1 on."""
        self.kinds: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        """By slot."""

    @property
    def hardware(self) -> tuple[Hardware, ...]:
        """By kind; there may be some that no endpoint is of any more."""
        return (EMPTY, *self._numbers)

    def is_of(self, snapshot: Snapshot) -> bool:
        """Return whether it is up to date with the snapshot."""
        return snapshot.endpoints is self._endpoints and snapshot.records(ACCELERATOR) is self._tags

    def follow(self, snapshot: Snapshot) -> list[int]:
        """Take over the snapshot; return the slots whose endpoint left, was replaced or has other hardware.

        A new pod of the same name and a reboot of the node count as a replacement. Changes of a tag that no rate
        depends on, such as its price or state, do not count.
        """
        endpoints, tags = snapshot.endpoints, snapshot.records(ACCELERATOR)
        records = enumerate(zip(endpoints.values, tags.values, self._endpoints.values, self._tags.values, strict=False))
        touched = [slot for slot, (one, tag, former, its) in records if one is not former or tag is not its]
        capacity, former = len(endpoints.values), len(self._inhabitants)
        touched += range(former, capacity)
        changed = [slot for slot in range(capacity, former) if self._inhabitants[slot] is not None]
        self._inhabitants = self._inhabitants[:capacity] + [None] * (capacity - former)
        self._endpoints, self._tags = endpoints, tags
        kinds = np.zeros(capacity, dtype=np.intp)
        kinds[:former] = self.kinds[:capacity]
        for slot in touched:
            before = self._inhabitants[slot]
            now = self._inhabitants[slot] = self._inhabitant(endpoints.values[slot], tags.values[slot])
            if before is not None and _is_another(now, before):
                changed.append(slot)
            kinds[slot] = 0 if now is None else self._numbers.setdefault(now.hardware, len(self._numbers) + 1)
        self.kinds = kinds
        if len(self._numbers) > _MOST_FORMER + 2 * len(np.unique(kinds)):
            self._number_anew()
        return changed

    def _number_anew(self) -> None:
        """Drop kinds that no endpoint is of any more."""
        hardware, used = self.hardware, np.unique(self.kinds[self.kinds > 0])
        self._numbers = {hardware[kind]: number for number, kind in enumerate(used.tolist(), 1)}
        self.kinds = np.where(self.kinds > 0, np.searchsorted(used, self.kinds) + 1, 0)

    def _inhabitant(self, endpoint: Endpoint | None, tag: AcceleratorTag) -> _Inhabitant | None:
        if endpoint is None:
            return None
        hardware = hardware_of(tag, endpoint.labels.get(self._label, self._default_engine))
        boot, pod = (str(tag.attributes.get(name, "")) for name in (BOOT_ID, POD_UID))
        return _Inhabitant(endpoint.id, endpoint.hostport, hardware, boot, pod)


def _is_another(now: _Inhabitant | None, before: _Inhabitant) -> bool:
    return now is None or now.is_another_than(before)
