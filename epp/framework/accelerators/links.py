# SPDX-License-Identifier: Apache-2.0
"""How close the devices of endpoints are: by direct links, PCIe roots, NUMA nodes and NVLink cliques.

Closeness is `25 * (3 - tier) + intra * 24 / 100`, 0..99, with the tiers 0 direct link, 1 same NUMA node, 2 across NUMA
nodes, 3 unknown, and `intra`, 0..100, for differences within a tier.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epp.framework.accelerators.tag import CLIQUE, COMPUTE_DOMAIN, AcceleratorTag, Device
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
    sites = candidates.snapshot.records(ACCELERATOR).derive(_sites)
    closest = np.zeros(len(sites.slots))
    for row in np.flatnonzero(sites.slots == peer):
        np.maximum(closest, sites.from_row(int(row)), out=closest)
    farthest: Floats = np.minimum.reduceat(closest, sites.starts)
    return farthest[candidates.slots]


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


@dataclass(frozen=True, slots=True)
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
    links: NDArray[np.intp]
    """Two rows: numbers of the devices at the ends, each link in both directions."""
    linked: Floats
    """Closeness by each link."""

    def from_row(self, row: int) -> Floats:
        """Return the closeness of all rows to one."""
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
        mine = self.links[0] == self.devices[row]
        if mine.any():
            by_device = np.zeros(self.devices.max() + 1)
            np.maximum.at(by_device, self.links[1, mine], self.linked[mine])
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
    links = [
        (start, end, link.tier, link.bandwidth_mbps)
        for (_, tag, device), start in zip(rows, devices.tolist(), strict=True)
        for link in device.links
        if start != _NONE and (end := numbers.get((tag.cluster, link.peer), _NONE)) != _NONE
    ]
    highest = max((bandwidth for *_, bandwidth in links), default=0.0) or 1.0
    linked = [closeness_of(tier, 100 * bandwidth / highest) for _, _, tier, bandwidth in links]
    ends = np.array([link[:2] for link in links], dtype=np.intp).reshape(len(links), 2).T
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
        np.hstack([ends, ends[::-1]]),
        np.array(linked * 2, dtype=np.float64),
    )


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
