# SPDX-License-Identifier: Apache-2.0
"""Objects of tests as plain data."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tests.support.kube.client import Manifest

RBAC = "rbac.authorization.k8s.io/v1"
POOLS = "inference.networking.k8s.io/v1"
POLICIES = "llm-d.ai/v1alpha2"
LEGACY_POLICIES = "inference.networking.x-k8s.io/v1alpha2"
LABELS = {"app": "vllm"}
"""Labels of pods, and the selector of pools, where a test names none."""


def manifest(
    api_version: str,
    kind: str,
    name: object,
    namespace: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    **parts: Any,
) -> dict[str, Any]:
    """Return any object: `metadata` has more than the names, `parts` are its other fields."""
    names = {"name": name} if namespace is None else {"name": name, "namespace": namespace}
    return {"apiVersion": api_version, "kind": kind, "metadata": {**names, **(metadata or {})}, **parts}


def pod(
    name: str,
    *,
    namespace: str = "",
    labels: Mapping[str, str] = LABELS,
    annotations: Mapping[str, str] | None = None,
    node: str = "node-1",
    resources: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Manifest:
    """Return a pod that is scheduled, so that a delete with a grace period leaves it terminating."""
    container = {"name": "vllm", "image": "example.invalid/vllm", "resources": dict(resources or {})}
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 30, "containers": [container], **spec}
    return _object("v1", "Pod", name, namespace, labels=labels, annotations=annotations, spec=spec)


def pod_status(ip: str, *, ready: bool = True) -> Manifest:
    """Return the status of a running pod."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = [
        {"type": kind, "status": str(value), "lastTransitionTime": now}
        for kind, value in (("PodScheduled", True), ("Initialized", True), ("ContainersReady", ready), ("Ready", ready))
    ]
    return {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "startTime": now, "conditions": conditions}


def node(
    name: str, *, labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None
) -> Manifest:
    labels = {"kubernetes.io/hostname": name, **(labels or {})}
    return _object("v1", "Node", name, labels=labels, annotations=annotations, spec={})


def node_info(boot_id: str) -> Manifest:
    """Return the part of a node's status that names its boot; the API requires its other fields."""
    names = ("machineID", "systemUUID", "kernelVersion", "osImage", "containerRuntimeVersion", "kubeletVersion")
    others = ("kubeProxyVersion", "operatingSystem", "architecture")
    return {**dict.fromkeys((*names, *others), ""), "bootID": boot_id}


def pool(
    name: str, *, namespace: str = "", selector: Mapping[str, str] = LABELS, ports: Sequence[int] = (8000,), **spec: Any
) -> Manifest:
    spec = {
        "selector": {"matchLabels": dict(selector)},
        "targetPorts": [{"number": port} for port in ports],
        "endpointPickerRef": {"name": f"{name}-epp", "port": {"number": 9002}},
        **spec,
    }
    return _object(POOLS, "InferencePool", name, namespace, spec=spec)


def objective(
    name: str, *, pool: str, priority: int | None = None, namespace: str = "", api: str = POLICIES
) -> Manifest:
    spec: Manifest = {"poolRef": {"name": pool, "group": POOLS.partition("/")[0]}}
    if priority is not None:
        spec["priority"] = priority
    return _object(api, "InferenceObjective", name, namespace, spec=spec)


def rewrite(
    name: str, *, pool: str, rules: Sequence[Mapping[str, Any]], namespace: str = "", api: str = POLICIES
) -> Manifest:
    """Return a rewrite; `rule(...)` returns one of its rules."""
    spec = {"poolRef": {"name": pool, "group": POOLS.partition("/")[0]}, "rules": list(rules)}
    return _object(api, "InferenceModelRewrite", name, namespace, spec=spec)


def rule(model: str | None, **targets: int | None) -> Manifest:
    """Return a rule: `rule("chat", **{"chat-v1": 90, "chat-v2": 10})`; a model of None matches every model."""
    matches = [] if model is None else [{"model": {"type": "Exact", "value": model}}]
    weighted = [
        {"modelRewrite": target} if weight is None else {"modelRewrite": target, "weight": weight}
        for target, weight in targets.items()
    ]
    return {"matches": matches, "targets": weighted} if matches else {"targets": weighted}


def binding(role_kind: str, role: str, *, account: str, namespace: str) -> Manifest:
    """Return the RoleBinding or ClusterRoleBinding of a service account."""
    return _object(
        RBAC,
        f"{role_kind}Binding",
        f"{role}-{account}",
        roleRef={"apiGroup": RBAC.partition("/")[0], "kind": role_kind, "name": role},
        subjects=[{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    )


def _object(
    api: str,
    kind: str,
    name: str,
    namespace: str = "",
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **content: Any,
) -> Manifest:
    marks = {"labels": labels, "annotations": annotations}
    metadata = {name: dict(each) for name, each in marks.items() if each}
    return manifest(api, kind, name, namespace or None, metadata, **content)
