# SPDX-License-Identifier: Apache-2.0
"""Scores of free resources by the formulas of the add-on, in the unit that it meant."""

from fractions import Fraction

import pytest

from epp.kube.objects.core import Node, Pod
from epp.kube.objects.dra import ResourceClaim, ResourceSlice
from epp.pool.clusters.usage import USAGE_ITEMS, UsageItem, normalised, pod_requests, usage_scores
from tests.support.hub_objects import decoded
from tests.support.kube.manifests import manifest


def node(name: str, *, unschedulable: bool = False, ready: str = "True", **allocatable: str) -> Node:
    amounts = {key.replace("__", "/").replace("_", "."): value for key, value in allocatable.items()}
    status = {"allocatable": amounts, "conditions": [{"type": "Ready", "status": ready}]}
    return decoded(manifest("v1", "Node", name, spec={"unschedulable": unschedulable}, status=status))


def pod(node: str = "n1", *, requests=None, phase: str = "Running", init=(), metadata=None, **more) -> Pod:
    containers = [{"name": "main", "resources": {"requests": requests or {}}}]
    spec = {"nodeName": node, "containers": containers, "initContainers": list(init), **more}
    return decoded(manifest("v1", "Pod", "p", "llm", metadata, spec=spec, status={"phase": phase}))


def gpus(amount: int) -> dict[str, str]:
    return {"nvidia.com/gpu": str(amount)}


@pytest.mark.parametrize(
    ("free", "score"),
    [(0, -100), (1, -90), (2, -80), (3, -70), (4, -60), (8, -20), (10, 0), (16, 60), (20, 100), (24, 100)],
)
def test_ocm_6_gpus_of_20(free, score):
    assert normalised(free, Fraction(20)) == score


@pytest.mark.parametrize(("free", "score"), [("0.5", -99), ("33.3", -33), ("40", -20), ("100", 100), ("-3", -100)])
def test_ocm_6_processors_of_100(free, score):
    assert normalised(Fraction(free), Fraction(100)) == score


def test_ocm_6_node_is_the_best_one_and_cluster_the_sum():
    nodes = [node("n1", cpu="10", nvidia_com__gpu="8"), node("n2", cpu="40", nvidia_com__gpu="2")]
    found = usage_scores(nodes, [pod("n1", requests={"cpu": "4", **gpus(4)}), pod("n2", requests={"cpu": "500m"})])
    assert found["cpuNodeAvailable"] == -21.0  # 39.5 of 100: trunc(79 - 100)
    assert found["cpuClusterAvailable"] == -9.0  # 6 + 39.5
    assert found["gpuNodeAvailable"] == -60.0  # 4 of 20 on n1
    assert found["gpuClusterAvailable"] == -40.0  # 6
    assert found["tpuNodeAvailable"] == found["tpuClusterAvailable"] == -100.0
    assert len(found) == 8


def test_ocm_6_memory_counts_in_mebibytes_up_to_a_tebibyte():
    found = usage_scores([node("n1", memory="512Gi"), node("n2", memory="512Gi")], [pod("n1")])
    assert (found["memNodeAvailable"], found["memClusterAvailable"]) == (0.0, 100.0)
    assert usage_scores([node("n1", memory="64Gi")], [pod("n1")])["memNodeAvailable"] == -87.0  # trunc(-87.5)


def test_ocm_6_nodes_that_take_no_pods_do_not_count():
    cordoned = node("n2", unschedulable=True, nvidia_com__gpu="8")
    lost = node("n3", ready="Unknown", nvidia_com__gpu="8")
    found = usage_scores([node("n1", nvidia_com__gpu="2"), cordoned, lost], [pod("n2", requests=gpus(1))])
    assert found["gpuClusterAvailable"] == -80.0
    assert usage_scores([cordoned], []) == {}


@pytest.mark.parametrize(
    "gone",
    [
        {"phase": "Succeeded"},
        {"phase": "Failed"},
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"node": ""},
    ],
)
def test_ocm_6_pods_that_hold_nothing_do_not_count(gone):
    found = usage_scores([node("n1", nvidia_com__gpu="8")], [pod(**{"requests": gpus(8), **gone})])
    assert found["gpuNodeAvailable"] == -20.0


def container(name: str, cpu: str, *, sidecar: bool = False) -> dict:
    return {"name": name, "resources": {"requests": {"cpu": cpu}}, **({"restartPolicy": "Always"} if sidecar else {})}


def test_ocm_6_init_containers_count_by_pod_with_the_sidecars_before_them():
    assert pod_requests(pod(requests={"cpu": "1"}, init=[container("i", "4")])) == {"cpu": 4}
    assert pod_requests(pod(requests={"cpu": "5"}, init=[container("i", "4"), container("j", "3")])) == {"cpu": 5}
    first = [container("s", "2", sidecar=True), container("i", "4")]
    assert pod_requests(pod(requests={"cpu": "1"}, init=first)) == {"cpu": 6}  # the sidecar runs beside it
    last = [container("i", "4"), container("s", "2", sidecar=True)]
    assert pod_requests(pod(requests={"cpu": "1"}, init=last)) == {"cpu": 4}
    assert pod_requests(pod(requests={"cpu": "3"}, init=last)) == {"cpu": 5}


def test_ocm_6_init_container_of_one_pod_does_not_hide_the_next_pod():
    pods = [pod(requests={"cpu": "30"}), pod(requests={"cpu": "1"}, init=[container("i", "20")])]
    assert usage_scores([node("n1", cpu="100")], pods)["cpuNodeAvailable"] == 0.0  # 100 - 30 - 20


def test_ocm_6_overhead_and_requests_of_the_whole_pod_count():
    assert pod_requests(pod(requests={"cpu": "1"}, overhead={"cpu": "250m"})) == {"cpu": Fraction(5, 4)}
    whole = pod(requests={"cpu": "1", "nvidia.com/gpu": "1"}, resources={"requests": {"cpu": "3"}})
    assert pod_requests(whole) == {"cpu": 3, "nvidia.com/gpu": 1}


def test_ocm_6_limit_is_the_request_where_there_is_none():
    bare = [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]
    assert pod_requests(pod(containers=bare)) == {"nvidia.com/gpu": 2}


MIXED = {"nvidia.com/gpu": "8", "nvidia.com/mig-1g.5gb": "7", "amd.com/gpu": "2", "gpu.intel.com/i915": "1"}


def test_ocm_6_gpu_item_counts_whole_nvidia_gpus_as_the_add_on_does():
    found = decoded(manifest("v1", "Node", "n1", status={"allocatable": MIXED}))
    scores = usage_scores([found], [pod(requests={"nvidia.com/gpu": "2"})])
    # 6 of 20: 200 * 6 / 20 - 100; with slices and other vendors it would be 15 or more
    assert scores["gpuNodeAvailable"] == scores["gpuClusterAvailable"] == -40.0


def test_ocm_6_slices_and_gpus_of_other_vendors_count_where_items_name_them():
    items = {
        "gpu": UsageItem(resources=("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/*")),
        "slice": UsageItem(resources=("nvidia.com/mig-*",), max="70"),
    }
    found = decoded(manifest("v1", "Node", "n1", status={"allocatable": MIXED}))
    scores = usage_scores([found], [pod(requests={"nvidia.com/gpu": "2"})], items=items)
    assert scores["gpuNodeAvailable"] == -10.0  # 6 + 2 + 1 of 20
    assert scores["sliceNodeAvailable"] == -80.0  # 7 of 70


def test_ocm_6_items_and_maxima_can_be_others():
    items = {**USAGE_ITEMS, "npu": UsageItem(resources=("huawei.com/Ascend*",), max="16")}
    found = decoded(manifest("v1", "Node", "n1", status={"allocatable": {"huawei.com/Ascend910": "8"}}))
    assert usage_scores([found], [], items=items)["npuClusterAvailable"] == 0.0
    for wrong in ("0", "-1", "many"):
        with pytest.raises(ValueError, match=r"^max"):
            UsageItem(resources=("cpu",), max=wrong)


def resource_slice(generation: int, *devices: dict, node: str = "n1") -> ResourceSlice:
    pool = {"name": "n1", "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": node, "pool": pool, "devices": list(devices)}
    return decoded(manifest("resource.k8s.io/v1", "ResourceSlice", f"s{generation}", spec=spec))


def claim(*devices: str, admin: bool = False) -> ResourceClaim:
    results = [
        {"driver": "gpu.nvidia.com", "pool": "n1", "device": each, "request": "r", "adminAccess": admin}
        for each in devices
    ]
    status = {"allocation": {"devices": {"results": results}}}
    return decoded(manifest("resource.k8s.io/v1", "ResourceClaim", "c", "llm", spec={}, status=status))


def test_ocm_6_dra_devices_count_in_their_newest_generation():
    slices = [resource_slice(1, {"name": "old"}), resource_slice(2, {"name": "a"}, {"name": "b"}, {"name": "c"})]
    found = usage_scores([node("n1")], [pod()], slices, [claim("a")])
    assert found["gpuNodeAvailable"] == -80.0  # b and c
    watched = usage_scores([node("n1")], [pod()], slices, [claim("a", admin=True)])
    assert watched["gpuNodeAvailable"] == -70.0


def test_ocm_6_parts_of_one_dra_device_count_once():
    part = {"consumesCounters": [{"counterSet": "gpu-0", "counters": {"memory": {"value": "10Gi"}}}]}
    parts = [{"name": name, **part} for name in ("gpu-0", "mig-1", "mig-2")]
    slices = [resource_slice(1, *parts, {"name": "b"})]
    assert usage_scores([node("n1")], [pod()], slices)["gpuNodeAvailable"] == -80.0
    assert usage_scores([node("n1")], [pod()], slices, [claim("mig-1")])["gpuNodeAvailable"] == -90.0


def test_ocm_6_devices_of_no_node_count_for_the_cluster():
    found = usage_scores([node("n1", nvidia_com__gpu="1")], [pod()], [resource_slice(1, {"name": "a"}, node="")])
    assert (found["gpuNodeAvailable"], found["gpuClusterAvailable"]) == (-90.0, -80.0)
