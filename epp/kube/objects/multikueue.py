# SPDX-License-Identifier: Apache-2.0
"""Admission checks of Kueue, and the clusters of MultiKueue that they use."""

from typing import TypeAlias

from epp.kube.objects.base import ClusterObject, Condition, Part, condition_of

_SECRET_PREFIX = "multikueue-"  # noqa: S105  a name


class CheckParameters(Part, frozen=True, kw_only=True):
    """The object that an admission check goes by."""

    kind: str = ""
    name: str = ""


class CheckSpec(Part, frozen=True, kw_only=True):
    """Spec of an admission check."""

    controller_name: str = ""
    parameters: CheckParameters = CheckParameters()


class Conditions(Part, frozen=True, kw_only=True):
    """A status of conditions."""

    conditions: tuple[Condition, ...] = ()

    @property
    def active(self) -> bool | None:
        """Whether the condition Active is True; None without it, or where it is unknown."""
        found = condition_of(self.conditions, "Active")
        return {"True": True, "False": False}.get(found.status) if found is not None else None


class AdmissionCheck(ClusterObject, frozen=True, kw_only=True):
    """A check that a workload passes before it is admitted."""

    spec: CheckSpec = CheckSpec()
    status: Conditions = Conditions()


class ConfigSpec(Part, frozen=True, kw_only=True):
    """Spec of a MultiKueueConfig."""

    clusters: tuple[str, ...] = ()
    """Names of MultiKueueClusters."""


class MultiKueueConfig(ClusterObject, frozen=True, kw_only=True):
    """The clusters of an admission check."""

    spec: ConfigSpec = ConfigSpec()


class KubeConfig(Part, frozen=True, kw_only=True):
    """Where the credentials of a cluster are."""

    location: str = ""


class ProfileReference(Part, frozen=True, kw_only=True):
    """A reference to a ClusterProfile."""

    name: str = ""


class ClusterSource(Part, frozen=True, kw_only=True):
    """Where a cluster is described, in v1beta2."""

    kube_config: KubeConfig = KubeConfig()
    cluster_profile_ref: ProfileReference = ProfileReference()


class KueueClusterSpec(ClusterSource, frozen=True, kw_only=True):
    """Spec of a MultiKueueCluster; before v1beta2 the source is in the spec itself."""

    cluster_source: ClusterSource = ClusterSource()


class MultiKueueCluster(ClusterObject, frozen=True, kw_only=True):
    """A cluster of MultiKueue."""

    spec: KueueClusterSpec = KueueClusterSpec()
    status: Conditions = Conditions()

    @property
    def cluster(self) -> str:
        """Name of the cluster with its hub: that of its profile or secret, or else its own name."""
        for source in (self.spec.cluster_source, self.spec):
            if source.cluster_profile_ref.name:
                return source.cluster_profile_ref.name
            if source.kube_config.location.startswith(_SECRET_PREFIX):
                return source.kube_config.location.removeprefix(_SECRET_PREFIX)
        return self.name


KueueObject: TypeAlias = AdmissionCheck | MultiKueueConfig | MultiKueueCluster
