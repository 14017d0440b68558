# SPDX-License-Identifier: Apache-2.0
"""What still fits, and what each class has left."""

from epp.hardware.node_devices import ClassTotal, ClassTotals, fit_report
from tests.support.hardware_objects import GPU_A

GPU_B = "GPU-00000000-0000-0000-0000-00000000000b"
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}


def test_is_13_slices_that_still_fit(documents, inventory_of):
    report = fit_report(inventory_of(documents("instaslice-generation-1")))
    # GPU a has a 3g.20gb at 0; slots 4 to 7 are free, the start 6 of 1g slices included
    taken = report["gpu-node-1"][GPU_A]
    expected = {"1g.5gb": 3, "1g.10gb": 2, "2g.10gb": 1, "3g.20gb": 1, "4g.20gb": 0, "7g.40gb": 0}
    assert {profile: taken[profile] for profile in expected} == expected
    assert taken["1g.5gb+me"] == 1
    assert report["gpu-node-1"][GPU_B]["7g.40gb"] == 1


def test_defect_14_slices_that_are_only_tried_take_no_place(documents, inventory_of):
    world = documents("instaslice-generation-2")
    world[1]["status"]["state"] = "staged"
    assert fit_report(inventory_of(world))["gpu-node-1"][GPU_A]["7g.80gb"] == 1


def test_ome_16_devices_of_each_class(documents, inventory_of, node, pod):
    world = [
        *documents("ome-classes"),
        node(H100, name="n1", allocatable={"nvidia.com/gpu": "8", "cpu": "96"}),
        node(H100, name="n2"),
        pod({"nvidia.com/gpu": "3"}, node="n1"),
        pod({"nvidia.com/gpu": "4"}, node="n1", name="done", uid="d", status={"phase": "Succeeded"}),
        pod({"cpu": "3"}, node="n1", name="router", uid="r"),
    ]
    totals = ClassTotals().of(inventory_of(world))
    assert totals["nvidia-h100-80gb"] == ClassTotal(nodes=("n1", "n2"), total=16, available=13)
    assert totals["amd-mi300x"] == ClassTotal()


def test_ome_15_devices_of_each_class_follow_the_objects(documents, inventory_of, node, pod):
    one, two = (node(H100, name=name, allocatable={"nvidia.com/gpu": "8"}) for name in ("n1", "n2"))
    user = pod({"nvidia.com/gpu": "3"}, node="n1")
    totals = ClassTotals()
    inventory = None
    for world, total, available in (
        ([one, two], 16, 16),
        ([one, two, user], 16, 13),
        ([one, user], 8, 5),
        ([node({}, name="n1"), user], 0, 0),
    ):
        inventory = inventory_of([*documents("ome-classes"), *world], inventory)
        found = totals.of(inventory)["nvidia-h100-80gb"]
        assert (found.total, found.available) == (total, available)
        assert totals.of(inventory) == ClassTotals().of(inventory)  # as if counted anew


def test_ome_16_slices(documents, inventory_of, node, pod):
    labels = {
        "nvidia.com/mig.capable": "true",
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
        "nvidia.com/gpu.memory": "40960",
    }
    world = [
        *documents("ome-classes"),
        node(labels, allocatable={"nvidia.com/mig-3g.20gb": "2", "nvidia.com/gpu": "0"}),
        pod({"nvidia.com/mig-3g.20gb": "1"}),
    ]
    found = ClassTotals().of(inventory_of(world))["nvidia-a100-40gb-mig-3g20gb"]
    assert (found.total, found.available) == (2, 1)


def test_class_and_node_are_in_no_namespace_whatever_their_author_wrote(documents, inventory_of, node):
    world = [*documents("ome-classes"), node(H100, name="n1")]
    for each in world:
        each["metadata"]["namespace"] = "default"
    assert ClassTotals().of(inventory_of(world))["nvidia-h100-80gb"].nodes == ("n1",)
