# SPDX-License-Identifier: Apache-2.0
"""Validation of AcceleratorClasses, and the node affinity in them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction

from epp.framework.accelerators.device_expressions import DeviceExpression
from epp.kube.objects.base import Object, quantity_of
from epp.kube.objects.core import MatchExpression, NodeSelector, NodeSelectorTerm
from epp.kube.objects.limits import BARE_GB_BELOW
from epp.kube.objects.ome import AcceleratorClass, Capabilities

TIERS = frozenset({"low", "medium", "high"})
OPERATORS = frozenset({"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"})
_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*")
_ALIASES = frozenset({"Gte", "Lte"})
_NUMERIC = frozenset({"Gt", "Lt", "Gte", "Lte"})
_MEBIBYTE_LABELS = frozenset({"nvidia.com/gpu.memory"})


def matching_term(selector: NodeSelector, labels: Mapping[str, str], node: str = "") -> NodeSelectorTerm | None:
    """Return the matching term with most tests, None without a match. An empty term never matches."""
    holding = [term for term in selector.node_selector_terms if term_holds(term, labels, node)]
    return max(holding, key=term_size, default=None)


def term_size(term: NodeSelectorTerm) -> int:
    """Return the number of tests."""
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
    if value is None or test.operator not in _NUMERIC:
        return test.holds(labels)
    if len(test.values) != 1:
        return False
    try:
        have, bound = quantity_of(value), _bound(test)
    except ValueError:
        return False
    return {"Gt": have > bound, "Lt": have < bound, "Gte": have >= bound, "Lte": have <= bound}[test.operator]


def affinity_problems(selector: NodeSelector) -> Iterator[str]:
    """Yield deviations from the Kubernetes API with their interpretation."""
    for test in _tests(selector):
        if test.operator in _ALIASES:
            alias = f"read as {test.operator[:2]} or equal"
            yield f"{test.key}: Kubernetes has no operator {test.operator}; {alias}"
        if not _fault_of(test) and test.operator in _NUMERIC and not test.values[0].lstrip("-").isdecimal():
            number = float(_bound(test))
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
    if test.operator not in OPERATORS | _ALIASES:
        return f"unknown operator {test.operator!r}; write one of {', '.join(sorted(OPERATORS))}"
    if test.operator in _NUMERIC:
        if len(test.values) != 1:
            return f"{test.operator} takes one value, not {len(test.values)}"
        try:
            _bound(test)
        except ValueError as error:
            return str(error)
    return ""


def _bound(test: MatchExpression) -> Fraction:
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


def object_faults(each: Object) -> Iterable[str]:
    """Return the invalid values of an AcceleratorClass; none for other kinds."""
    return faults_of(each) if isinstance(each, AcceleratorClass) else ()


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
