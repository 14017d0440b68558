# SPDX-License-Identifier: Apache-2.0
"""Kinds of the Kubernetes API that a picker uses: versions, plural and scope of each."""

from typing import NamedTuple

from epp.framework.cluster import ObjectKind
from epp.kube.objects.dynamic_scoring import DYNAMIC_SCORING
from epp.kube.objects.inference import GROUP, LEGACY_GROUP, POOL_GROUP
from epp.kube.objects.ocm import OCM


class Resource(NamedTuple):
    """A kind of object, and its place on the API server."""

    group: str
    """Empty for the core group."""
    versions: tuple[str, ...]
    """Supported versions; the first one on the server is used."""
    plural: str
    """Empty for a kind whose plural is discovered."""
    kind: str
    namespaced: bool = True
    everywhere: bool = False
    """Whether it is read in all namespaces; in that of the pool if access to all of them is forbidden."""
    names: str = ""
    """Regular expression of the names of the objects that are read; empty for all."""

    @property
    def key(self) -> tuple[str, str]:
        """Group and kind."""
        return self.group, self.kind

    @property
    def title(self) -> str:
        """`plural.group`, as kubectl and RBAC rules name it."""
        name = self.plural or self.kind
        return f"{name}.{self.group}" if self.group else name

    def path(self, version: str, namespace: str = "") -> str:
        """Return the path of the collection, in one namespace or in all of them."""
        root = f"/apis/{self.group}/{version}" if self.group else f"/api/{version}"
        space = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{root}{space}/{self.plural}"

    def api_version(self, version: str) -> str:
        """Return the `apiVersion` of its objects."""
        return f"{self.group}/{version}" if self.group else version


PODS = Resource("", ("v1",), "pods", "Pod")
NODES = Resource("", ("v1",), "nodes", "Node", namespaced=False)
SECRETS = Resource("", ("v1",), "secrets", "Secret")
CONFIG_MAPS = Resource("", ("v1",), "configmaps", "ConfigMap")


def pools(group: str) -> Resource:
    """Return the resource of InferencePools in the group of `--pool-group`."""
    return Resource(group, ("v1",), "inferencepools", "InferencePool")


OBJECTIVES = Resource(GROUP, ("v1alpha2",), "inferenceobjectives", "InferenceObjective")
LEGACY_OBJECTIVES = OBJECTIVES._replace(group=LEGACY_GROUP)
REWRITES = Resource(GROUP, ("v1alpha2",), "inferencemodelrewrites", "InferenceModelRewrite")
LEGACY_REWRITES = REWRITES._replace(group=LEGACY_GROUP)

POLICIES = (OBJECTIVES, LEGACY_OBJECTIVES, REWRITES, LEGACY_REWRITES)

LEASES = Resource("coordination.k8s.io", ("v1",), "leases", "Lease")
EVENTS = Resource("", ("v1",), "events", "Event")

REVIEWS = (
    Resource("authentication.k8s.io", ("v1",), "tokenreviews", "TokenReview", namespaced=False),
    Resource("authorization.k8s.io", ("v1",), "subjectaccessreviews", "SubjectAccessReview", namespaced=False),
)

OME_SERVICES = (
    Resource("ome.io", ("v1beta1",), "inferenceservices", "InferenceService"),
    Resource("ome.io", ("v1beta1",), "servingruntimes", "ServingRuntime"),
    Resource("ome.io", ("v1beta1",), "clusterservingruntimes", "ClusterServingRuntime", namespaced=False),
)
"""Objects that bound the hardware of requests."""
_DRA = ("v1", "v1beta2", "v1beta1")
ACCELERATORS = (
    NODES,
    Resource("ome.io", ("v1beta1",), "acceleratorclasses", "AcceleratorClass", namespaced=False),
    Resource("inference.redhat.com", ("v1alpha1",), "instaslices", "Instaslice", everywhere=True),
    Resource("inference.redhat.com", ("v1alpha1",), "nodeaccelerators", "NodeAccelerator", everywhere=True),
    Resource("inference.redhat.com", ("v1alpha1",), "allocationclaims", "AllocationClaim", everywhere=True),
    Resource("tensor-fusion.ai", ("v1",), "gpus", "GPU", namespaced=False),
    Resource("tensor-fusion.ai", ("v1",), "gpunodes", "GPUNode", namespaced=False),
    Resource("tensor-fusion.ai", ("v1",), "gpupools", "GPUPool", namespaced=False),
    Resource("tensor-fusion.ai", ("v1",), "schedulingconfigtemplates", "SchedulingConfigTemplate", namespaced=False),
    Resource("tensor-fusion.ai", ("v1",), "gpuresourcequotas", "GPUResourceQuota", everywhere=True),
    Resource("resource.k8s.io", _DRA, "resourceslices", "ResourceSlice", namespaced=False),
    Resource("resource.k8s.io", _DRA, "resourceclaims", "ResourceClaim"),
    Resource("resource.k8s.io", _DRA, "deviceclasses", "DeviceClass", namespaced=False),
    Resource("resource.k8s.io", ("v1", "v1beta2", "v1alpha3"), "devicetaintrules", "DeviceTaintRule", namespaced=False),
    Resource("kueue.x-k8s.io", ("v1beta2", "v1beta1"), "resourceflavors", "ResourceFlavor", namespaced=False),
    Resource("llmd.ai", ("v1alpha1",), "variantautoscalings", "VariantAutoscaling"),
    CONFIG_MAPS,
)
MEMORY_QUOTAS = (
    Resource("", ("v1",), "namespaces", "Namespace", namespaced=False),
    Resource("", ("v1",), "resourcequotas", "ResourceQuota", everywhere=True),
    Resource("kueue.x-k8s.io", ("v1beta2", "v1beta1"), "clusterqueues", "ClusterQueue", namespaced=False),
    Resource("kueue.x-k8s.io", ("v1beta2", "v1beta1"), "localqueues", "LocalQueue", everywhere=True),
)
"""Quotas of accelerator memory, which the plugin tenant-quotas applies if it is told to, and labels of namespaces."""

_SETS = ("v1beta2", "v1beta1")
_KUEUE = ("v1beta2", "v1beta1", "v1alpha1")
CLUSTERS = (
    Resource(OCM, ("v1alpha1",), "addonplacementscores", "AddOnPlacementScore", everywhere=True),
    Resource(OCM, ("v1",), "managedclusters", "ManagedCluster", namespaced=False),
    Resource(OCM, _SETS, "managedclustersets", "ManagedClusterSet", namespaced=False),
    Resource(OCM, _SETS, "managedclustersetbindings", "ManagedClusterSetBinding", everywhere=True),
    Resource(OCM, ("v1beta1", "v1alpha1"), "placements", "Placement", everywhere=True),
    Resource(OCM, ("v1beta1", "v1alpha1"), "placementdecisions", "PlacementDecision", everywhere=True),
    Resource("kueue.x-k8s.io", ("v1beta2", "v1beta1"), "admissionchecks", "AdmissionCheck", namespaced=False),
    Resource("kueue.x-k8s.io", _KUEUE, "multikueueclusters", "MultiKueueCluster", namespaced=False),
    Resource("kueue.x-k8s.io", _KUEUE, "multikueueconfigs", "MultiKueueConfig", namespaced=False),
    Resource(LEGACY_GROUP, ("v1alpha1",), "inferencepoolimports", "InferencePoolImport"),
)
SCORERS = (
    Resource(DYNAMIC_SCORING, ("v1alpha1", "v1"), "dynamicscorers", "DynamicScorer", everywhere=True),
    Resource(DYNAMIC_SCORING, ("v1alpha1", "v1"), "dynamicscoringconfigs", "DynamicScoringConfig", everywhere=True),
)

_ALL = (PODS, *POLICIES, pools(POOL_GROUP), *ACCELERATORS, *OME_SERVICES, *MEMORY_QUOTAS, *CLUSTERS, *SCORERS)
BY_KIND = {each.key: each for each in _ALL}


def resource_of(kind: ObjectKind) -> Resource:
    """Return the resource of a kind that a plugin reads; an unknown kind is discovered on the API server."""
    known = BY_KIND.get((kind.group, kind.kind), Resource(kind.group, (), "", kind.kind))
    known = known._replace(everywhere=known.everywhere or kind.everywhere, names=kind.names)
    return known._replace(versions=(kind.version,)) if kind.version else known
