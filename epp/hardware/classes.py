# SPDX-License-Identifier: Apache-2.0
"""Matching of AcceleratorClasses against an endpoint by labels, PCI ids, devices and resources."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from epp.framework.accelerators.device_expressions import DeviceExpression
from epp.framework.accelerators.tag import DRIVER, AcceleratorTag, AttributeValue
from epp.hardware.resources import profile_of, resource_key
from epp.kube.objects.base import quantity_of
from epp.kube.objects.core import MatchExpression, NodeSelector, NodeSelectorTerm
from epp.kube.objects.dra import qualified, version_of
from epp.kube.objects.ome import COMPARISONS, AcceleratorClass, DeviceSelector, Discovery, ResourceFlavor, bound_of


def matching_term(selector: NodeSelector, labels: Mapping[str, str], node: str = "") -> NodeSelectorTerm | None:
    """Return the matching term with most tests, None without a match. An empty term never matches."""
    holding = [term for term in selector.node_selector_terms if term_holds(term, labels, node)]
    return max(holding, key=term_size, default=None)


def term_size(term: NodeSelectorTerm) -> int:
    return len(term.match_expressions) + len(term.match_fields)


def term_holds(term: NodeSelectorTerm, labels: Mapping[str, str], node: str = "") -> bool:
    """Return whether all tests of the term hold; the only supported field is metadata.name."""
    fields = {"metadata.name": node} if node else {}
    return (
        term_size(term) > 0
        and all(expression_holds(test, labels) for test in term.match_expressions)
        and all(test.key == "metadata.name" and expression_holds(test, fields) for test in term.match_fields)
    )


def expression_holds(test: MatchExpression, labels: Mapping[str, str]) -> bool:
    """Return whether the test holds, which may also compare numbers; an invalid one never does."""
    value = labels.get(test.key)
    if value is None or test.operator not in COMPARISONS:
        return test.holds(labels)
    if len(test.values) != 1:
        return False
    try:
        return COMPARISONS[test.operator](quantity_of(value), bound_of(test))
    except ValueError:
        return False


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
    """PCI ids of accelerators, four hexadecimal digits each; empty if unknown."""

    vendors: frozenset[str] = frozenset()
    devices: frozenset[str] = frozenset()


def canonical_id(text: str) -> str:
    """Return the id without `0x`, in lower case."""
    return text.strip().lower().removeprefix("0x")


def pci_of(labels: Mapping[str, str], devices: Iterable[tuple[str, Mapping[str, AttributeValue]]] = ()) -> PciIds:
    """Return the ids in the attributes of allocated devices, or those in the labels of the node."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of its node."""
    node: str = ""
    resources: frozenset[str] | None = None
    """Keys (see `resource_key`) of requested and allocated resources of the pod; None if unknown."""
    pci: PciIds
    devices: tuple[tuple[str, Mapping[str, AttributeValue]], ...] = ()
    """Driver and attributes of each allocated device."""


def matching_classes(
    classes: Iterable[AcceleratorClass],
    evidence: Evidence,
    flavors: Mapping[str, ResourceFlavor],
    expressions: Mapping[str, DeviceExpression] = MappingProxyType({}),
) -> tuple[AcceleratorClass, ...]:
    """Return the matching classes, the most specific first.

    `expressions` are CEL device selectors by class name. The order is by number of node selector pairs, slices before
    whole devices, number of tests, and name.
    """
    by_rank = {_rank(each, evidence, flavors, expressions.get(each.id)): each for each in classes}
    by_rank.pop(None, None)
    return tuple(by_rank[rank] for rank in sorted(filter(None, by_rank)))


def is_of_slices(each: AcceleratorClass) -> bool:
    """Return whether the class describes MIG slices, so that its figures are those of a slice."""
    return bool(each.spec.resources) and all(profile_of(resource.name) for resource in each.spec.resources)


def _rank(
    each: AcceleratorClass,
    evidence: Evidence,
    flavors: Mapping[str, ResourceFlavor],
    expression: DeviceExpression | None,
) -> tuple[int, bool, int, str] | None:
    """Return the sort key of a matching class, the most specific first; None without a match."""
    discovery = each.spec.discovery
    pairs, flavor = discovery.node_selector, flavors.get(each.spec.integration.kueue_resource_flavor)
    if not pairs and each.affinity is None and flavor is not None:
        pairs = flavor.node_labels
    if any(evidence.labels.get(key) != value for key, value in pairs.items()):
        return None
    term = None if each.affinity is None else matching_term(each.affinity, evidence.labels, evidence.node)
    if each.affinity is not None and term is None:
        return None
    verdicts = (
        _by_pci(discovery, evidence.pci),
        _by_device(discovery.dra, evidence, expression),
        _by_resource(each, evidence),
    )
    if False in verdicts:
        return None
    pci, device, resource = verdicts
    without_pci = not discovery.pci_vendor_id and not discovery.device_ids
    if not (pairs or term or pci or device or (resource and without_pci)):
        return None
    tests = (0 if term is None else term_size(term)) + bool(device) + bool(pci)
    return -len(pairs), not is_of_slices(each), -tests, each.id


def _by_pci(discovery: Discovery, known: PciIds) -> bool | None:
    """Return whether the PCI ids match; None without ids in the class, or for unknown ids."""
    vendor = canonical_id(discovery.pci_vendor_id)
    wanted = frozenset(map(canonical_id, discovery.device_ids))
    if vendor and known.vendors and vendor not in known.vendors:
        return False
    if wanted and known.devices:
        return not wanted.isdisjoint(known.devices)
    return True if vendor and known.vendors and not wanted else None


def _by_resource(each: AcceleratorClass, evidence: Evidence) -> bool | None:
    """Return whether the pod has one of the resources; None if either resources are unknown.

    Classes of slices do not match a pod with unknown resources; they would match all endpoints of the node.
    """
    wanted = {resource_key(resource.name) for resource in each.spec.resources}
    if not wanted:
        return None
    if evidence.resources is None:
        return False if is_of_slices(each) else None
    return not wanted.isdisjoint(evidence.resources)


def _by_device(selector: DeviceSelector | None, evidence: Evidence, expression: DeviceExpression | None) -> bool | None:
    """Return whether a device matches; None if the class has no device selector."""
    if selector is None:
        return None
    if selector.expression and expression is None:
        return False
    return any(
        selector.driver in {"", driver}
        and (expression is None or expression.holds(AcceleratorTag(attributes={**attributes, DRIVER: driver})) is True)
        and all(_attribute_holds(test, driver, attributes) for test in selector.match_attributes)
        for driver, attributes in evidence.devices
    )


def _attribute_holds(test: MatchExpression, driver: str, attributes: Mapping[str, AttributeValue]) -> bool:
    value = attributes.get(qualified(test.key, driver))
    if value is None:
        return expression_holds(test, {})
    if isinstance(value, tuple) and test.operator in COMPARISONS:
        bound = version_of(test.values[0]) if len(test.values) == 1 else None
        if not isinstance(bound, tuple):
            return False
        width = max(len(value), len(bound))
        ours, theirs = (each + (0,) * (width - len(each)) for each in (value, bound))
        return COMPARISONS[test.operator](ours, theirs)
    text = ".".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return expression_holds(test, {test.key: text.lower() if isinstance(value, bool) else text})
