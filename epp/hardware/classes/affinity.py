# SPDX-License-Identifier: Apache-2.0
"""Node affinity: required terms, evaluated on the labels of a node, and their validation."""

from collections.abc import Iterator, Mapping
from fractions import Fraction

from epp.kube.objects.base import quantity_of
from epp.kube.objects.core import MatchExpression, NodeSelector, NodeSelectorTerm

OPERATORS = frozenset({"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"})
_ALIASES = frozenset({"Gte", "Lte"})
_NUMERIC = frozenset({"Gt", "Lt", "Gte", "Lte"})
_MEBIBYTE_LABELS = frozenset({"nvidia.com/gpu.memory"})


def matching_term(selector: NodeSelector, labels: Mapping[str, str], node: str = "") -> NodeSelectorTerm | None:
    """Return the matching term with the most tests, None if no term matches. An empty term never matches."""
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
    """Return whether the test holds; an invalid one never does."""
    value = labels.get(test.key)
    match test.operator:
        case "Exists":
            holds = value is not None
        case "DoesNotExist":
            holds = value is None
        case "In":
            holds = value is not None and value in test.values
        case "NotIn":
            holds = value is None or value not in test.values
        case _:
            holds = value is not None and _number_holds(test, value)
    return holds


def _number_holds(test: MatchExpression, value: str) -> bool:
    if test.operator not in _NUMERIC or len(test.values) != 1:
        return False
    try:
        have, bound = quantity_of(value), _bound(test)
    except ValueError:
        return False
    return {"Gt": have > bound, "Lt": have < bound, "Gte": have >= bound, "Lte": have <= bound}[test.operator]


def problems_of(selector: NodeSelector) -> Iterator[str]:
    """Yield deviations from the Kubernetes API, each with its interpretation."""
    for test in _tests(selector):
        if test.operator in _ALIASES:
            alias = f"read as {test.operator[:2]} or equal"
            yield f"{test.key}: Kubernetes has no operator {test.operator}; {alias}"
        if not _fault_of(test) and test.operator in _NUMERIC and not test.values[0].lstrip("-").isdecimal():
            number = float(_bound(test))
            yield f"{test.key}: {test.values[0]!r} is not an integer, as Kubernetes requires; read as {number:g}"
    yield from (f"{fault}; the term matches no node" for fault in faults_of(selector))


def faults_of(selector: NodeSelector) -> Iterator[str]:
    """Yield invalid tests, whose terms match no node, each with its remedy."""
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
    """Return the number to compare with; a quantity with a unit is converted to the unit of the label."""
    text = test.values[0]
    number = quantity_of(text)
    if test.key in _MEBIBYTE_LABELS and text[-1:].isalpha():
        return number / 2**20
    return number
