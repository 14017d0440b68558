# SPDX-License-Identifier: Apache-2.0
"""Quotas of accelerator memory: ResourceQuota and Namespace of Kubernetes, ClusterQueue and LocalQueue of Kueue."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from fractions import Fraction
from math import inf

import msgspec

from epp.kube.objects.base import ClusterObject, Object, Part
from epp.kube.objects.core import LabelSelector
from epp.kube.objects.limits import Amount, OptionalAmount, memory_bytes

MEMORY_RESOURCES = ("instaslice.redhat.com/accelerator-memory-quota", "gpu.das.openshift.io/mem")
"""Memory of MIG slices, in the first generation of InstaSlice and in the DAS operator; a bare number is in GB."""


def _bytes(size: Fraction | None) -> int | None:
    return 0 if size == 0 else memory_bytes(size)


class ResourceQuota(Object, frozen=True, kw_only=True):
    hard: Mapping[str, Amount] = msgspec.field(default_factory=dict, name="spec.hard")
    scopes: tuple[str, ...] = msgspec.field(default=(), name="spec.scopes")
    scope_selector: Mapping[str, object] = msgspec.field(default_factory=dict, name="spec.scopeSelector")

    @property
    def memory_bytes(self) -> int | None:
        """Memory of slices; None without a limit, and for a quota that applies only to some pods."""
        if self.scopes or self.scope_selector:
            return None
        names = (f"{prefix}{name}" for name in MEMORY_RESOURCES for prefix in ("requests.", "limits.", ""))
        sizes = (_bytes(self.hard.get(name)) for name in names)
        return min((size for size in sizes if size is not None), default=None)


class Namespace(ClusterObject, frozen=True, kw_only=True):
    """A namespace, for its labels."""


class QueueResource(Part, frozen=True, kw_only=True):
    name: str = ""
    nominal_quota: OptionalAmount = None
    borrowing_limit: OptionalAmount = None
    lending_limit: OptionalAmount = None


class QueueFlavor(Part, frozen=True, kw_only=True):
    name: str = ""
    resources: tuple[QueueResource, ...] = ()


class ResourceGroup(Part, frozen=True, kw_only=True):
    """Flavors that serve the same resources."""

    flavors: tuple[QueueFlavor, ...] = ()


class ClusterQueue(ClusterObject, frozen=True, kw_only=True):
    groups: tuple[ResourceGroup, ...] = msgspec.field(default=(), name="spec.resourceGroups")
    cohort_name: str = msgspec.field(default="", name="spec.cohortName")
    old_cohort: str = msgspec.field(default="", name="spec.cohort")
    namespaces: LabelSelector = msgspec.field(default=LabelSelector(), name="spec.namespaceSelector")

    @property
    def cohort(self) -> str:
        """Name of the group of queues that lend each other unused quota; empty for none."""
        return self.cohort_name or self.old_cohort

    @property
    def memory(self) -> Mapping[tuple[str, str], QueueResource]:
        """Quotas of the memory of slices by flavor and resource."""
        return {
            (flavor.name, each.name): each
            for group in self.groups
            for flavor in group.flavors
            for each in flavor.resources
            if each.name in MEMORY_RESOURCES
        }


class LocalQueue(Object, frozen=True, kw_only=True):
    """The queue of a namespace that leads to a ClusterQueue."""

    cluster_queue: str = msgspec.field(default="", name="spec.clusterQueue")


def queue_bytes(names: AbstractSet[str], queues: Iterable[ClusterQueue]) -> int | None:
    """Return the maximum memory of these queues together; None without a quota of memory.

    For each flavor of a cohort, the maximum is the sum of their `nominalQuota`, plus the quota that other queues of the
    cohort lend, up to the sum of their `borrowingLimit`.
    """
    total: int | None = None
    borrowed: dict[tuple[str, tuple[str, str]], float] = {}
    queues = tuple(queues)
    for queue in queues:
        for key, own in queue.memory.items() if queue.name in names else ():
            total = (total or 0) + (_bytes(own.nominal_quota) or 0)
            limit = _bytes(own.borrowing_limit)
            place = queue.cohort, key
            borrowed[place] = borrowed.get(place, 0) + (inf if limit is None else limit)
    for (cohort, key), most in borrowed.items():
        others = (each for each in queues if cohort and each.cohort == cohort and each.name not in names)
        total = (total or 0) + int(min(most, sum(_lent(each.memory[key]) for each in others if key in each.memory)))
    return total


def _lent(quota: QueueResource) -> int:
    nominal, limit = _bytes(quota.nominal_quota) or 0, _bytes(quota.lending_limit)
    return nominal if limit is None else min(nominal, limit)
