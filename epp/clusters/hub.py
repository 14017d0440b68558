# SPDX-License-Identifier: Apache-2.0
"""Immutable view of all objects about clusters."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from epp.framework.inputs import IgnoredValue
from epp.kube.objects.core import Node, Pod
from epp.kube.objects.dra import ResourceClaim, ResourceSlice
from epp.kube.objects.inference import InferencePoolImport
from epp.kube.objects.last_good import FileObjects, ObjectsByKind
from epp.kube.objects.multikueue import AdmissionCheck, MultiKueueCluster, MultiKueueConfig
from epp.kube.objects.ocm import (
    OCM,
    AddOnPlacementScore,
    ManagedCluster,
    ManagedClusterSet,
    ManagedClusterSetBinding,
    PlacementDecision,
)
from epp.kube.objects.placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """All objects in effect; the mappings are immutable, too."""

    scores: Mapping[str, AddOnPlacementScore] = field(default_factory=dict)
    """By `namespace/name`; the namespace is the name of the cluster."""
    clusters: Mapping[str, ManagedCluster] = field(default_factory=dict)
    sets: Mapping[str, ManagedClusterSet] = field(default_factory=dict)
    bindings: Mapping[str, ManagedClusterSetBinding] = field(default_factory=dict)
    placements: Mapping[str, Placement] = field(default_factory=dict)
    """By `namespace/name`, without terminating objects."""
    pages: Mapping[str, tuple[PlacementDecision, ...]] = field(default_factory=dict)
    """Pages of decisions, by `namespace/name` of the placement."""
    checks: Mapping[str, AdmissionCheck] = field(default_factory=dict)
    kueue_configs: Mapping[str, MultiKueueConfig] = field(default_factory=dict)
    kueue_clusters: Mapping[str, MultiKueueCluster] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    pods: Mapping[str, Pod] = field(default_factory=dict)
    slices: Mapping[str, ResourceSlice] = field(default_factory=dict)
    claims: Mapping[str, ResourceClaim] = field(default_factory=dict)
    imports: Mapping[str, InferencePoolImport] = field(default_factory=dict)
    """Imported pools, without terminating ones."""
    ignored: tuple[IgnoredValue, ...] = ()
    """Ignored values of objects in effect."""
    remarks: tuple[str, ...] = ()
    """Further messages about objects in effect."""
    problems: tuple[str, ...] = ()
    """Problems of all objects, including rejected versions."""

    @classmethod
    def build(cls, files: Iterable[FileObjects]) -> "Hub":
        """Return the objects of the files; a later object replaces one with the same name."""
        files = tuple(files)
        found = ObjectsByKind(files)
        of = found.of
        remarks = (*found.problems, *(note for file in files for note in file.notes), *found.unused({OCM}))
        not_in_effect = (str(problem) for file in files for problem in file.problems)
        pages: defaultdict[str, list[PlacementDecision]] = defaultdict(list)
        for page in sorted(of(PlacementDecision).values(), key=lambda page: page.id):
            if not page.metadata.is_terminating:
                pages[page.placement].append(page)
        return cls(
            scores=of(AddOnPlacementScore),
            clusters=of(ManagedCluster),
            sets=of(ManagedClusterSet),
            bindings=of(ManagedClusterSetBinding),
            placements={name: one for name, one in of(Placement).items() if not one.metadata.is_terminating},
            pages={name: tuple(each) for name, each in pages.items()},
            checks=of(AdmissionCheck),
            kueue_configs=of(MultiKueueConfig),
            kueue_clusters=of(MultiKueueCluster),
            nodes=of(Node),
            pods=of(Pod),
            slices=of(ResourceSlice),
            claims=of(ResourceClaim),
            imports={name: one for name, one in of(InferencePoolImport).items() if not one.metadata.is_terminating},
            ignored=found.ignored,
            remarks=remarks,
            problems=(*not_in_effect, *remarks, *map(str, found.ignored)),
        )

    def bound_sets(self, namespace: str) -> frozenset[str] | None:
        """Return the cluster sets bound to a namespace; None if there are no bindings at all."""
        if not self.bindings:
            return None
        return frozenset(each.cluster_set for each in self.bindings.values() if each.metadata.namespace == namespace)
