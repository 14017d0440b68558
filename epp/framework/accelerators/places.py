# SPDX-License-Identifier: Apache-2.0
"""Nodes and devices that endpoints share, and the closeness of their devices.

Closeness is `25 * (3 - tier) + intra * 24 / 100`, 0..99, with the tiers 0 direct link, 1 same NUMA node, 2 across NUMA
nodes, 3 unknown, and `intra`, 0..100, for differences within a tier.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epp.framework.accelerators.tag import ROW, AcceleratorTag
from epp.framework.arrays import Floats, Mask, Positions
from epp.framework.candidates import Candidates
from epp.framework.snapshot import ACCELERATOR, IN_FLIGHT, RUNNING, WAITING, Snapshot


def node_numbers(snapshot: Snapshot) -> Positions:
    """Return the number of each slot's node; each unknown node has its own number."""
    return snapshot.records(ACCELERATOR).derive(_node_numbers)


def known_nodes(snapshot: Snapshot) -> Mask:
    return snapshot.records(ACCELERATOR).derive_mask(_is_known)


class DeviceUse(NamedTuple):
    """Pairs of slots and devices that they use, without slots with unknown devices."""

    slots: Positions
    devices: Positions
    """Number of the physical device."""


def device_use(snapshot: Snapshot) -> DeviceUse:
    """Return the physical devices that the endpoints of all slots use."""
    return snapshot.records(ACCELERATOR).derive(_device_use)


def requests_on_node(snapshot: Snapshot) -> Floats:
    """Return the requests at all endpoints on the node of each slot."""
    nodes = node_numbers(snapshot)
    on_node: Floats = np.bincount(nodes, weights=_requests(snapshot)).astype(np.float64)[nodes]
    return on_node


def requests_on_device(snapshot: Snapshot) -> Floats:
    """Return the requests at all endpoints on the busiest device of each slot; its own if its devices are unknown."""
    use, requests = device_use(snapshot), _requests(snapshot)
    busiest = requests.copy()
    if len(use.slots):
        np.maximum.at(busiest, use.slots, np.bincount(use.devices, weights=requests[use.slots])[use.devices])
    return busiest


def _requests(snapshot: Snapshot) -> Floats:
    """Return the requests at each slot: own requests in flight, or the reported ones if more; 0 for free slots."""
    engine = snapshot.column(WAITING) + snapshot.column(RUNNING)
    found = np.zeros(snapshot.capacity)
    found[snapshot.slots] = np.fmax(engine, snapshot.column(IN_FLIGHT))[snapshot.slots]
    return found


def _node_numbers(tags: tuple[AcceleratorTag, ...]) -> Positions:
    keys = np.fromiter((tag.sites.node for tag in tags), dtype=np.int64, count=len(tags))
    unknown = keys == 0
    keys[unknown] = np.flatnonzero(unknown) + 1
    return np.unique(keys, return_inverse=True)[1]


def _is_known(tag: AcceleratorTag) -> bool:
    return bool(tag.node)


def _device_use(tags: tuple[AcceleratorTag, ...]) -> DeviceUse:
    used = [tag.sites.used for tag in tags]
    keys = np.frombuffer(b"".join(used), dtype=np.int64)
    counts = np.fromiter(map(len, used), dtype=np.intp, count=len(used)) // keys.itemsize
    return DeviceUse(np.repeat(np.arange(len(used)), counts), np.unique(keys, return_inverse=True)[1])


DIRECT, SAME_NUMA, CROSS_NUMA, UNKNOWN_TIER = range(4)
CLOSEST = 99.0
"""Closeness of a device to itself."""

_PER_TIER, _WITHIN_TIER = 25.0, 24.0
_UNKNOWN = 0
_LINK = np.dtype([("start", np.int64), ("end", np.int64), ("tier", np.float64), ("bandwidth", np.float64)])

_Keys = NDArray[np.int64]


def closeness_of(tier: int, intra: float = 0.0) -> float:
    """Return the closeness for a tier, 0..3, and a value within it, 0..100."""
    return _PER_TIER * (UNKNOWN_TIER - tier) + intra * _WITHIN_TIER / 100


def tiers_of(closeness: Floats) -> Floats:
    return UNKNOWN_TIER - np.floor(closeness / _PER_TIER)


def device_closeness(candidates: Candidates, peer: int) -> Floats:
    """Return the closeness of each candidate to the endpoint of the slot `peer`, 0..99.

    Each device is compared with the closest device of the peer, and the farthest device determines the result: 99 for
    the same device; 75 or more for a direct link, by its share of the highest bandwidth; 75 for the same clique, 74 for
    the same PCIe root, 50 for the same NUMA node, 25 for two NUMA nodes of one node, 24 for the same node, otherwise 0.
    """
    records = candidates.snapshot.records(ACCELERATOR)
    return records.derive(records.derive(_devices).closeness_to, peer)[candidates.slots]


def shared_devices(candidates: Candidates, peer: int) -> tuple[Mask, Mask]:
    """Mark the candidates that share a PCIe root, and an NVLink clique or compute domain, with the endpoint of a slot.

    One pair of devices that share it is enough.
    """
    devices = candidates.snapshot.records(ACCELERATOR).derive(_devices)
    roots, cliques = devices.sharing(peer, "root"), devices.sharing(peer, "clique", "domain")
    return roots[candidates.slots], cliques[candidates.slots]


@dataclass(frozen=True, slots=True, eq=False, repr=False)  # a key of memos
class _Devices:
    """Devices of all slots, one row each, in order of the slots; a slot without known devices has one row."""

    capacity: int
    slots: Positions
    places: Mapping[str, _Keys]
    """Key of the place of each row, 0 if unknown, by the names in ROW."""
    links: NDArray[np.void]
    linked: Floats
    """Closeness of each link."""

    def closeness_to(self, _tags: tuple[AcceleratorTag, ...], slot: int) -> Floats:
        """Return the closeness of all slots to one, as `device_closeness` defines it."""
        own = np.flatnonzero(self.slots == slot)
        by_link = self._links_of(_known(self.places["device"][own]))
        near = self._rows_at(own, *ROW)
        for device in by_link:
            near |= self.places["device"] == device
        rows = np.flatnonzero(self._slots_with(near)[self.slots])  # all others are 0
        places = {name: keys[rows] for name, keys in self.places.items()}
        closest = np.zeros(len(rows))
        for row in own.tolist():
            np.maximum(closest, _closeness(places, {k: keys[row] for k, keys in self.places.items()}), out=closest)
        for device, closeness in by_link.items():
            there = places["device"] == device
            closest[there] = np.maximum(closest[there], closeness)
        found = np.zeros(self.capacity)
        slots, starts = np.unique(self.slots[rows], return_index=True)
        if len(slots):
            found[slots] = np.minimum.reduceat(closest, starts)
        return found

    def sharing(self, slot: int, *names: str) -> Mask:
        """Mark the slots with a device at the same place as a device of the slot, for one of these kinds of places."""
        return self._slots_with(self._rows_at(np.flatnonzero(self.slots == slot), *names))

    def _rows_at(self, own: Positions, *names: str) -> Mask:
        """Mark the rows at the same place as one of these rows."""
        found = np.zeros(len(self.slots), dtype=np.bool_)
        for name in names:
            keys = self.places[name]
            for key in _known(keys[own]):
                found |= keys == key
        return found

    def _slots_with(self, rows: Mask) -> Mask:
        """Mark the slots of these rows."""
        found = np.zeros(self.capacity, dtype=np.bool_)
        found[self.slots[rows]] = True
        return found

    def _links_of(self, devices: set[int]) -> dict[int, float]:
        """Return the closeness of each device with a link to one of these devices."""
        found: dict[int, float] = {}
        for near, far in (("start", "end"), ("end", "start")):
            for device in devices:
                which = np.flatnonzero(self.links[near] == device)
                for other, closeness in zip(self.links[far][which].tolist(), self.linked[which].tolist(), strict=True):
                    found[other] = max(closeness, found.get(other, 0.0))
        return found


def _closeness(places: Mapping[str, _Keys], to: Mapping[str, np.int64]) -> Floats:
    """Return the closeness of several devices to one device, without links."""

    def shared(name: str) -> Mask:
        mask: Mask = (places[name] == to[name]) & (places[name] != _UNKNOWN)
        return mask

    numas_known = (places["numa"] != _UNKNOWN) & (to["numa"] != _UNKNOWN)
    on_node = np.where(numas_known, closeness_of(CROSS_NUMA), closeness_of(UNKNOWN_TIER, 100))
    found = np.where(shared("node"), on_node, 0.0)
    for name, closeness in (
        ("numa", closeness_of(SAME_NUMA)),
        ("root", closeness_of(SAME_NUMA, 100)),
        ("clique", closeness_of(DIRECT)),
        ("domain", closeness_of(DIRECT)),
        ("device", CLOSEST),
    ):
        found[shared(name)] = closeness
    return found


def _known(keys: _Keys) -> set[int]:
    return set(keys.tolist()) - {_UNKNOWN}


def _devices(tags: tuple[AcceleratorTag, ...]) -> _Devices:
    sites = [tag.sites for tag in tags]
    keys = np.frombuffer(b"".join(each.rows for each in sites), dtype=np.int64).reshape(-1, len(ROW))
    sizes = np.fromiter((len(each.rows) for each in sites), dtype=np.intp, count=len(sites))
    slots = np.repeat(np.arange(len(sites)), sizes // (len(ROW) * keys.itemsize))
    links = np.frombuffer(b"".join(each.links for each in sites), dtype=_LINK)
    shares = links["bandwidth"] / (links["bandwidth"].max(initial=0.0) or 1.0)
    linked = _PER_TIER * (UNKNOWN_TIER - links["tier"]) + shares * _WITHIN_TIER
    return _Devices(len(tags), slots, dict(zip(ROW, keys.T.copy(), strict=True)), links, linked)
