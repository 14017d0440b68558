# SPDX-License-Identifier: Apache-2.0
"""PCI ids of the accelerators of a node, from labels and device attributes."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from epp.framework.accelerators.tag import AttributeValue

_DISCOVERED = re.compile(
    r"feature\.node\.kubernetes\.io/pci-(?:03[0-9a-f]{2}|12[0-9a-f]{2}|0b40)_([0-9a-f]{4})(?:_([0-9a-f]{4}))?.*\.present"
)
_INTEL_DEVICE = re.compile(r"gpu\.intel\.com/device-id\.[0-9a-f]{4}-([0-9a-f]{4})\.(?:count|present)")
_AMD_DEVICE = re.compile(r"(?:beta\.)?amd\.com/gpu\.device-id(?:\.([0-9a-fx]+))?")
_VENDOR_LABELS = {
    "nvidia.com/gpu.": "10de",
    "amd.com/gpu.": "1002",
    "beta.amd.com/gpu.": "1002",
    "gpu.intel.com/": "8086",
}
_VENDOR_DRIVERS = {"gpu.nvidia.com": "10de", "gpu.amd.com": "1002", "gpu.intel.com": "8086"}
_DEVICE_ATTRIBUTES = ("deviceID", "pciId")


class PciIds(NamedTuple):
    """Ids of accelerators, four hexadecimal digits each; empty if unknown."""

    vendors: frozenset[str] = frozenset()
    devices: frozenset[str] = frozenset()


NO_IDS = PciIds()


def canonical_id(text: str) -> str:
    """Return the id without `0x`, in lower case."""
    return text.strip().lower().removeprefix("0x")


def pci_of(labels: Mapping[str, str], devices: Iterable[tuple[str, Mapping[str, AttributeValue]]] = ()) -> PciIds:
    """Return the ids in the attributes of allocated devices; without any, those in the labels of the node."""
    vendors, ids = set[str](), set[str]()
    for driver, attributes in devices:
        vendors |= {_VENDOR_DRIVERS[driver]} if driver in _VENDOR_DRIVERS else set()
        found = (attributes.get(f"{driver}/{name}") for name in _DEVICE_ATTRIBUTES)
        ids |= {canonical_id(value) for value in found if isinstance(value, str)}
    if vendors or ids:
        return PciIds(frozenset(vendors), frozenset(ids))
    for key, value in labels.items():
        vendors |= {vendor for prefix, vendor in _VENDOR_LABELS.items() if key.startswith(prefix)}
        if match := _DISCOVERED.fullmatch(key):
            vendors.add(match[1])
            ids |= {match[2]} if match[2] else set()
        elif match := _INTEL_DEVICE.fullmatch(key):
            ids.add(match[1])
        elif match := _AMD_DEVICE.fullmatch(key):
            ids.add(canonical_id(match[1] or value))
    return PciIds(frozenset(vendors), frozenset(ids))
