# SPDX-License-Identifier: Apache-2.0
"""Documents of cluster objects that describe hardware, of the nodes that have it and of the pods that use it."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.kube.manifests import manifest

GIB, MIB = 2**30, 2**20
GPU_A = "GPU-00000000-0000-0000-0000-00000000000a"
A100 = "NVIDIA A100-SXM4-40GB"
DRA, INSTASLICE, TENSOR_FUSION = "resource.k8s.io/v1", "inference.redhat.com/v1alpha1", "tensor-fusion.ai/v1"

Document = dict[str, Any]


def pod(
    resources: Mapping[str, str] | None = None,
    *,
    node: str = "gpu-node-1",
    name: str = "vllm-a",
    uid: str = "uid-a",
    ready: bool = True,
    metadata: Mapping[str, Any] | None = None,
    spec: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
) -> Document:
    """Return a pod `llm/vllm-a` that asks for resources; `metadata`, `spec` and `status` have more fields."""
    conditions = [{"type": "Ready", "status": str(ready)}]
    containers = [{"name": "vllm", "resources": {"limits": resources or {}}}]
    return manifest(
        "v1", "Pod", name, "llm",
        metadata={"uid": uid, **(metadata or {})},
        spec={"nodeName": node, "containers": containers, **(spec or {})},
        status={"podIP": "10.0.0.11", "conditions": conditions, **(status or {})},
    )  # fmt: skip


def node(labels: Mapping[str, str] | None = None, *, name: str = "gpu-node-1", **status: Any) -> Document:
    return manifest("v1", "Node", name, metadata={"labels": labels or {}}, status=status)


def accelerator_class(name: str, **spec: Any) -> Document:
    return manifest("ome.io/v1beta1", "AcceleratorClass", name, spec=spec)


def user(name: str = "vllm-a", uid: str = "uid-a") -> Document:
    """Return a reference to a pod."""
    return {"namespace": "llm", "name": name, "uid": uid}


def allocation_claim(
    profile: str = "3g.20gb",
    *,
    name: str = "c",
    pod: str = "vllm-a",
    uid: str = "uid-a",
    node: str = "gpu-node-1",
    gpu: str = GPU_A,
    start: int = 0,
    size: int = 4,
    state: str = "inUse",
) -> Document:
    """Return a slice of InstaSlice, generation 2."""
    spec = {"profile": profile, "podRef": user(pod, uid), "gpuUUID": gpu, "nodename": node}
    spec["migPlacement"] = {"size": size, "start": start}
    return manifest(INSTASLICE, "AllocationClaim", name, "das-operator", spec=spec, status={"state": state})


def node_accelerator(
    name: str = "gpu-node-1",
    *,
    product: str = A100,
    memory: str = "40Gi",
    uuids: Sequence[str] = (GPU_A,),
    ready: str = "True",
    reason: str = "",
    **resources: Any,
) -> Document:
    """Return the GPUs of a node of InstaSlice, generation 2."""
    gpus = [{"gpuUuid": uuid, "gpuName": product, "gpuMemory": memory} for uuid in uuids]
    conditions = [{"type": "Ready", "status": ready, "reason": reason}]
    status = {"conditions": conditions, "nodeResources": {"nodeGpus": gpus, **resources}}
    return manifest(INSTASLICE, "NodeAccelerator", name, "das-operator", status=status)


def instaslice(
    profile: str, *, name: str = "gpu-node-1", pod: str = "vllm-a", uid: str = "uid-a", gpu: str = GPU_A
) -> Document:
    """Return a node with one GPU and one slice of InstaSlice, generation 1."""
    created = {"allocationStatusController": "ungated", "allocationStatusDaemonset": "created"}
    placed = {"nodename": name, "gpuUUID": gpu, "migPlacement": {"size": 4, "start": 0}}
    return manifest(
        INSTASLICE, "Instaslice", name, "instaslice-system",
        spec={"podAllocationRequests": {uid: {"profile": profile, "podRef": user(pod, uid)}}},
        status={
            "nodeResources": {"nodeGpus": [{"gpuUuid": gpu, "gpuName": A100}]},
            "podAllocationResults": {uid: {"allocationStatus": created, **placed}},
        },
    )  # fmt: skip


def device(
    name: str, capacity: Mapping[str, str], counters: Mapping[str, Any] | None = None, **attributes: Any
) -> Document:
    """Return a device of a ResourceSlice; `counters` are those that it consumes of the set `set`."""
    consumed = {} if counters is None else {"consumesCounters": [{"counterSet": "set", "counters": counters}]}
    return {
        "name": name,
        "attributes": {key: {"string": text} for key, text in attributes.items()},
        "capacity": {key: {"value": amount} for key, amount in capacity.items()},
        **consumed,
    }


def resource_slice(
    driver: str,
    *devices: Document,
    name: str = "s",
    node: str = "n",
    generation: int = 1,
    count: int = 1,
    counters: Mapping[str, Any] | None = None,
) -> Document:
    """Return a slice of the pool of a node; `counters` are the shared ones of the set `set`."""
    spec = {"driver": driver, "nodeName": node, "devices": list(devices)}
    spec["pool"] = {"name": node, "generation": generation, "resourceSliceCount": count}
    if counters is not None:
        spec["sharedCounters"] = [{"name": "set", "counters": counters}]
    return manifest(DRA, "ResourceSlice", name, spec=spec)


def resource_claim(
    driver: str,
    device: str,
    *,
    name: str = "c",
    pool: str = "n",
    users: Sequence[tuple[str, str]] = (("vllm-a", "uid-a"),),
    **result: Any,
) -> Document:
    """Return a claim that has a device, or none for an empty name, and is reserved for pods with these uids."""
    results = [{"request": "gpu", "driver": driver, "pool": pool, "device": device, **result}] if device else []
    reserved = [{"resource": "pods", "name": name, "uid": uid} for name, uid in users]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
    return manifest(DRA, "ResourceClaim", name, "llm", status=status)
