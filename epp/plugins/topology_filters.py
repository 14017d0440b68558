# SPDX-License-Identifier: Apache-2.0
"""Filters by the location of an endpoint: its node, zone and GPU links."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Meta, field

from epp.framework import (
    ACCELERATOR,
    NODE_LABELS,
    TOPOLOGY,
    Candidates,
    Filter,
    FilterParameters,
    Mask,
    Parameters,
    Request,
)
from epp.framework.accelerators.places import SAME_NUMA, device_closeness, known_nodes, node_numbers, tiers_of
from epp.framework.arrays import any_true, everyone
from epp.framework.candidates import LEVELS, closeness
from epp.framework.endpoint import LabelSelector, Requirement
from epp.framework.limits import Name
from epp.framework.result import DropCause
from epp.framework.snapshot import NODE_NAME
from epp.plugins.label_filters import OPERATORS

_WITHOUT_VALUES = frozenset({"Exists", "DoesNotExist"})
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
        if self.operator in _WITHOUT_VALUES and self.values:
            raise ValueError(f"{self.key}: {self.operator} takes no values; remove them, or write In")
        if self.operator not in _WITHOUT_VALUES and not self.values:
            raise ValueError(f"{self.key}: {self.operator} needs values; add them, or write Exists")
        if self.operator in {"Gt", "Lt"} and not (len(self.values) == 1 and _is_whole_number(self.values[0])):
            raise ValueError(f"{self.key}: {self.operator} takes one whole number, such as ['4']")


class NodeTerm(Parameters, frozen=True, kw_only=True):
    """Tests that must all hold."""

    match_expressions: tuple[NodeExpression, ...] = ()
    """Tests of labels."""
    match_fields: tuple[NodeExpression, ...] = ()
    """Tests of fields: only `metadata.name`, the name of the node."""

    def __post_init__(self) -> None:
        if not (self.match_expressions or self.match_fields):
            raise ValueError("a term without tests selects no node: add matchExpressions, or remove it")
        for test in self.match_fields:
            if test.key != NODE_NAME:
                raise ValueError(f"matchFields has {test.key!r}: write {NODE_NAME}, the only field of nodes")

    def selector(self) -> LabelSelector:
        tests = (*self.match_expressions, *self.match_fields)
        return LabelSelector(tuple(Requirement(test.key, OPERATORS[test.operator], test.values) for test in tests))


class NodeAffinityParameters(FilterParameters, frozen=True):
    """Selected nodes."""

    node_selector: dict[str, str] = field(default_factory=dict)
    """Labels that the node must have, with these values."""
    node_selector_terms: tuple[NodeTerm, ...] = ()
    """At least one of these terms must hold, as in the required node affinity of pods."""
    on_unknown: Literal["Pass", "Fail"] = "Fail"
    """Treatment of endpoints on unknown nodes: `Fail` drops them, `Pass` keeps them."""


class NodeAffinityFilter(Filter[NodeAffinityParameters]):
    """Keeps an endpoint if its node has all labels of `nodeSelector` and meets one of `nodeSelectorTerms`.

    The node is known from the pod, or from the endpoint list. For an endpoint without a pod, its own labels count as
    the labels of its node.
    """

    plugin_type = "node-affinity-filter"
    drops = DropCause.CONSTRAINT
    reads = (NODE_LABELS,)

    def setup(self) -> None:
        self._terms = tuple(term.selector() for term in self.parameters.node_selector_terms)
        self._passes_unknown = self.parameters.on_unknown == "Pass"

    @property
    def warnings(self) -> Sequence[str]:
        if self.parameters.node_selector or self.parameters.node_selector_terms:
            return ()
        return ("it selects every node: set nodeSelector or nodeSelectorTerms, or remove it",)

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        return candidates.snapshot.records(NODE_LABELS).derive_mask(self._keeps)[candidates.slots]

    def _keeps(self, labels: Mapping[str, str]) -> bool:
        if not labels:
            return self._passes_unknown
        return all(labels.get(key) == value for key, value in self.parameters.node_selector.items()) and (
            not self._terms or any(term.matches(labels) for term in self._terms)
        )

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:
        return [self._node_reason(labels) for labels in dropped.records(NODE_LABELS)]

    def _node_reason(self, labels: Mapping[str, str]) -> str:
        if not labels:
            return "its node is not known"
        for key, value in self.parameters.node_selector.items():
            if labels.get(key) != value:
                return f"the label {key} of its node is {labels[key]!r}" if key in labels else f"its node has no {key}"
        return f"no term selects its node {labels.get(NODE_NAME, '')}".rstrip()


def _is_whole_number(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS


class SameNodeFilterParameters(FilterParameters, frozen=True):
    """Treatment of unknown nodes."""

    on_unknown: Literal["Pass", "Fail"] = "Fail"
    """Treatment of endpoints if their node or the peer's node is unknown: `Fail` drops them, `Pass` keeps them."""


class SameNodeFilter(Filter[SameNodeFilterParameters]):
    """Keeps an endpoint if it is on the node of the peer, so that all legs of a request run on one machine.

    The peer is the endpoint picked for the first leg of the request; without one, all endpoints are kept. If no
    endpoint is left, the profile fails, unless `fallbackOnEmpty` is set.
    """

    plugin_type = "same-node-filter"
    drops = DropCause.CONSTRAINT
    drop_means = "is not on the node of the peer, or its node is not known"
    reads = (ACCELERATOR,)

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        peer = candidates.peer
        if peer is None:
            return everyone(len(candidates))
        nodes, known = node_numbers(candidates.snapshot), known_nodes(candidates.snapshot)
        same: Mask = nodes[candidates.slots] == nodes.item(peer)
        if self.parameters.on_unknown == "Pass":
            same |= ~known[candidates.slots] | (not known.item(peer))
        return same


class TopologyAffinityFilterParameters(FilterParameters, frozen=True):
    """Distance limit."""

    min_affinity: Literal["host", "rack", "zone", "region", "cluster"] = "host"
    """Widest place that an endpoint must share with the peer."""
    topology_producer_name: str = ""
    """Accepted for compatibility: the topology of an endpoint has one source."""


class TopologyAffinityFilter(Filter[TopologyAffinityFilterParameters]):
    """Keeps an endpoint if it shares `minAffinity` or a narrower place with the peer.

    The peer is the endpoint picked for the first leg of the request. All endpoints are kept if there is no peer, if its
    location is unknown, or if all endpoints are too far away.
    """

    plugin_type = "topology-affinity-filter"
    may_empty = False
    drop_means = "is farther from the peer than minAffinity allows"
    reads = (TOPOLOGY,)

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        peer = candidates.peer
        if peer is not None:
            near = closeness(candidates, peer) <= LEVELS.index(self.parameters.min_affinity)
            if any_true(near):
                return near
        return everyone(len(candidates))


class GpuTopologyFilterParameters(FilterParameters, frozen=True):
    """Limit on the connection to the peer."""

    max_allowed_tier: Annotated[int, Meta(ge=0, le=3)] = SAME_NUMA
    """Worst connection to the peer: 0 direct link or NVLink clique, 1 same NUMA node or PCIe root, 2 across NUMA nodes
    of one machine, 3 any."""


class GpuTopologyFilter(Filter[GpuTopologyFilterParameters]):
    """Keeps an endpoint if all its devices have a connection of `maxAllowedTier` or better to a device of the peer.

    The peer is the endpoint picked for the first leg of the request; without one, all endpoints are kept. Tiers are
    those of `gpu-topology-scorer`.
    """

    plugin_type = "gpu-topology-filter"
    drops = DropCause.CONSTRAINT
    reads = (ACCELERATOR,)

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        if candidates.peer is None:
            return everyone(len(candidates))
        return tiers_of(device_closeness(candidates, candidates.peer)) <= self.parameters.max_allowed_tier

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:
        if dropped.peer is None:
            return ()
        tiers = tiers_of(device_closeness(dropped, dropped.peer)).tolist()
        return [f"is connected to the peer in tier {tier:g}" for tier in tiers]
