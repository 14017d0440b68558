# SPDX-License-Identifier: Apache-2.0
"""Places of an endpoint's devices as keys: integers, equal ones for equal places, 0 for an unknown one.

Keys are hashes of names, so that those of one endpoint do not depend on any other: they are computed where its tag is
made, and arrays of all endpoints are only put together.
"""

from array import array
from collections.abc import Iterator, Mapping
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # tags have sites
    from epp.framework.accelerators.tag import AcceleratorTag

CLIQUE, COMPUTE_DOMAIN = "nvidia.com/gpu.clique", "resource.nvidia.com/computeDomain"
"""NVLink clique and compute domain of the endpoint's node: endpoints that share one have NVLink between their GPUs."""
ROW = ("device", "node", "numa", "root", "clique", "domain")
"""Places of one device."""

_LINK = Struct("=qqdd")


class Sites(NamedTuple):
    """Places of the devices of an endpoint; the bytes are 64-bit numbers."""

    node: int
    rows: bytes
    """As many keys as ROW has, for each device; one row for an endpoint without known devices."""
    used: bytes
    """Key of each physical device that the endpoint uses."""
    links: bytes
    """For each link to a device of another endpoint the keys of both devices as integers, tier and MB/s as floats."""
    places: Mapping[str, frozenset[int]]
    """Known places of all devices, by the names in ROW."""

    def share(self, other: "Sites", *names: str) -> bool:
        """Return whether two endpoints have devices at one of the places of these names."""
        return any(not self.places[name].isdisjoint(other.places[name]) for name in names)


def sites_of(tag: "AcceleratorTag") -> Sites:
    cluster, rows = tag.cluster, array("q")
    clique, domain = _key(tag.attributes.get(CLIQUE)), _key(tag.attributes.get(COMPUTE_DOMAIN))
    for device in tag.devices:
        node = device.node or tag.node
        rows.extend(
            (
                _device(cluster, device.parent_id or device.id),
                _node(cluster, node),
                hash((cluster, node, str(device.numa))) if node and device.numa is not None else 0,
                hash((cluster, node, device.pcie_root)) if device.pcie_root else 0,
                _key(device.clique) or clique,
                domain,
            )
        )
    if not tag.devices:
        rows.extend((0, _node(cluster, tag.node), 0, 0, clique, domain))
    used = array("q", [_device(cluster, name) for name in sorted(physical_devices(tag))])
    places = {name: frozenset(rows[number :: len(ROW)]) - {0} for number, name in enumerate(ROW)}
    places["clique"] |= {clique} - {0}  # that of the node counts for pairs of endpoints in any case
    return Sites(_node(cluster, tag.node), rows.tobytes(), used.tobytes(), b"".join(_links(tag)), places)


def physical_devices(tag: "AcceleratorTag") -> set[str]:
    """Return the ids of the endpoint's devices; of the divided devices, where it has slices."""
    parents = {device.parent_id for device in tag.devices if device.parent_id}
    if parents:
        return parents
    if tag.partition.parent_id:
        return {tag.partition.parent_id}
    return {device.id for device in tag.devices if device.id}


def _links(tag: "AcceleratorTag") -> Iterator[bytes]:
    own = {device.id for device in tag.devices}
    for device in tag.devices:
        if device.links and (start := _device(tag.cluster, device.parent_id or device.id)):
            for link in device.links:
                if link.peer not in own:
                    yield _LINK.pack(start, _device(tag.cluster, link.peer), link.tier, link.bandwidth_mbps)


def _key(name: object) -> int:
    return hash(name) if name else 0


def _node(cluster: str, node: str) -> int:
    return hash((cluster, node)) if node else 0


def _device(cluster: str, name: str) -> int:
    return hash((cluster, "", name)) if name else 0
