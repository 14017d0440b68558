# SPDX-License-Identifier: Apache-2.0
"""Admission checks of Kueue, and the clusters of MultiKueue that they use."""

import msgspec

from epp.kube.objects.base import ClusterObject, Condition, condition_of

_SECRET_PREFIX = "multikueue-"  # noqa: S105  a name


class _WithConditions(ClusterObject, frozen=True, kw_only=True):
    conditions: tuple[Condition, ...] = msgspec.field(default=(), name="status.conditions")

    @property
    def active(self) -> bool | None:
        """Whether the condition Active is True; None if it is unknown."""
        found = condition_of(self.conditions, "Active")
        return {"True": True, "False": False}.get(found.status) if found is not None else None


class AdmissionCheck(_WithConditions, frozen=True, kw_only=True):
    """A check that a workload passes before it is admitted, and the object with its parameters."""

    parameters_kind: str = msgspec.field(default="", name="spec.parameters.kind")
    parameters_name: str = msgspec.field(default="", name="spec.parameters.name")


class MultiKueueConfig(ClusterObject, frozen=True, kw_only=True):
    """The MultiKueueClusters of an admission check, by name."""

    clusters: tuple[str, ...] = msgspec.field(default=(), name="spec.clusters")


class MultiKueueCluster(_WithConditions, frozen=True, kw_only=True):
    """A cluster of MultiKueue, described by a ClusterProfile or a Secret; before v1beta2 in the spec itself."""

    profile: str = msgspec.field(default="", name="spec.clusterSource.clusterProfileRef.name")
    location: str = msgspec.field(default="", name="spec.clusterSource.kubeConfig.location")
    old_profile: str = msgspec.field(default="", name="spec.clusterProfileRef.name")
    old_location: str = msgspec.field(default="", name="spec.kubeConfig.location")

    @property
    def cluster(self) -> str:
        """Name of the cluster with its hub: that of its profile or secret, or else its own name."""
        for profile, location in ((self.profile, self.location), (self.old_profile, self.old_location)):
            if profile:
                return profile
            if location.startswith(_SECRET_PREFIX):
                return location.removeprefix(_SECRET_PREFIX)
        return self.name
