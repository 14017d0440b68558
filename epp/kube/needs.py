# SPDX-License-Identifier: Apache-2.0
"""Rights that a picker uses in a cluster, and the Role and ClusterRole that grant them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from epp.framework.cluster import HubAccess
from epp.kube.resources import (
    ACCELERATORS,
    CLUSTERS,
    EVENTS,
    LEASES,
    LEGACY_OBJECTIVES,
    LEGACY_REWRITES,
    MEMORY_QUOTAS,
    OBJECTIVES,
    OME_SERVICES,
    PODS,
    REVIEWS,
    REWRITES,
    SCORERS,
    SECRETS,
    Resource,
    pools,
)

RBAC = "rbac.authorization.k8s.io"
HARDWARE, CLUSTER, METRICS = "hardware", "clusters", "who may read metrics"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Rights on one kind of object."""

    resource: Resource
    purpose: str
    namespace: str = ""
    """Empty for all namespaces, and for kinds of cluster scope."""
    verbs: Sequence[str] = _READ
    dispensable: Sequence[str] = ("get",)
    """Verbs that roles conventionally grant and that the picker does not need."""
    importance: Importance = Importance.REQUIRED
    name: str = ""
    """Name of a single object; empty for all objects."""

    @property
    def is_read(self) -> bool:
        """Whether the objects are listed."""
        return "list" in self.verbs

    @property
    def rule(self) -> tuple[str, tuple[str, ...], str]:
        """Group, verbs and name: needs with the same values share one RBAC rule."""
        return self.resource.group, tuple(self.verbs), self.name


def needs_of_picker(namespace: str, *, pool_group: str | None, lease: str | None = None) -> tuple[Need, ...]:
    """Return all needs.

    `pool_group` is None without an InferencePool. `lease` is None without leader election, and empty for an unknown
    name.
    """

    def here(resource: Resource, purpose: str, importance: Importance = Importance.REQUIRED) -> Need:
        return Need(resource=resource, purpose=purpose, namespace=namespace, importance=importance)

    def written(resource: Resource, purpose: str, *verbs: str, name: str = "") -> Need:
        need = here(resource, purpose, Importance.REQUIRED if resource is LEASES else Importance.RECOMMENDED)
        return replace(need, verbs=verbs, dispensable=(), name=name)

    needs = [here(PODS, "endpoints")]
    if pool_group is not None:
        needs.append(here(pools(pool_group), "pods and ports of the pool"))
    if lease is not None:
        needs.append(written(LEASES, "leader election", "create"))  # RBAC cannot restrict create by name
        needs.append(written(LEASES, "leader election", "get", "update", name=lease))
    needs += [
        here(OBJECTIVES, "priorities", Importance.RECOMMENDED),
        here(LEGACY_OBJECTIVES, f"the same without {OBJECTIVES.group}", Importance.RECOMMENDED),
        here(REWRITES, "models to ask for instead", Importance.RECOMMENDED),
        here(LEGACY_REWRITES, f"the same without {REWRITES.group}", Importance.RECOMMENDED),
    ]
    if pool_group is not None:
        needs.append(written(EVENTS, "problems of the pool in kubectl describe", "create", "patch"))
    needs += [_optional(each, HARDWARE, namespace) for each in (*ACCELERATORS, *OME_SERVICES, *MEMORY_QUOTAS)]
    return tuple(needs)


def needs_of_hub(namespace: str = "") -> tuple[Need, ...]:
    """Return the additional needs for a hub of Open Cluster Management, in one namespace or in all of them."""
    return tuple(_optional(each, CLUSTER, namespace) for each in (*CLUSTERS, *SCORERS))


def needs_of_access(hub: HubAccess, namespace: str) -> tuple[Need, ...]:
    """Return the need for the Secret with the kubeconfig of a hub, by default in the namespace of the pool."""
    space, _, name = hub.secret.rpartition("/")
    need = Need(
        resource=SECRETS,
        purpose="access to a hub",
        namespace=space or namespace,
        importance=Importance.RECOMMENDED,
        name=name,
    )
    return (need,) if name else ()


def needs_of_metrics() -> tuple[Need, ...]:
    """Return the needs for reviews of readers of metrics."""
    return tuple(
        Need(
            resource=each,
            purpose=METRICS,
            verbs=("create",),
            dispensable=(),
            importance=Importance.OPTIONAL,
        )
        for each in REVIEWS
    )


def _optional(resource: Resource, purpose: str, namespace: str) -> Need:
    place = namespace if resource.namespaced and not resource.everywhere else ""
    return Need(resource=resource, purpose=purpose, namespace=place, importance=Importance.OPTIONAL)


def role(name: str, needs: Iterable[Need], *, namespace: str = "") -> dict[str, object]:
    """Return a Role for the namespace that grants all needs; a ClusterRole if the namespace is empty."""
    resources: dict[tuple[str, tuple[str, ...], str], list[str]] = {}
    for need in needs:
        resources.setdefault(need.rule, []).append(need.resource.plural)
    rules = [
        {
            "apiGroups": [group],
            "resources": plurals,
            **({"resourceNames": [only]} if only else {}),
            "verbs": list(verbs),
        }
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
