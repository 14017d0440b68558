# SPDX-License-Identifier: Apache-2.0
"""A change of objects affected the endpoints whose tags it may change, and not the whole pool where that is known."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework.cluster_objects import ObjectKind, ObjectsOfKind
from epp.framework.datalayer import AffectedEndpoints, every_endpoint, no_endpoint
from epp.framework.endpoint import Endpoint
from epp.hardware.endpoint_context import affected_endpoints
from epp.hardware.inventory import Inventory
from epp.hardware.tag_builder import TagBuilder
from epp.kube.objects.decode import decode_object
from epp.kube.objects.followed import ClusterObjects
from tests.support import hardware_objects as objects
from tests.support.kube.manifests import manifest

PODS = {"a": "n1", "b": "n1", "c": "n2"}
"""Pods and their nodes, which never change."""
NODES = ("n1", "n2")
PRODUCTS = ("NVIDIA-H100-80GB-HBM3", "Tesla-T4")
ENDPOINTS = [
    Endpoint(f"{pod}-rank-0", f"10.0.0.{number}", 8000, "llm", node=node, uid=f"uid-{pod}")
    for number, (pod, node) in enumerate(PODS.items(), 1)
]
GROUPS = {
    **dict.fromkeys(("Pod", "Node"), ""),
    **dict.fromkeys(("AllocationClaim", "NodeAccelerator", "Instaslice"), "inference.redhat.com"),
    **dict.fromkeys(("GPU", "GPUNode"), "tensor-fusion.ai"),
    **dict.fromkeys(("ResourceSlice", "ResourceClaim"), "resource.k8s.io"),
    "AcceleratorClass": "ome.io",
}


def pod(name: str, request: str, claim: str) -> dict:
    claims = [{"name": "gpu", "resourceClaimName": claim}] if claim else []
    address = f"10.0.0.{1 + list(PODS).index(name)}"
    return objects.pod(
        {request: "1"} if request else {}, name=name, uid=f"uid-{name}", node=PODS[name],
        spec={"resourceClaims": claims}, status={"podIP": address},
    )  # fmt: skip


def claim(name: str, users: list[str], node: str, device: str) -> dict:
    pods = [(user, f"uid-{user}") for user in users]
    return objects.resource_claim("gpu.nvidia.com", device, name=name, pool=node, users=pods)


def resource_slice(node: str, product: str, generation: int) -> dict:
    devices = [objects.device(name, {"memory": "80Gi"}, productName=product) for name in ("d1", "d2")]
    return objects.resource_slice("gpu.nvidia.com", *devices, name=f"slice-{node}", node=node, generation=generation)


def allocation(name: str, user: str, node: str, profile: str, state: str) -> dict:
    place = {"pod": user, "uid": f"uid-{user}", "node": node, "gpu": f"GPU-{node}"}
    return objects.allocation_claim(profile, name=name, state=state, **place)


def node_accelerator(node: str, ready: str) -> dict:
    return objects.node_accelerator(node, uuids=[f"GPU-{node}"], ready=ready)


def instaslice(node: str, user: str, profile: str) -> dict:
    return objects.instaslice(profile, name=node, pod=user, uid=f"uid-{user}", gpu="G")


def gpu(name: str, node: str, user: str, phase: str) -> dict:
    status = {
        "phase": phase, "vendor": "NVIDIA", "gpuModel": "T4", "uuid": name,
        "capacity": {"tflops": "65", "vram": "16Gi"},
        "nodeSelector": {"kubernetes.io/hostname": node} if node else {},
        "runningApps": [{"pods": [objects.user(user, f"uid-{user}")]}] if user else [],
    }  # fmt: skip
    return manifest(objects.TENSOR_FUSION, "GPU", name, status=status)


def accelerator_class(name: str, product: str, price: str) -> dict:
    selector = {"nvidia.com/gpu.product": product}
    return objects.accelerator_class(name, discovery={"nodeSelector": selector}, cost={"perHour": price})


def node(name: str, product: str, boot: str) -> dict:
    labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": product, "nvidia.com/gpu.count": "2"}
    return objects.node(labels, name=name, nodeInfo={"bootID": boot})


def gpu_node(name: str, cost: str) -> dict:
    return manifest(objects.TENSOR_FUSION, "GPUNode", name, spec={"costPerHour": cost})


def one_of(*values: str) -> st.SearchStrategy[str]:
    return st.sampled_from(values)


OBJECTS: Mapping[str, st.SearchStrategy[dict]] = {
    "Pod": st.builds(pod, one_of(*PODS), one_of("", "nvidia.com/gpu", "mig.das.com/3g.20gb"), one_of("", "c1")),
    "Node": st.builds(node, one_of(*NODES), one_of(*PRODUCTS), one_of("x", "y")),
    "AcceleratorClass": st.builds(accelerator_class, one_of("gold", "tin"), one_of(*PRODUCTS), one_of("1", "2")),
    "AllocationClaim": st.builds(
        allocation, one_of("x", "y"), one_of(*PODS), one_of(*NODES), one_of("3g.20gb", "1g.5gb"),
        one_of("inUse", "orphaned"),
    ),
    "NodeAccelerator": st.builds(node_accelerator, one_of(*NODES), one_of("True", "False")),
    "Instaslice": st.builds(instaslice, one_of(*NODES), one_of(*PODS), one_of("3g.20gb", "1g.5gb")),
    "GPU": st.builds(gpu, one_of("G1", "G2"), one_of("", *NODES), one_of("", *PODS), one_of("Running", "Pending")),
    "GPUNode": st.builds(gpu_node, one_of(*NODES), one_of("1", "3")),
    "ResourceSlice": st.builds(resource_slice, one_of(*NODES), one_of(*PRODUCTS), st.integers(1, 3)),
    "ResourceClaim": st.builds(
        claim, one_of("c1", "c2"), st.lists(one_of(*PODS), max_size=2), one_of(*NODES), one_of("", "d1", "d2")
    ),
}  # fmt: skip


def state_of(documents: Mapping[str, list[dict]], before: ClusterObjects) -> tuple[ClusterObjects, list[ObjectsOfKind]]:
    """Return the state after the documents became all that there is, and the changes that led to it."""
    changes = []
    for kind, found in documents.items():
        of = ObjectKind(GROUPS[kind], kind)
        now = {each.id: each for each in map(decode_object, found)}
        known = before.kinds[of].objects if of in before.kinds else {}
        differ = {name for name in {*now, *known} if now.get(name) != before.find(of, name)}
        if differ or not before:
            changes.append(ObjectsOfKind(of, now, frozenset(differ)))
    return before.take(changes), changes


STATES = st.fixed_dictionaries({kind: st.lists(each, max_size=3) for kind, each in OBJECTS.items()})


@given(STATES, st.lists(st.sampled_from(sorted(OBJECTS)), min_size=1, max_size=3, unique=True), STATES)
def test_endpoint_that_a_change_does_not_concern_keeps_its_tag(first, kinds, second):
    before, _ = state_of(first, ClusterObjects())
    after, changes = state_of({**first, **{kind: second[kind] for kind in kinds}}, before)
    was = Inventory.build([before.as_file()])
    now = Inventory.build([after.as_file()], was)
    affected = affected_endpoints(changes, before, after, (was, now))
    for endpoint in ENDPOINTS:
        if endpoint.uid in now.pods_by_uid and not affected(endpoint):  # without its pod, it is about to join or leave
            assert TagBuilder(now).build(endpoint).tag == TagBuilder(was).build(endpoint).tag


def affected_by(first: Mapping[str, list[dict]], second: Mapping[str, list[dict]]) -> AffectedEndpoints:
    """Return which endpoints the change from the first objects to the second affects."""
    before, _ = state_of(first, ClusterObjects())
    after, changes = state_of(second, before)
    inventories = Inventory.build([before.as_file()]), Inventory.build([after.as_file()])
    return affected_endpoints(changes, before, after, inventories)


def concerned(kind: str, *documents: dict) -> set[str]:
    """Return the pods that are concerned when these objects appear."""
    affected = affected_by({}, {kind: list(documents)})
    return {endpoint.name[0] for endpoint in ENDPOINTS if affected(endpoint)}


@pytest.mark.parametrize(
    ("kind", "document", "pods"),
    [
        ("Pod", pod("a", "nvidia.com/gpu", ""), {"a"}),
        ("Node", node("n1", "Tesla-T4", ""), {"a", "b"}),
        ("NodeAccelerator", node_accelerator("n2", "True"), {"c"}),
        ("AllocationClaim", allocation("x", "c", "n2", "3g.20gb", "inUse"), {"c"}),
        ("ResourceSlice", resource_slice("n1", "Tesla-T4", 1), {"a", "b"}),
        ("ResourceClaim", claim("c1", ["b"], "n1", "d1"), {"b"}),
        ("ResourceClaim", claim("c1", [], "n1", ""), set()),
        ("GPU", gpu("G1", "n2", "", "Running"), {"c"}),
        ("GPU", gpu("G1", "", "c", "Running"), {"a", "b", "c"}),
        ("AcceleratorClass", accelerator_class("gold", "Tesla-T4", "1"), {"a", "b", "c"}),
    ],
    ids=[
        "pod", "node", "agent of a node", "slice of a pod", "devices of a node", "device of a pod", "claim of no pod",
        "GPU of a node", "GPU of an unknown node", "class",
    ],
)  # fmt: skip
def test_change_concerns(kind, document, pods):
    assert concerned(kind, document) == pods


PODS_BEFORE = {"Pod": [pod("a", "", "c1"), pod("b", "", "")]}
ELSEWHERE = {"ResourceClaim": [claim("c1", ["a"], "n2", "d1")]}
SHARED = [claim("c1", ["a"], "n1", "d1"), claim("c2", ["b"], "n1", "d1")]


@pytest.mark.parametrize(
    ("first", "second", "pods"),
    [
        (PODS_BEFORE, PODS_BEFORE | {"ResourceClaim": [claim("c1", [], "n1", "")]}, "a"),
        ({"ResourceClaim": SHARED}, {"ResourceClaim": SHARED[:1]}, "ab"),
        (ELSEWHERE, ELSEWHERE | {"ResourceSlice": [resource_slice("n2", "Tesla-T4", 1)]}, "ac"),  # c is on that node
    ],
    ids=["claim that a pod names", "claim that shares a device", "slice with devices of pods elsewhere"],
)
def test_change_concerns_pods_by_way_of_other_objects(first, second, pods):
    affected = affected_by(first, second)
    assert "".join(endpoint.name[0] for endpoint in ENDPOINTS if affected(endpoint)) == pods


def test_class_concerns_all_and_an_object_that_did_not_change_none():
    documents = {"AcceleratorClass": [accelerator_class("gold", "Tesla-T4", "1")]}
    before, changes = state_of(documents, ClusterObjects())
    assert affected_endpoints(changes, ClusterObjects(), before, (Inventory(), Inventory())) == every_endpoint
    (again,) = changes
    same = ObjectsOfKind(again.kind, {"gold": before.find(again.kind, "gold")}, frozenset({"gold"}))
    after = before.take([same])
    assert affected_endpoints([same], before, after, (Inventory(), Inventory())) is no_endpoint
