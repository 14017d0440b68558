# SPDX-License-Identifier: Apache-2.0
"""Placement of Open Cluster Management: how clusters are chosen."""

from collections.abc import Mapping

import msgspec

from epp.framework.clusters import TaintEffect
from epp.kube.objects.base import Object, Part
from epp.kube.objects.core import MatchExpression
from epp.kube.objects.ocm import LabelSelector

BALANCE, STEADY = "Balance", "Steady"
ALLOCATABLE = {"ResourceAllocatableCPU": "cpu", "ResourceAllocatableMemory": "memory"}
"""Resources that built-in prioritizers compare, by name of the prioritizer."""
DEFAULT_RATE_LIMIT = 60.0


class ClusterSelector(Part, frozen=True, kw_only=True):
    """Selects clusters by labels and claims, which must both match."""

    labels: LabelSelector = LabelSelector()
    claims: tuple[MatchExpression, ...] = ()
    never: bool = False
    """Whether it has a part that cannot be evaluated, so that it selects no cluster."""


class Toleration(Part, frozen=True, kw_only=True):
    """Taints that are tolerated, perhaps for some time."""

    key: str = ""
    """Empty for all keys."""
    exists: bool = False
    """Whether any value is tolerated."""
    value: str = ""
    effect: TaintEffect | None = None
    """None for all effects."""
    seconds: float | None = None
    """Time since the taint was added; None for ever."""


class Coordinate(Part, frozen=True, kw_only=True):
    """A built-in prioritizer, or a score of an add-on."""

    built_in: str = ""
    resource: str = ""
    """Name of the AddOnPlacementScore, where it is a score of an add-on."""
    score: str = ""

    @property
    def name(self) -> str:
        """Name in explanations."""
        return self.built_in or f"AddOn/{self.resource}/{self.score}"


class SpreadConstraint(Part, frozen=True, kw_only=True):
    """Distribution of the chosen clusters over the values of a label or claim."""

    key: str
    is_claim: bool = False
    max_skew: int = 1
    required: bool = False
    """Whether a cluster that would break it is not chosen; otherwise only after others."""


class DecisionGroup(Part, frozen=True, kw_only=True):
    """A named group of the chosen clusters."""

    name: str
    selector: ClusterSelector


class Placement(Object, frozen=True, kw_only=True):
    """How clusters are chosen."""

    cluster_sets: tuple[str, ...] = ()
    number_of_clusters: int | None = None
    """None for all that pass."""
    predicates: tuple[ClusterSelector, ...] = ()
    """A cluster passes if one of them selects it, or if there is none."""
    tolerations: tuple[Toleration, ...] = ()
    weights: Mapping[Coordinate, float] = msgspec.field(default_factory=dict)
    """Of all prioritizers; those of weight 0 are without effect."""
    spread: tuple[SpreadConstraint, ...] = ()
    groups: tuple[DecisionGroup, ...] = ()
    clusters_per_group: float | None = None
    """A number from 1, or a share below 1; None for all."""
    sort_by_score: bool = False
    score_rate_limit: float = DEFAULT_RATE_LIMIT
    """Seconds between two changes of scores that do not change the chosen clusters."""
    disabled: bool = False
    """Whether its annotation forbids to evaluate it."""
    faults: tuple[str, ...] = ()
    """Values left out: field, value and remedy of each."""
