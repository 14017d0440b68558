# SPDX-License-Identifier: Apache-2.0
"""AcceleratorClass of ome.io, ResourceFlavor of kueue.x-k8s.io, and bounds and preferences in selectors of ome.io."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from fractions import Fraction
from operator import ge, gt, le, lt
from typing import Any, Self, cast

import msgspec

from epp.framework.accelerators.device_expressions import DeviceExpression
from epp.framework.accelerators.requirements import STRATEGIES, SelectionParameters
from epp.framework.accelerators.selection import ANY, Selection, combined
from epp.framework.errors import ConfigurationError
from epp.framework.input_errors import read_parameters
from epp.framework.messages import printable
from epp.kube.objects.base import ClusterObject, Part, convert, quantity_of
from epp.kube.objects.core import MatchExpression, NodeSelector, NodeSelectorTerm
from epp.kube.objects.limits import BARE_GB_BELOW, Bandwidth, DeviceMemory, Figure, Price, TokenPrice, shown

_MOST_SPOT = 10
CLASS, THRESHOLD, STRATEGY = "accelerator-class", "cost-threshold", "selection-strategy"
_PREFIX, _ALIAS = "ome.io/", "ome.ai/"
_MOST_NAMES = 256
_MOST_CHARACTERS = 200

TIERS = frozenset({"low", "medium", "high"})
_OPERATORS = frozenset({"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"})
_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*")
_ALIASES = frozenset({"Gte", "Lte"})
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {"Gt": gt, "Lt": lt, "Gte": ge, "Lte": le}
_MEBIBYTE_LABELS = frozenset({"nvidia.com/gpu.memory"})

_CONSTRAINTS = (
    "minMemory",
    "maxMemory",
    "minComputePerformanceTFLOPS",
    "minArchitectureVersion",
    "requiredFeatures",
    "excludedClasses",
    "architectureFamilies",
    "preferredPrecisions",
)
"""Fields of `constraints`, which have the names of parameters of `accelerator-filter`."""


class DeviceSelector(Part, frozen=True, kw_only=True):
    """Selector of devices in ResourceSlices; an extension of the API."""

    driver: str = ""
    match_attributes: tuple[MatchExpression, ...] = ()
    """Tests of attributes; the domain in a name is optional."""
    expression: str = ""
    """CEL over `device`, as in the selectors of DRA; an expression that cannot be evaluated matches no device."""


class Discovery(Part, frozen=True, kw_only=True):
    node_selector: Mapping[str, str] = msgspec.field(default_factory=dict)
    pci_vendor_id: str = msgspec.field(default="", name="pciVendorID")
    device_ids: tuple[str, ...] = msgspec.field(default=(), name="deviceIDs")
    dra: DeviceSelector | None = None


class ClassPerformance(Part, frozen=True, kw_only=True):
    """Figures of one accelerator; with `sparse`, figures below fp32 are halved."""

    fp32_tflops: Figure = None
    fp16_tflops: Figure = None
    fp8_tflops: Figure = None
    int8_tops: Figure = None
    int4_tops: Figure = None
    sparse: bool = False


class Capabilities(Part, frozen=True, kw_only=True):
    memory: DeviceMemory = msgspec.field(default=None, name="memoryGB")
    compute_capability: str = ""
    level_zero_version: str = ""
    memory_bandwidth_gbps: Bandwidth = msgspec.field(default=None, name="memoryBandwidthGBps")
    features: tuple[str, ...] = ()
    performance: ClassPerformance = ClassPerformance()


class ClassResource(Part, frozen=True, kw_only=True):
    """An extended resource by which pods request the class."""

    name: str


class Integration(Part, frozen=True, kw_only=True):
    """Names of the class in other systems."""

    kueue_resource_flavor: str = ""
    volcano_gpu_type: str = msgspec.field(default="", name="volcanoGPUType")


class ClassCost(Part, frozen=True, kw_only=True):
    """US dollars for one accelerator."""

    per_hour: Price = None
    spot_per_hour: Price = None
    per_million_tokens: TokenPrice = None
    tier: str = ""


class ClassSpec(Part, frozen=True, kw_only=True):
    vendor: str = ""
    family: str = ""
    model: str = ""
    discovery: Discovery = Discovery()
    capabilities: Capabilities = Capabilities()
    resources: tuple[ClassResource, ...] = ()
    integration: Integration = Integration()
    cost: ClassCost = ClassCost()


class AcceleratorClass(ClusterObject, frozen=True, kw_only=True):
    spec: ClassSpec = ClassSpec()
    affinity: NodeSelector | None = msgspec.field(
        default=None, name="spec.discovery.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    )
    """Alternative terms, one of which a node must meet."""
    terms: tuple[NodeSelectorTerm, ...] = msgspec.field(default=(), name="spec.discovery.nodeSelectorTerms")
    """Node selector terms in the field of the proposal."""

    def contradiction(self) -> tuple[str, Self] | None:
        """Return a spot price far above the regular price."""
        cost = self.spec.cost
        if not cost.per_hour or cost.spot_per_hour is None or cost.spot_per_hour <= _MOST_SPOT * cost.per_hour:
            return None
        sentence = (
            f"spec.cost.spotPerHour is {shown(cost.spot_per_hour)}, more than {_MOST_SPOT} times perHour, "
            f"{shown(cost.per_hour)}: write both in US dollars an hour"
        )
        without = msgspec.structs.replace(cost, spot_per_hour=None)
        return sentence, msgspec.structs.replace(self, spec=msgspec.structs.replace(self.spec, cost=without))


def read_accelerator_class(document: object) -> AcceleratorClass:
    """Return the object; terms in the field of the proposal replace a missing affinity. Raises ValueError."""
    found = convert(document, AcceleratorClass)
    if found.affinity is not None or not found.terms:
        return found
    return msgspec.structs.replace(found, affinity=NodeSelector(node_selector_terms=found.terms))


def affinity_problems(selector: NodeSelector) -> Iterator[str]:
    """Yield deviations from the Kubernetes API with their interpretation."""
    for test in _tests(selector):
        if test.operator in _ALIASES:
            alias = f"read as {test.operator[:2]} or equal"
            yield f"{test.key}: Kubernetes has no operator {test.operator}; {alias}"
        if not _fault_of(test) and test.operator in COMPARISONS and not test.values[0].lstrip("-").isdecimal():
            number = float(bound_of(test))
            yield f"{test.key}: {test.values[0]!r} is not an integer, as Kubernetes requires; read as {number:g}"
    yield from (f"{fault}; the term matches no node" for fault in affinity_faults(selector))


def affinity_faults(selector: NodeSelector) -> Iterator[str]:
    """Yield invalid tests with a remedy; their terms match no node."""
    for test in _tests(selector):
        if fault := _fault_of(test):
            yield f"{test.key}: {fault}"
    for term in selector.node_selector_terms:
        for test in term.match_fields:
            if test.key != "metadata.name":
                yield f"matchFields {test.key!r}: write metadata.name, the only supported field"


def _tests(selector: NodeSelector) -> Iterator[MatchExpression]:
    for term in selector.node_selector_terms:
        yield from (*term.match_expressions, *term.match_fields)


def _fault_of(test: MatchExpression) -> str:
    if test.operator not in _OPERATORS | _ALIASES:
        return f"unknown operator {test.operator!r}; write one of {', '.join(sorted(_OPERATORS))}"
    if test.operator in COMPARISONS:
        if len(test.values) != 1:
            return f"{test.operator} takes one value, not {len(test.values)}"
        try:
            bound_of(test)
        except ValueError as error:
            return str(error)
    return ""


def bound_of(test: MatchExpression) -> Fraction:
    """Return the bound of a comparison, converted to the unit of the label."""
    text = test.values[0]
    number = quantity_of(text)
    if test.key in _MEBIBYTE_LABELS and text[-1:].isalpha():
        return number / 2**20
    return number


def issues_of(each: AcceleratorClass) -> Iterator[str]:
    """Yield ambiguous and invalid values of the class with their interpretation."""
    memory = each.spec.capabilities.memory
    if memory is not None and 0 < memory < BARE_GB_BELOW:
        number = f"{float(memory):g}"
        yield f"spec.capabilities.memoryGB is {number}, which means bytes: read as {number}Gi; write {number}Gi"
    if each.affinity is not None:
        yield from affinity_problems(each.affinity)
    yield from (f"{fault}; it selects no device" for fault in _expression_faults(each))
    yield from (f"{fault}; it is ignored" for fault in _value_faults(each))


def faults_of(each: AcceleratorClass) -> Iterator[str]:
    """Yield field, value and remedy of each invalid value of the class; such values have no effect."""
    if each.affinity is not None:
        yield from (f"spec.discovery.affinity: {fault}" for fault in affinity_faults(each.affinity))
    yield from _expression_faults(each)
    yield from _value_faults(each)


def device_expression(each: AcceleratorClass) -> DeviceExpression | None:
    """Return the CEL device selector of the class, if any; raises ValueError with field and remedy."""
    dra = each.spec.discovery.dra
    if dra is None or not dra.expression:
        return None
    return DeviceExpression(dra.expression, place="spec.discovery.dra.expression")


def _expression_faults(each: AcceleratorClass) -> Iterator[str]:
    try:
        device_expression(each)
    except ValueError as error:
        yield str(error)


def _value_faults(each: AcceleratorClass) -> Iterator[str]:
    capabilities, tier = each.spec.capabilities, each.spec.cost.tier
    if capabilities.compute_capability and compute_capability(capabilities) is None:
        yield f"spec.capabilities.computeCapability is {capabilities.compute_capability!r}: write a version like 9.0"
    if tier and tier.lower() not in TIERS:
        yield f"spec.cost.tier is {tier!r}: write low, medium or high"


def compute_capability(capabilities: Capabilities) -> tuple[int, ...] | None:
    """Return (9, 0) for 9.0; None for an invalid version."""
    text = capabilities.compute_capability.strip()
    return tuple(map(int, text.split("."))) if _VERSION.fullmatch(text) else None


class ResourceFlavor(ClusterObject, frozen=True, kw_only=True):
    node_labels: Mapping[str, str] = msgspec.field(default_factory=dict, name="spec.nodeLabels")


class Layer(msgspec.Struct, frozen=True):
    """Limits, preferences and invalid values at one place of an object."""

    selection: Selection = ANY
    faults: tuple[str, ...] = ()

    def over(self, lower: "Layer") -> "Layer":
        """Return the combination with a lower layer."""
        return Layer(combined(lower.selection, self.selection), (*lower.faults, *self.faults))


def read_selector(data: object, place: str) -> Layer:
    """Read an accelerator selector, in the form of the API or in that of the proposal, OEP-0003.

    The API has `acceleratorClass`, `policy` and `constraints`; the proposal has `preferredClasses`,
    `requiredCapabilities`, `strategy`, `nodeSelector` and `annotations`. The strategy takes precedence over a policy.
    """
    return _mapping(data, place, _selector)


def _selector(data: Mapping[str, object], place: str) -> Layer:
    return _together(
        [
            _read(data, "acceleratorClass", "acceleratorClasses", place, listed=True),
            _read(data, "policy", "policy", place),
            _part(data, "constraints", place, _bounds),
            _read(data, "preferredClasses", "preferenceOrder", place),
            _part(data, "requiredCapabilities", place, _capabilities),
            _read(data, "strategy", "strategy", place),
            _read(data, "nodeSelector", "nodeSelector", place),
            _part(data, "annotations", place, _annotations),
        ]
    )


def read_requirements(data: object, place: str) -> Layer:
    """Read the accelerator requirements of a runtime, in the form of the API or in that of the proposal.

    The API has a list of classes, and constraints; the proposal has `supportedClasses`, `requiredCapabilities` and
    `preferenceOrder`.
    """
    return _mapping(data, place, _requirements)


def _requirements(data: Mapping[str, object], place: str) -> Layer:
    return _together(
        [
            _read(data, "supportedClasses", "acceleratorClasses", place),
            _read(data, "acceleratorClasses", "acceleratorClasses", place),
            _bounds(data, place),
            _part(data, "requiredCapabilities", place, _capabilities),
            _preferences(data.get("preferenceOrder"), f"{place}.preferenceOrder"),
        ]
    )


def read_annotations(
    annotations: Mapping[str, str],
    place: str = "metadata.annotations",
    *,
    only: Iterable[str] = (CLASS, THRESHOLD, STRATEGY),
) -> Layer:
    """Read the annotations of ome.io, or ome.ai; the cost threshold applies to a whole endpoint."""
    layers: list[Layer] = []
    for name in only:
        key = next((prefix + name for prefix in (_PREFIX, _ALIAS) if prefix + name in annotations), None)
        if key is None:
            continue
        where = f"{place}[{key}]"
        text = annotations[key].strip()
        if name == THRESHOLD:
            layers.append(_threshold(text, where))
        elif name == CLASS:
            layers.append(_parameter("acceleratorClasses", [text], where, text))
        else:
            layers.append(_parameter("strategy" if text in STRATEGIES else "policy", text, where, text))
    return _together(layers)


def class_names(selection: Selection) -> tuple[str, ...]:
    preferred = (each.accelerator_class for each in selection.preference_order)
    return tuple(dict.fromkeys((*selection.classes, *sorted(selection.excluded_classes), *preferred)))


def _part(data: Mapping[str, object], field: str, place: str, read: Callable[[Mapping[str, Any], str], Layer]) -> Layer:
    return _mapping(data.get(field), f"{place}.{field}", read)


def _mapping(value: object, place: str, read: Callable[[Mapping[str, Any], str], Layer]) -> Layer:
    if value is None or isinstance(value, Mapping):
        return Layer() if value is None else read(value, place)
    return Layer(faults=(f"{place} is {in_quotes(value)}: write a mapping",))


def _annotations(data: Mapping[str, object], place: str) -> Layer:
    return read_annotations({key: str(value) for key, value in data.items()}, place)


_LEAST = {
    "memoryGB": "minMemory",
    "computeCapability": "minArchitectureVersion",
    "minComputeCapability": "minArchitectureVersion",
    "features": "requiredFeatures",
    "requiredFeatures": "requiredFeatures",
}
"""Parameters of `accelerator-filter` for minimum capabilities, by capability."""
_FIGURES = {f"{name}{unit}": name for name in ("fp32", "fp16", "fp8") for unit in ("Tflops", "TFLOPS")} | {
    f"{name}{unit}": name for name in ("int8", "int4") for unit in ("Tops", "TOPS")
}
"""Precision by figure of `performance`, including the spellings in the examples of the proposal."""


def _capabilities(data: Mapping[str, object], place: str) -> Layer:
    """Read minimum capabilities, which have the names of the capabilities of an AcceleratorClass."""
    layers = [_read(data, field, parameter, place) for field, parameter in _LEAST.items()]
    layers.append(_number(data, "memoryBandwidthGBps", place, "minMemoryBandwidthGBps"))
    layers.append(_part(data, "performance", place, _performance))
    return _together(layers)


def _performance(data: Mapping[str, object], place: str) -> Layer:
    return _together(_number(data, field, place, "minPerformance", precision) for field, precision in _FIGURES.items())


def _number(data: Mapping[str, object], field: str, place: str, parameter: str, precision: str = "") -> Layer:
    """Read a number or quantity, for one precision if given."""
    value = data.get(field)
    if value is None:
        return Layer()
    place = f"{place}.{field}"
    with suppress(ValueError):
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            number = float(quantity_of(value))
            return _parameter(parameter, {precision: number} if precision else number, place, value)
    return Layer(faults=(f"{place} is {in_quotes(value)}: write a number",))


def _preferences(data: object, place: str) -> Layer:
    """Read a list of preferences; an invalid one does not affect the others."""
    if data is None:
        return Layer()
    if not isinstance(data, list) or len(data) > _MOST_NAMES:
        found = f"has {len(data)} entries" if isinstance(data, list) else f"is {in_quotes(data)}"
        return Layer(faults=(f"{place} {found}: write a list of at most {_MOST_NAMES} entries",))
    layers = [_parameter("preferenceOrder", [each], f"{place}[{index}]", each) for index, each in enumerate(data)]
    order = tuple(each for layer in layers for each in layer.selection.preference_order)
    return Layer(Selection(preference_order=order), tuple(fault for layer in layers for fault in layer.faults))


def _bounds(data: Mapping[str, object], place: str) -> Layer:
    found = _together(_read(data, field, field, place) for field in _CONSTRAINTS)
    bounds = found.selection
    if bounds.max_memory_bytes is not None and bounds.min_memory_bytes > bounds.max_memory_bytes:
        least, most = in_quotes(data.get("minMemory")), in_quotes(data.get("maxMemory"))
        fault = f"{place}.maxMemory is {most}, less than minMemory, {least}: write at least minMemory, or remove it"
        return Layer(msgspec.structs.replace(bounds, max_memory_bytes=None), (*found.faults, fault))
    return found


def _read(data: Mapping[str, object], field: str, parameter: str, place: str, *, listed: bool = False) -> Layer:
    value = data.get(field)
    if value is None or value in ("", []):
        return Layer()
    place = f"{place}.{field}"
    if isinstance(value, list) and len(value) > _MOST_NAMES:
        return Layer(faults=(f"{place} has {len(value)} entries: write at most {_MOST_NAMES}",))
    return _parameter(parameter, [value] if listed else value, place, value)


def _parameter(parameter: str, value: object, place: str, written: object) -> Layer:
    """Return the layer of one parameter of `accelerator-filter`."""
    try:
        read = cast("SelectionParameters", read_parameters(SelectionParameters, {parameter: value}))
        return Layer(read.selection())
    except ConfigurationError as error:
        problem = error.problem.removeprefix(parameter).removeprefix(": ").strip()
        remedy = error.remedy or problem.partition(": ")[2] or problem.partition("; ")[2] or problem
        return Layer(faults=(printable(f"{place} is {in_quotes(written)}: {remedy}", _MOST_CHARACTERS),))


def _threshold(text: str, place: str) -> Layer:
    try:
        dollars = float(text)
    except ValueError:
        dollars = -1.0
    if not 0 <= dollars < float("inf"):
        return Layer(faults=(f"{place} is {in_quotes(text)}: write US dollars an hour, such as 0.5",))
    return Layer(Selection(max_endpoint_cost_per_hour=dollars))


def _together(layers: Iterable[Layer]) -> Layer:
    found = Layer()
    for layer in layers:
        found = layer.over(found)
    return found


def in_quotes(value: object) -> str:
    return printable(f"{value!r}", 60)
