# SPDX-License-Identifier: Apache-2.0
"""Kinds of the Kubernetes API that a picker uses, its rights, and the Role and ClusterRole that grant them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from epp.framework.cluster_objects import HubAccess, ObjectKind
from epp.kube.objects.inference import GROUP, LEGACY_GROUP, POOL_GROUP
from epp.kube.objects.ocm import DYNAMIC_SCORING, OCM


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
    """Whether all namespaces are read; only that of the pool if access to all is forbidden."""
    names: str = ""
    """Regular expression for the names of objects to read; empty for all."""

    @property
    def key(self) -> tuple[str, str]:
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
"""Objects that limit the hardware for requests."""
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
"""Quotas of accelerator memory, which the plugin tenant-quotas can apply, and labels of namespaces."""

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


RBAC = "rbac.authorization.k8s.io"
HARDWARE, CLUSTER, METRICS = "hardware", "clusters", "access to metrics"
"""Purposes of optional needs: hardware of endpoints, clusters of endpoints, and readers of metrics."""
_READ = ("get", "list", "watch")
_SERVICE_ACCOUNT = "system:serviceaccount"


class Importance(StrEnum):
    """Consequence of a missing right."""

    REQUIRED = "required"
    """The picker does not become ready, or does not see changes."""
    RECOMMENDED = "recommended"
    """The picker serves, but ignores some objects or writes no events."""
    OPTIONAL = "optional"
    """The picker serves with less knowledge about hardware, clusters or metrics access."""


@dataclass(frozen=True, slots=True)
class Need:
    """Rights on one kind of object."""

    resource: Resource
    purpose: str
    namespace: str = ""
    """Empty for all namespaces, and for kinds of cluster scope."""
    verbs: Sequence[str] = _READ
    importance: Importance = Importance.REQUIRED
    name: str = ""
    """Name of a single object; empty for all objects."""

    @property
    def is_read(self) -> bool:
        return "list" in self.verbs

    @property
    def dispensable(self) -> tuple[str, ...]:
        """Verbs that roles conventionally grant and that the picker does not need."""
        return ("get",) if self.is_read else ()


def needs_of_picker(namespace: str, *, pool_group: str | None, lease: str | None = None) -> tuple[Need, ...]:
    """Return all needs.

    `pool_group` is None without an InferencePool. `lease` is None without leader election, and empty for an unknown
    name.
    """

    def here(
        resource: Resource, purpose: str, *verbs: str, name: str = "", importance: Importance = Importance.RECOMMENDED
    ) -> Need:
        return Need(resource, purpose, namespace, verbs or _READ, importance, name)

    required = partial(here, importance=Importance.REQUIRED)
    needs = [required(PODS, "endpoints")]
    if pool_group is not None:
        needs.append(required(pools(pool_group), "pods and ports of the pool"))
    if lease is not None:
        needs.append(required(LEASES, "leader election", "create"))  # RBAC cannot restrict create by name
        needs.append(required(LEASES, "leader election", "get", "update", name=lease))
    needs += [
        here(OBJECTIVES, "priorities"),
        here(LEGACY_OBJECTIVES, f"priorities that have no object of {OBJECTIVES.group}"),
        here(REWRITES, "model rewrites"),
        here(LEGACY_REWRITES, f"model rewrites that have no object of {REWRITES.group}"),
    ]
    if pool_group is not None:
        needs.append(here(EVENTS, "problems of the pool in kubectl describe", "create", "patch"))
    return (*needs, *needs_of((*ACCELERATORS, *OME_SERVICES, *MEMORY_QUOTAS), HARDWARE, namespace))


def needs_of_hub(namespace: str = "") -> tuple[Need, ...]:
    """Return the additional needs for a hub of Open Cluster Management, in one namespace or in all of them."""
    return needs_of((*CLUSTERS, *SCORERS), CLUSTER, namespace)


def needs_of_access(hub: HubAccess, namespace: str) -> tuple[Need, ...]:
    """Return the need for the Secret with the kubeconfig of a hub, by default in the namespace of the pool."""
    space, _, name = hub.secret.rpartition("/")
    need = Need(SECRETS, "access to a hub", space or namespace, importance=Importance.RECOMMENDED, name=name)
    return (need,) if name else ()


def needs_of_metrics() -> tuple[Need, ...]:
    """Return the needs for reviews of readers of metrics."""
    return needs_of(REVIEWS, METRICS, verbs=("create",))


def needs_of(
    resources: Iterable[Resource],
    purpose: str,
    namespace: str = "",
    verbs: Sequence[str] = _READ,
    importance: Importance = Importance.OPTIONAL,
) -> tuple[Need, ...]:
    """Return the same needs for each resource; `namespace` is for the resources that are read in one namespace."""
    return tuple(
        Need(each, purpose, namespace if each.namespaced and not each.everywhere else "", verbs, importance)
        for each in resources
    )


def role(name: str, needs: Iterable[Need], *, namespace: str = "") -> dict[str, object]:
    """Return a Role for the namespace that grants all needs; a ClusterRole if the namespace is empty."""
    resources: defaultdict[tuple[str, tuple[str, ...], str], list[str]] = defaultdict(list)
    for need in needs:
        resources[need.resource.group, tuple(need.verbs), need.name].append(need.resource.plural)
    rules = [
        {"apiGroups": [group], "resources": plurals, **({"resourceNames": [only]} if only else {}), "verbs": [*verbs]}
        for (group, verbs, only), plurals in resources.items()
    ]
    kind = "Role" if namespace else "ClusterRole"
    return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": _metadata(name, namespace), "rules": rules}


def binding(role: Mapping[str, object], name: str, user: str, *, namespace: str = "") -> dict[str, object]:
    """Return a binding of the role to a user; `user` is the user name according to the API server."""
    kind = str(role["kind"])
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": f"{kind}Binding",
        "metadata": _metadata(name, namespace),
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name},
        "subjects": [_subject(user)],
    }


def _subject(user: str) -> dict[str, str]:
    account = user.removeprefix(f"{_SERVICE_ACCOUNT}:").split(":")
    if user.startswith(f"{_SERVICE_ACCOUNT}:") and len(account) == 2:  # noqa: PLR2004  namespace and name
        return {"kind": "ServiceAccount", "namespace": account[0], "name": account[1]}
    return {"apiGroup": RBAC, "kind": "User", "name": user}


def _metadata(name: str, namespace: str) -> dict[str, str]:
    return {"name": name, "namespace": namespace} if namespace else {"name": name}
