# SPDX-License-Identifier: Apache-2.0
"""Nodes and physical devices of endpoints as numbers, and the requests there."""

from typing import NamedTuple

import numpy as np

from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.arrays import Floats, Mask, Positions
from epp.framework.snapshot import ACCELERATOR, IN_FLIGHT, RUNNING, WAITING, Snapshot


def node_numbers(snapshot: Snapshot) -> Positions:
    """Return the number of each slot's node, equal ones for one node; an unknown node is one of its own."""
    return snapshot.records(ACCELERATOR).derive(_node_numbers)


def known_nodes(snapshot: Snapshot) -> Mask:
    """Mark the slots whose node is known."""
    return snapshot.records(ACCELERATOR).derive_mask(_is_known)


class DeviceUse(NamedTuple):
    """Pairs of slots and devices that they use; a slot whose devices are unknown is in none."""

    slots: Positions
    devices: Positions
    """Numbers, equal ones for one physical device."""


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
    """Return the requests at each slot: own ones in flight, or as the engine reports if that is more.

    0 for free slots.
    """
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
