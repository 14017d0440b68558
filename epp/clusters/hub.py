# SPDX-License-Identifier: Apache-2.0
"""Immutable view of all objects about clusters."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeVar

from epp.kube.objects.base import Object
from epp.kube.objects.core import Node, Pod
from epp.kube.objects.dra import ResourceClaim, ResourceSlice
from epp.kube.objects.inference import InferencePoolImport
from epp.kube.objects.last_good import FileObjects, ObjectsByKind
from epp.kube.objects.ocm import (
    OCM,
    AddOnPlacementScore,
    AdmissionCheck,
    ManagedCluster,
    ManagedClusterSet,
    ManagedClusterSetBinding,
    MultiKueueCluster,
    MultiKueueConfig,
    PlacementDecision,
)
from epp.kube.objects.placement import Placement

O = TypeVar("O", bound=Object)  # noqa: E741  an object


class Hub:
    """All objects in effect; immutable."""

    def __init__(self, files: Iterable[FileObjects] = ()) -> None:
        """Index the objects of the files; a later object replaces one with the same name."""
        files = tuple(files)
        found = ObjectsByKind(files)
        self.scores = found.of(AddOnPlacementScore)
        """By `namespace/name`; the namespace is the name of the cluster."""
        self.clusters = found.of(ManagedCluster)
        self.sets = found.of(ManagedClusterSet)
        self.bindings = found.of(ManagedClusterSetBinding)
        self.placements = _without_terminating(found.of(Placement))
        """By `namespace/name`, without terminating objects."""
        pages: defaultdict[str, list[PlacementDecision]] = defaultdict(list)
        for _, page in sorted(_without_terminating(found.of(PlacementDecision)).items()):
            pages[page.placement].append(page)
        self.pages = {name: tuple(each) for name, each in pages.items()}
        """Pages of decisions, by `namespace/name` of the placement."""
        self.checks = found.of(AdmissionCheck)
        self.kueue_configs = found.of(MultiKueueConfig)
        self.kueue_clusters = found.of(MultiKueueCluster)
        self.nodes = found.of(Node)
        self.pods = found.of(Pod)
        self.slices = found.of(ResourceSlice)
        self.claims = found.of(ResourceClaim)
        self.imports = _without_terminating(found.of(InferencePoolImport))
        """Imported pools, without terminating ones."""
        self.ignored = found.ignored
        """Ignored values of objects in effect."""
        self.remarks = (*found.problems, *(note for file in files for note in file.notes), *found.unused({OCM}))
        """Further messages about objects in effect."""
        rejected = (str(problem) for file in files for problem in file.problems)
        self.problems = (*rejected, *self.remarks, *map(str, found.ignored))
        """Problems of all objects, including rejected versions."""

    def bound_sets(self, namespace: str) -> frozenset[str] | None:
        """Return the cluster sets bound to a namespace; None if there are no bindings at all."""
        if not self.bindings:
            return None
        return frozenset(each.cluster_set for each in self.bindings.values() if each.metadata.namespace == namespace)


def _without_terminating(objects: Mapping[str, O]) -> dict[str, O]:
    return {name: each for name, each in objects.items() if not each.metadata.is_terminating}
