# SPDX-License-Identifier: Apache-2.0
"""How close the devices of endpoints are: by direct links, PCIe roots, NUMA nodes and NVLink cliques.

Closeness is `25 * (3 - tier) + intra * 24 / 100`, 0..99, with the tiers 0 direct link, 1 same NUMA node, 2 across NUMA
nodes, 3 unknown, and `intra`, 0..100, for differences within a tier.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from epp.framework.accelerators.tag import CLIQUE, COMPUTE_DOMAIN, AcceleratorTag, Device, DeviceLink
from epp.framework.arrays import Floats, Mask, Positions
from epp.framework.candidates import Candidates
from epp.framework.snapshot import ACCELERATOR

DIRECT, SAME_NUMA, CROSS_NUMA, UNKNOWN_TIER = range(4)
CLOSEST = 99.0
"""Closeness of a device to itself."""

_PER_TIER, _WITHIN_TIER = 25.0, 24.0
_NONE = -1
_NO_DEVICE = Device(id="")


def closeness_of(tier: int, intra: float = 0.0) -> float:
    """Return the closeness for a tier, 0..3, and a value within it, 0..100."""
    return _PER_TIER * (UNKNOWN_TIER - tier) + intra * _WITHIN_TIER / 100


def tiers_of(closeness: Floats) -> Floats:
    """Return the tiers."""
    return UNKNOWN_TIER - np.floor(closeness / _PER_TIER)


def device_closeness(candidates: Candidates, peer: int) -> Floats:
    """Return the closeness of each candidate to the endpoint of a slot, 0..99.

    Of each device, the closest one of the peer counts; of the devices of an endpoint, the one that is farthest off.
    The same device has 99; a direct link 75 or more, by its share of the highest bandwidth; a clique 75; a PCIe root
    74; a NUMA node 50; two NUMA nodes of one node 25; one node 24; everything else 0.
    """
    records = candidates.snapshot.records(ACCELERATOR)
    return records.derive(records.derive(_sites).closeness_to, peer)[candidates.slots]


def shared_devices(candidates: Candidates, peer: int) -> tuple[Mask, Mask]:
    """Mark the candidates that share a PCIe root, and an NVLink clique or compute domain, with the endpoint of a slot.

    One device of each that do is enough.
    """
    sites = candidates.snapshot.records(ACCELERATOR).derive(_sites)
    roots, cliques = np.zeros((2, len(sites.slots)), dtype=np.bool_)
    for row in np.flatnonzero(sites.slots == peer).tolist():
        roots |= _shared(sites.roots, row)
        cliques |= _shared(sites.cliques, row) | _shared(sites.domains, row)
    return (
        np.logical_or.reduceat(roots, sites.starts)[candidates.slots],
        np.logical_or.reduceat(cliques, sites.starts)[candidates.slots],
    )


class Surroundings(NamedTuple):
    """Places that the devices of an endpoint share with those of others; without unknown ones."""

    pcie_roots: frozenset[tuple[str, str, str]]
    """Cluster, node and root."""
    cliques: frozenset[tuple[str, str]]
    """NVLink cliques and compute domains, each with its kind."""

    def share_root(self, other: "Surroundings") -> bool:
        """Return whether two endpoints have devices at one PCIe root."""
        return not self.pcie_roots.isdisjoint(other.pcie_roots)

    def share_clique(self, other: "Surroundings") -> bool:
        """Return whether two endpoints have devices in one NVLink clique or compute domain."""
        return not self.cliques.isdisjoint(other.cliques)


NO_SURROUNDINGS = Surroundings(frozenset(), frozenset())
"""Those of unknown devices."""


def surroundings(candidates: Candidates) -> tuple[Surroundings, ...]:
    """Return the surroundings of the endpoints of all slots."""
    return candidates.snapshot.records(ACCELERATOR).derive(_surroundings)


def _surroundings(tags: tuple[AcceleratorTag, ...]) -> tuple[Surroundings, ...]:
    return tuple(
        Surroundings(
            frozenset((tag.cluster, _node(tag, each), each.pcie_root) for each in tag.devices if each.pcie_root),
            frozenset(_cliques(tag)),
        )
        for tag in tags
    )


def _cliques(tag: AcceleratorTag) -> Iterator[tuple[str, str]]:
    yield from ((CLIQUE, device.clique) for device in tag.devices if device.clique)
    for kind in (CLIQUE, COMPUTE_DOMAIN):
        if name := str(tag.attributes.get(kind, "")):
            yield kind, name


@dataclass(frozen=True, slots=True, eq=False, repr=False)  # a key of memos
class _Sites:
    """Devices of all slots, one row each, in order of the slots; a slot without known devices has one row.

    Places are numbers, -1 for unknown.
    """

    slots: Positions
    starts: Positions
    """First row of each slot."""
    devices: Positions
    nodes: Positions
    numas: Positions
    roots: Positions
    cliques: Positions
    domains: Positions
    link_starts: Positions
    """Numbers of the devices at one end of each link, ascending; each link is there in both directions."""
    link_ends: Positions
    linked: Floats
    """Closeness by each link."""

    def closeness_to(self, _tags: tuple[AcceleratorTag, ...], slot: int) -> Floats:
        """Return the closeness of all slots to one, as `device_closeness` defines it."""
        closest = np.zeros(len(self.slots))
        for row in np.flatnonzero(self.slots == slot).tolist():
            np.maximum(closest, self._to_row(row), out=closest)
        farthest: Floats = np.minimum.reduceat(closest, self.starts)
        return farthest

    def _to_row(self, row: int) -> Floats:
        on_node = _shared(self.nodes, row)
        known = (self.numas != _NONE) & (self.numas[row] != _NONE)
        found = np.where(on_node, np.where(known, closeness_of(CROSS_NUMA), closeness_of(UNKNOWN_TIER, 100)), 0.0)
        for places, closeness in (
            (self.numas, closeness_of(SAME_NUMA)),
            (self.roots, closeness_of(SAME_NUMA, 100)),
            (self.cliques, closeness_of(DIRECT)),
            (self.domains, closeness_of(DIRECT)),
            (self.devices, CLOSEST),
        ):
            found[_shared(places, row)] = closeness
        first, last = self.link_starts.searchsorted([self.devices[row], self.devices[row] + 1])
        if first < last:
            by_device = np.zeros(self.devices.max() + 1)
            np.maximum.at(by_device, self.link_ends[first:last], self.linked[first:last])
            np.maximum(found, np.where(self.devices == _NONE, 0.0, by_device[self.devices]), out=found)
        return found


def _shared(places: Positions, row: int) -> Mask:
    shared: Mask = (places == places[row]) & (places != _NONE)
    return shared


def _sites(tags: tuple[AcceleratorTag, ...]) -> _Sites:
    rows = [(slot, tag, device) for slot, tag in enumerate(tags) for device in tag.devices or (_NO_DEVICE,)]
    slots = np.array([slot for slot, _, _ in rows], dtype=np.intp)
    numbers: dict[object, int] = {}
    devices = _numbered((_device(tag, device) for _, tag, device in rows), numbers)
    links = list(_links(rows, devices, numbers))
    bandwidths = np.array([link.bandwidth_mbps for _, _, link in links], dtype=np.float64)
    tiers = np.array([link.tier for _, _, link in links], dtype=np.float64)
    shares = bandwidths / (bandwidths.max(initial=0.0) or 1.0)
    linked = np.tile(_PER_TIER * (UNKNOWN_TIER - tiers) + shares * _WITHIN_TIER, 2)
    ends = np.array([(start, end) for start, end, _ in links], dtype=np.intp).reshape(len(links), 2).T
    ends = np.hstack([ends, ends[::-1]])
    order = ends[0].argsort(kind="stable")
    return _Sites(
        slots,
        np.searchsorted(slots, np.arange(len(tags))),
        devices,
        _numbered((tag.cluster, node) if (node := _node(tag, device)) else None for _, tag, device in rows),
        _numbered(
            None if device.numa is None or not (node := _node(tag, device)) else (tag.cluster, node, device.numa)
            for _, tag, device in rows
        ),
        _numbered(
            (tag.cluster, _node(tag, device), device.pcie_root) if device.pcie_root else None for _, tag, device in rows
        ),
        _numbered(device.clique or tag.attributes.get(CLIQUE) or None for _, tag, device in rows),
        _numbered(tag.attributes.get(COMPUTE_DOMAIN) or None for _, tag, _ in rows),
        ends[0, order],
        ends[1, order],
        linked[order],
    )


def _links(
    rows: Iterable[tuple[int, AcceleratorTag, Device]], devices: Positions, numbers: Mapping[object, int]
) -> Iterator[tuple[int, int, DeviceLink]]:
    """Yield the links between known devices of different endpoints, with the numbers of both."""
    for (_, tag, device), start in zip(rows, devices.tolist(), strict=True):
        if not device.links or start == _NONE:
            continue
        own = {each.id for each in tag.devices}
        for link in device.links:
            if link.peer not in own and (end := numbers.get((tag.cluster, link.peer))) is not None:
                yield start, end, link


def _numbered(names: Iterable[object], numbers: dict[object, int] | None = None) -> Positions:
    """Return a number for each name, equal ones for equal names, -1 for None."""
    known = {} if numbers is None else numbers
    return np.array([_NONE if name is None else known.setdefault(name, len(known)) for name in names], dtype=np.intp)


def _node(tag: AcceleratorTag, device: Device) -> str:
    return device.node or tag.node


def _device(tag: AcceleratorTag, device: Device) -> tuple[str, str] | None:
    """Return cluster and id of the physical device; None if unknown."""
    name = device.parent_id or device.id
    return (tag.cluster, name) if name else None
