# SPDX-License-Identifier: Apache-2.0
"""Devices that pods of other namespaces have on nodes without an endpoint."""

import json
from collections.abc import Mapping

import pytest

from epp.app import kubernetes
from epp.app.kubernetes import IdleNodePods
from epp.framework.clock import ManualClock
from epp.framework.cluster_objects import ObjectKind, ObjectsOfKind
from epp.framework.endpoint import Endpoint
from epp.framework.registry import Registry
from epp.hardware.tagger import AcceleratorTagger
from epp.kube.access import ApiError

NODE = ObjectKind("", "Node")


class Pods:
    """An API server with pods by node, which may be forbidden."""

    def __init__(self) -> None:
        self.by_node: dict[str, list[dict]] = {}
        self.is_forbidden = False
        self.asked: list[str] = []

    async def request(self, method: str, path: str, *, params: Mapping[str, str]) -> bytes:
        assert (method, path, params["resourceVersion"]) == ("GET", "/api/v1/pods", "0")
        node, *others = params["fieldSelector"].split(",")
        assert others == ["status.phase!=Succeeded", "status.phase!=Failed"]
        if self.is_forbidden:
            raise ApiError(403, "Forbidden", "pods is forbidden")
        name = node.removeprefix("spec.nodeName=")
        self.asked.append(name)
        return json.dumps({"metadata": {"resourceVersion": "7"}, "items": self.by_node.get(name, [])}).encode()


@pytest.fixture
def pods() -> Pods:
    return Pods()


async def tagger_of(*nodes: dict, **parameters: bool) -> AcceleratorTagger:
    """Return a tagger that read these nodes in a cluster."""
    found = Registry().build("accelerator-data-source", parameters, name="hardware", clock=ManualClock())
    assert isinstance(found, AcceleratorTagger)
    objects = {each.id: each for each in map(AcceleratorTagger.decode, nodes)}
    await found.objects_changed([ObjectsOfKind(NODE, objects, frozenset(objects))])
    return found


def free(tagger: AcceleratorTagger) -> dict[str, int]:
    return {each.node: each.free for each in tagger.idle_nodes()}


def gpus(node, name: str) -> dict:
    return node({"nvidia.com/gpu.product": "Tesla-T4"}, name=name, allocatable={"nvidia.com/gpu": "8"})


def training(pod, node: str, gpus: str) -> dict:
    return pod({"nvidia.com/gpu": gpus}, node=node, name="train", metadata={"namespace": "research"}, uid="t")


async def test_tf_21_devices_of_pods_in_other_namespaces_are_not_idle(pods, node, pod):
    tagger = await tagger_of(gpus(node, "n1"), gpus(node, "n2"), podsOnIdleNodes=True)
    serving = Endpoint("vllm", "10.0.0.9", 8000, node="n2")
    tagger.tag(serving)
    web = pod({"cpu": "4"}, node="n1", name="web", metadata={"namespace": "shop"}, uid="w")
    pods.by_node["n1"] = [training(pod, "n1", "6"), web]
    follower = IdleNodePods(pods, lambda: [tagger])
    await follower.update(tagger)
    assert (free(tagger), tagger.unseen_pods, pods.asked) == ({"n1": 2}, "", ["n1"])
    assert [each.name for each in tagger.pods_on_nodes["n1"]] == ["train"]
    pods.by_node["n1"] = []
    await follower.update(tagger)
    assert free(tagger) == {"n1": 8}
    tagger.untag(serving)
    await follower.update(tagger)
    assert pods.asked[-2:] == ["n2", "n1"]  # that of which nothing is known first


async def test_tf_21_nodes_take_turns_and_what_was_read_stays_when_access_is_lost(pods, node, pod, monkeypatch):
    monkeypatch.setattr(kubernetes, "_MOST_NODES", 2)
    tagger = await tagger_of(*(gpus(node, name) for name in ("n1", "n2", "n3")), podsOnIdleNodes=True)
    pods.by_node["n3"] = [training(pod, "n3", "8")]
    follower = IdleNodePods(pods, lambda: [tagger])
    for _ in range(3):
        await follower.update(tagger)
    assert pods.asked == ["n1", "n2", "n3", "n1", "n2", "n3"]
    pods.is_forbidden = True
    await follower.update(tagger)
    assert free(tagger) == {"n1": 8, "n2": 8, "n3": 0}
    assert tagger.unseen_pods == (
        "pods is forbidden: allow list of pods in all namespaces, or set podsOnIdleNodes to false"
    )


async def test_tf_21_limit_is_named_where_pods_of_other_namespaces_are_not_read(node):
    tagger = await tagger_of(gpus(node, "n1"))
    assert tagger.unseen_pods.startswith("pods of other namespaces are not read: set podsOnIdleNodes")
    files_only = Registry().build("accelerator-data-source", {}, name="hardware", clock=ManualClock())
    assert files_only.unseen_pods == ""
