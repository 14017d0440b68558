"""Which AcceleratorClasses an endpoint is of."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from epp.accelerators.classes.affinity import expression_holds, matching_term, term_size
from epp.accelerators.classes.pci import NO_IDS, PciIds, canonical_id
from epp.accelerators.objects.core import MatchExpression
from epp.accelerators.objects.dra import qualified, version_of
from epp.accelerators.objects.ome import AcceleratorClass, DeviceSelector, Discovery, ResourceFlavor
from epp.accelerators.resources import resource_key
from epp.framework.accelerator_attributes import DRIVER
from epp.framework.accelerators import AcceleratorTag, AttributeValue
from epp.framework.device_expressions import DeviceExpression


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of an endpoint that a class can be told by."""

    labels: Mapping[str, str] = field(default_factory=dict)
    """Of its node."""
    node: str = ""
    resources: frozenset[str] | None = None
    """Keys (see `resource_key`) of what its pod asks for or was given; None where nobody knows."""
    pci: PciIds = NO_IDS
    devices: tuple[tuple[str, Mapping[str, AttributeValue]], ...] = ()
    """Driver and attributes of each device that it was given."""


@dataclass(frozen=True, slots=True, order=True)
class _Match:
    """A class that an endpoint is of; the smallest is the most specific."""

    minus_pairs: int
    not_a_slice: bool
    minus_tests: int
    name: str
    found: AcceleratorClass = field(compare=False)


def matching_classes(
    classes: Iterable[AcceleratorClass],
    evidence: Evidence,
    flavors: Mapping[str, ResourceFlavor],
    expressions: Mapping[str, DeviceExpression] = MappingProxyType({}),
) -> tuple[AcceleratorClass, ...]:
    """Return the classes that the endpoint is of, the most specific first.

    `expressions` are the classes' selectors of devices, by the name of the class. More selector pairs go before fewer,
    slices before whole devices, more tests before fewer, then the name decides.
    """
    matches = (_match(each, evidence, flavors, expressions.get(each.id)) for each in classes)
    return tuple(match.found for match in sorted(match for match in matches if match is not None))


def is_of_slices(each: AcceleratorClass) -> bool:
    """Return whether the class is one of MIG slices: its figures are those of a slice, not of the whole device."""
    keys = [resource_key(resource.name) for resource in each.spec.resources]
    return bool(keys) and all(key.startswith("mig/") for key in keys)


def node_pairs(each: AcceleratorClass, flavors: Mapping[str, ResourceFlavor]) -> Mapping[str, str]:
    """Return labels that its nodes have: its own, or those of its Kueue flavor where it has no selector at all."""
    discovery = each.spec.discovery
    if discovery.node_selector or discovery.affinity.node_affinity.required is not None:
        return discovery.node_selector
    flavor = flavors.get(each.spec.integration.kueue_resource_flavor)
    return {} if flavor is None else flavor.spec.node_labels


def _match(
    each: AcceleratorClass,
    evidence: Evidence,
    flavors: Mapping[str, ResourceFlavor],
    expression: DeviceExpression | None,
) -> _Match | None:
    discovery = each.spec.discovery
    pairs = node_pairs(each, flavors)
    if any(evidence.labels.get(key) != value for key, value in pairs.items()):
        return None
    required = discovery.affinity.node_affinity.required
    term = None if required is None else matching_term(required, evidence.labels, evidence.node)
    if required is not None and term is None:
        return None
    verdicts = (
        _by_pci(discovery, evidence.pci),
        _by_device(discovery.dra, evidence, expression),
        _by_resource(each, evidence),
    )
    if False in verdicts:
        return None
    pci, device, resource = verdicts
    says_nothing_of_pci = not discovery.pci_vendor_id and not discovery.device_ids
    if not (pairs or term or pci or device or (resource and says_nothing_of_pci)):
        return None
    tests = (0 if term is None else term_size(term)) + bool(device) + bool(pci)
    return _Match(-len(pairs), not is_of_slices(each), -tests, each.name, each)


def _by_pci(discovery: Discovery, known: PciIds) -> bool | None:
    """Return whether the PCI ids fit; None where the class names none, or too little is known to tell."""
    vendor = canonical_id(discovery.pci_vendor_id)
    wanted = frozenset(map(canonical_id, discovery.device_ids))
    if vendor and known.vendors and vendor not in known.vendors:
        return False
    if wanted and known.devices:
        return not wanted.isdisjoint(known.devices)
    return True if vendor and known.vendors and not wanted else None


def _by_resource(each: AcceleratorClass, evidence: Evidence) -> bool | None:
    """Return whether the pod has one of the class's resources; None where the class names none or nobody knows.

    A slice that nobody knows of is not there: all endpoints of the node would have it.
    """
    wanted = {resource_key(resource.name) for resource in each.spec.resources}
    if not wanted:
        return None
    if evidence.resources is None:
        return False if is_of_slices(each) else None
    return not wanted.isdisjoint(evidence.resources)


def _by_device(selector: DeviceSelector | None, evidence: Evidence, expression: DeviceExpression | None) -> bool | None:
    """Return whether one of the devices fits; None where the class does not select by device."""
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
    if isinstance(value, tuple) and test.operator in {"Gt", "Lt", "Gte", "Lte"}:
        return len(test.values) == 1 and _version_holds(test.operator, value, test.values[0])
    return expression_holds(test, {test.key: _text(value)})


def _version_holds(operator: str, have: tuple[int, ...], text: str) -> bool:
    """Return how the comparison comes out; False where the text is no version."""
    bound = version_of(text)
    if not isinstance(bound, tuple):
        return False
    width = max(len(have), len(bound))
    ours, theirs = (each + (0,) * (width - len(each)) for each in (have, bound))
    return {"Gt": ours > theirs, "Lt": ours < theirs, "Gte": ours >= theirs, "Lte": ours <= theirs}[operator]


def _text(value: AttributeValue) -> str:
    """Return the value as a selector writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ".".join(map(str, value)) if isinstance(value, tuple) else str(value)
