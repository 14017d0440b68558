# SPDX-License-Identifier: Apache-2.0
"""Tracks the hardware and engine of each slot, and the slots where they changed."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epp.framework import ACCELERATOR, AcceleratorTag, Endpoint, Records, Snapshot
from epp.framework.accelerators.tag import BOOT_ID, POD_UID
from epp.plugins.endpoint_rates.table import Hardware, hardware_of

EMPTY = Hardware()


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

    __slots__ = ("_default_engine", "_endpoints", "_inhabitants", "_label", "_tags", "hardware", "kinds")

    def __init__(self, engine_label_key: str, default_engine: str) -> None:
        self._label = engine_label_key
        self._default_engine = default_engine
        self._endpoints: Records[Endpoint | None] = Records(())
        self._tags: Records[AcceleratorTag] = Records(())
        self._inhabitants: list[_Inhabitant | None] = []
        self.hardware: tuple[Hardware, ...] = (EMPTY,)
        """By kind."""
        self.kinds: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        """By slot."""

    def is_of(self, snapshot: Snapshot) -> bool:
        """Return whether it is up to date with the snapshot."""
        return snapshot.endpoints is self._endpoints and snapshot.records(ACCELERATOR) is self._tags

    def follow(self, snapshot: Snapshot) -> list[int]:
        """Take over the snapshot; return the slots whose endpoint left, was replaced or has other hardware.

        A new pod of the same name and a reboot of the node count as a replacement. Changes of a tag that no rate
        depends on, such as its price or state, do not count.
        """
        endpoints, tags = snapshot.endpoints, snapshot.records(ACCELERATOR)
        inhabitants = [
            self._inhabitant(slot, endpoint, tag)
            for slot, (endpoint, tag) in enumerate(zip(endpoints.values, tags.values, strict=True))
        ]
        changed = [
            slot
            for slot, before in enumerate(self._inhabitants)
            if before is not None and _is_another(inhabitants[slot] if slot < len(inhabitants) else None, before)
        ]
        numbers: dict[Hardware, int] = {}
        kinds = [0 if one is None else numbers.setdefault(one.hardware, len(numbers) + 1) for one in inhabitants]
        self._endpoints, self._tags, self._inhabitants = endpoints, tags, inhabitants
        self.hardware = (EMPTY, *numbers)
        self.kinds = np.array(kinds, dtype=np.intp)
        return changed

    def _inhabitant(self, slot: int, endpoint: Endpoint | None, tag: AcceleratorTag) -> _Inhabitant | None:
        if endpoint is None:
            return None
        if slot < len(self._inhabitants) and self._endpoints.values[slot] is endpoint:
            before = self._inhabitants[slot]
            if before is not None and self._tags.values[slot] is tag:
                return before
        hardware = hardware_of(tag, endpoint.labels.get(self._label, self._default_engine))
        boot, pod = (str(tag.attributes.get(name, "")) for name in (BOOT_ID, POD_UID))
        return _Inhabitant(endpoint.id, endpoint.hostport, hardware, boot, pod)


def _is_another(now: _Inhabitant | None, before: _Inhabitant) -> bool:
    return now is None or now.is_another_than(before)
