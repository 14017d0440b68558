# SPDX-License-Identifier: Apache-2.0
"""Track the hardware and engine of each slot, and the slots where they changed."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epp.framework import ACCELERATOR, AcceleratorTag, Endpoint, Records, Snapshot
from epp.framework.accelerators.tag import BOOT_ID, POD_UID
from epp.plugins.endpoint_rates.profiles import Hardware, hardware_of, plain_key

EMPTY = Hardware()
_MOST_FORMER = 8
"""Kinds without endpoints that are kept, in addition to twice the number of kinds in use."""


class _Accelerator(NamedTuple):
    """Hardware without an engine, and identity of its node's boot and its pod; empty if unknown."""

    hardware: Hardware
    boot: str
    pod: str

    @classmethod
    def of(cls, tag: AcceleratorTag) -> "_Accelerator":
        return cls(hardware_of(tag, ""), str(tag.attributes.get(BOOT_ID, "")), str(tag.attributes.get(POD_UID, "")))


class _Inhabitant(NamedTuple):
    """The endpoint of a slot."""

    address: str
    id: str
    hardware: Hardware
    boot: str
    pod: str

    def replaces(self, before: "_Inhabitant") -> bool:
        """Return whether samples of `before` are void; an unknown boot or pod counts as the same."""
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
        """By slot."""
        self._numbers: dict[Hardware, int] = {}
        """Number of each kind, from 1."""
        self.kinds: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        """By slot."""

    @property
    def hardware(self) -> tuple[Hardware, ...]:
        """By kind; includes kinds that no endpoint has any more."""
        return (EMPTY, *self._numbers)

    def is_of(self, snapshot: Snapshot) -> bool:
        """Return whether it is up to date with the snapshot."""
        return snapshot.endpoints is self._endpoints and snapshot.records(ACCELERATOR) is self._tags

    def follow(self, snapshot: Snapshot) -> list[int]:
        """Update to the snapshot; return the slots whose endpoint left, was replaced or has other hardware.

        A new pod of the same name and a reboot of the node count as replacements. Changes of a tag that do not affect
        rates, such as its price or state, do not count.
        """
        endpoints, tags = snapshot.endpoints, snapshot.records(ACCELERATOR)
        accelerators = tags.derive_objects(_Accelerator.of)
        capacity, former = len(endpoints.values), len(self._inhabitants)
        touched: Sequence[int] = range(capacity)
        if former and len(self._numbers) <= _MOST_FORMER + 2 * len(np.unique(self.kinds)):
            changed = (*endpoints.changed_since(self._endpoints.values), *tags.changed_since(self._tags.values))
            touched = sorted(set(changed))
        else:
            self._numbers = {}
        replaced = [slot for slot in range(capacity, former) if self._inhabitants[slot] is not None]
        missing = max(0, capacity - former)
        inhabitants = self._inhabitants[:capacity] + [None] * missing
        kinds = np.pad(self.kinds[:capacity], (0, missing))
        for slot in touched:
            before, now = inhabitants[slot], self._inhabitant(endpoints.values[slot], accelerators[slot])
            if before is not None and (now is None or now.replaces(before)):
                replaced.append(slot)
            inhabitants[slot] = now
            kinds[slot] = 0 if now is None else self._numbers.setdefault(now.hardware, len(self._numbers) + 1)
        self._endpoints, self._tags, self._inhabitants, self.kinds = endpoints, tags, inhabitants, kinds
        return replaced

    def _inhabitant(self, endpoint: Endpoint | None, accelerator: _Accelerator) -> _Inhabitant | None:
        if endpoint is None:
            return None
        engine = plain_key(endpoint.labels.get(self._label, self._default_engine))
        hardware = accelerator.hardware._replace(engine=engine)
        return _Inhabitant(endpoint.hostport, endpoint.id, hardware, accelerator.boot, accelerator.pod)
