# SPDX-License-Identifier: Apache-2.0
"""Keeps the endpoints on nodes that terms of node affinity select."""

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import field

from epp.framework import NODE_LABELS, Candidates, Filter, FilterParameters, Mask, Parameters, Request
from epp.framework.label_selectors import LabelSelector, Requirement
from epp.framework.limits import Name
from epp.framework.result import DropCause
from epp.framework.snapshot import NODE_NAME

_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "", "DoesNotExist": "!", "Gt": ">", "Lt": "<"}
_WITHOUT_VALUES = frozenset({"Exists", "DoesNotExist"})
_OF_NUMBERS = frozenset({"Gt", "Lt"})
_DIGITS = 18


class NodeExpression(Parameters, frozen=True, kw_only=True):
    """A test of one label, as in the node affinity of pods."""

    key: Name
    """Label of the node."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """`Gt` and `Lt` compare whole numbers; `NotIn` holds for a missing label as well."""
    values: tuple[str, ...] = ()
    """Values to compare with: none for `Exists` and `DoesNotExist`, one whole number for `Gt` and `Lt`."""

    def __post_init__(self) -> None:
        """Refuse values that do not fit the operator; raises ValueError."""
        if self.operator in _WITHOUT_VALUES and self.values:
            raise ValueError(f"{self.key}: {self.operator} takes no values; remove them, or write In")
        if self.operator not in _WITHOUT_VALUES and not self.values:
            raise ValueError(f"{self.key}: {self.operator} needs values; add them, or write Exists")
        if self.operator in _OF_NUMBERS and not (len(self.values) == 1 and _is_whole_number(self.values[0])):
            raise ValueError(f"{self.key}: {self.operator} takes one whole number, such as ['4']")

    def requirement(self) -> Requirement:
        """Return the same as a requirement of a label selector."""
        return Requirement(self.key, _OPERATORS[self.operator], self.values)


class NodeTerm(Parameters, frozen=True, kw_only=True):
    """Tests that must all hold."""

    match_expressions: tuple[NodeExpression, ...] = ()
    """Tests of labels."""
    match_fields: tuple[NodeExpression, ...] = ()
    """Tests of fields: only `metadata.name`, the name of the node."""

    def __post_init__(self) -> None:
        """Refuse a term without tests, which would select no node, and other fields; raises ValueError."""
        if not (self.match_expressions or self.match_fields):
            raise ValueError("a term without tests selects no node: add matchExpressions, or remove it")
        for test in self.match_fields:
            if test.key != NODE_NAME:
                raise ValueError(f"matchFields has {test.key!r}: write {NODE_NAME}, the only field of nodes")

    def selector(self) -> LabelSelector:
        """Return the same as a label selector."""
        return LabelSelector(tuple(test.requirement() for test in (*self.match_expressions, *self.match_fields)))


class NodeAffinityParameters(FilterParameters, frozen=True):
    """Nodes that are selected."""

    node_selector: dict[str, str] = field(default_factory=dict)
    """Labels that the node must have, with these values."""
    node_selector_terms: tuple[NodeTerm, ...] = ()
    """Terms of which one must hold, as in the required node affinity of pods."""
    on_unknown: Literal["Pass", "Fail"] = "Fail"
    """How to treat endpoints on unknown nodes: `Fail` drops them, `Pass` keeps them."""


class NodeAffinityFilter(Filter[NodeAffinityParameters]):
    """Keeps an endpoint if its node has all labels of `nodeSelector` and meets one of `nodeSelectorTerms`.

    The node is known from the pod, or from the endpoint list. Labels of an endpoint without a pod count as those of its
    node.
    """

    plugin_type = "node-affinity-filter"
    drops = DropCause.CONSTRAINT
    reads = (NODE_LABELS,)

    def setup(self) -> None:
        self._terms = tuple(term.selector() for term in self.parameters.node_selector_terms)
        self._passes = self.parameters.on_unknown == "Pass"

    @property
    def warnings(self) -> Sequence[str]:
        if self.parameters.node_selector or self.parameters.node_selector_terms:
            return ()
        return ("it selects every node: set nodeSelector or nodeSelectorTerms, or remove it",)

    def filter(self, request: Request, candidates: Candidates) -> Mask:  # noqa: ARG002
        return candidates.snapshot.records(NODE_LABELS).derive_mask(self._keeps)[candidates.slots]

    def _keeps(self, labels: Mapping[str, str]) -> bool:
        if not labels:
            return self._passes
        return all(labels.get(key) == value for key, value in self.parameters.node_selector.items()) and (
            not self._terms or any(term.matches(labels) for term in self._terms)
        )

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:  # noqa: ARG002
        return [self._unmet(labels) for labels in dropped.records(NODE_LABELS)]

    def _unmet(self, labels: Mapping[str, str]) -> str:
        if not labels:
            return "its node is not known"
        for key, value in self.parameters.node_selector.items():
            if labels.get(key) != value:
                return f"the label {key} of its node is {labels[key]!r}" if key in labels else f"its node has no {key}"
        return f"no term selects its node {labels.get(NODE_NAME, '')}".rstrip()


def _is_whole_number(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS
