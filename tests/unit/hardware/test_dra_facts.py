# SPDX-License-Identifier: Apache-2.0
"""What ResourceClaims make of an endpoint."""

import copy

import pytest

from epp.framework.accelerators.tag import AcceleratorKind, Routability, Sharing
from epp.framework.endpoint import Endpoint
from epp.hardware.inventory import Inventory
from epp.hardware.tag_builder import TagBuilder
from tests.support.decoded_objects import decode
from tests.support.hardware_objects import GPU_A, MIB
from tests.support.kube.manifests import manifest

POD_UID = "3f0c6c5e-0d61-4e57-9a0e-2d1a7f7f1111"


@pytest.fixture
def dra(documents):
    """The sample by kind; of the two slices, the one with devices is `ResourceSlice`."""
    return {each["kind"]: each for each in documents("dra")} | {"counters": documents("dra")[0]}


@pytest.fixture
def with_claim(dra, tag):
    """Tag by the slices of the sample, a claim and more."""
    return lambda claim, *more, slices=dra["ResourceSlice"]: tag([slices, dra["counters"], claim, *more])


def tainted(slices, **taint):
    changed = copy.deepcopy(slices)
    changed["spec"]["devices"][0]["taints"] = [{"key": "k", **taint}]
    return changed


def shared(claim, *users):
    changed = copy.deepcopy(claim)
    changed["status"]["reservedFor"] += users
    return changed


VLLM_B = {"resource": "pods", "name": "vllm-b", "uid": "uid-b"}


def taint_rule(selector, version="v1"):
    spec = {"deviceSelector": selector, "taint": {"key": "k", "effect": "NoExecute"}}
    return manifest(f"resource.k8s.io/{version}", "DeviceTaintRule", "r", spec=spec)


def with_result(claim, **result):
    changed = copy.deepcopy(claim)
    changed["status"]["allocation"]["devices"]["results"][0].update(result)
    return changed


def bare_pod(pod, **more):
    return pod(uid=POD_UID, **more)


def test_dra_2_sample(documents, tag):
    found = tag(documents("dra"))
    assert (found.kind, found.vendor, found.family, found.model) == (AcceleratorKind.GPU, "nvidia", "hopper", "h100")
    assert (found.count, found.memory_bytes) == (1, 81559 * MIB)
    assert found.compute_capability == (9, 0)
    assert found.product == "NVIDIA H100 80GB HBM3"
    assert found.partition.kind is Sharing.NONE
    (device,) = found.devices
    assert (device.id, device.node, device.pcie_root) == (GPU_A, "gpu-node-1", "pci0000:16")
    assert found.attributes["gpu.nvidia.com/driverVersion"] == (580, 65, 6)
    assert found.attributes["gpu.nvidia.com/brand"] == "Nvidia"
    assert found.attributes["resource.kubernetes.io/pcieRoot"] == "pci0000:16"
    assert found.state is Routability.ROUTABLE


@pytest.mark.parametrize("way", ["status", "spec", "extended", "reserved", "reserved by name"])
def test_dra_1_pods_join_their_claims(dra, tag, pod, way):
    claim = copy.deepcopy(dra["ResourceClaim"])
    if not way.startswith("reserved"):
        claim["status"]["reservedFor"] = []
    name = claim["metadata"]["name"]
    by_status = {"status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": name}]}}
    by_spec = {"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}}
    extended = {
        "resources": {"nvidia.com/gpu": "1"},
        "status": {"extendedResourceClaimStatus": {"resourceClaimName": name, "requestMappings": []}},
    }
    more = {"status": by_status, "spec": by_spec, "extended": extended}.get(way, {})
    pods = [] if way == "reserved by name" else [bare_pod(pod, **more)]
    found = tag([dra["ResourceSlice"], dra["counters"], claim, *pods])
    assert [device.id for device in found.devices] == [GPU_A]


def test_dra_2_partition_is_a_slice_of_its_parent(dra, with_claim):
    claim = with_result(dra["ResourceClaim"], device="gpu-1-mig-3g40gb-9-0")
    found = with_claim(claim)
    assert found.memory_bytes == 40448 * MIB
    part = found.partition
    assert (part.kind, part.profile, part.start) == (Sharing.MIG, "3g.40gb", 0)
    assert part.parent_id == found.devices[0].parent_id == "GPU-00000000-0000-0000-0000-00000000000b"
    assert (part.compute_fraction, part.memory_fraction) == (3 / 7, 4 / 8)
    assert found.devices[0].id == "MIG-00000000-0000-0000-0000-000000000001"


def test_dra_2_partition_that_is_not_made_yet_is_known_by_its_place(dra, with_claim):
    slices = dra["ResourceSlice"]
    del slices["spec"]["devices"][1]["attributes"]["uuid"]
    (device,) = with_claim(with_result(dra["ResourceClaim"], device="gpu-1-mig-3g40gb-9-0"), slices=slices).devices
    assert device.id == "gpu.nvidia.com/gpu-node-1/gpu-1-mig-3g40gb-9-0"
    assert device.parent_id.endswith("0b")


def test_dra_2_result_of_an_alternative_and_names_with_domains(dra, with_claim):
    device = dra["ResourceSlice"]["spec"]["devices"][0]
    device["attributes"] = {
        name if "/" in name else f"gpu.nvidia.com/{name}": value for name, value in device["attributes"].items()
    }
    found = with_claim(with_result(dra["ResourceClaim"], request="gpu/big"))
    assert (found.model, found.compute_capability) == ("h100", (9, 0))


def test_dra_2_device_counts_once_however_many_claims_have_it(dra, with_claim, pod):
    again = copy.deepcopy(dra["ResourceClaim"])
    again["metadata"]["name"] = "again"
    found = with_claim(dra["ResourceClaim"], again, bare_pod(pod))
    assert (found.count, len(found.devices)) == (1, 1)


def test_dra_2_observers_have_no_device(dra, with_claim):
    assert with_claim(with_result(dra["ResourceClaim"], adminAccess=True)).devices == ()


def test_dra_2_network_cards_are_no_accelerators(dra, tag, pod):
    card = with_result(dra["ResourceClaim"], driver="dra.net", pool="nics", device="eth1")
    found = tag([card, bare_pod(pod)])
    assert (found.count, found.kind) == (0, AcceleratorKind.UNKNOWN)


def test_dra_4_taints(dra, with_claim):
    def state(effect):
        found = with_claim(dra["ResourceClaim"], slices=tainted(dra["ResourceSlice"], effect=effect))
        return found.state, found.devices[0].taints

    assert state("NoExecute") == (Routability.DRAINING, ("NoExecute",))
    assert state("NoSchedule") == (Routability.ROUTABLE, ("NoSchedule",))
    assert state("None") == state("SomethingNew") == (Routability.ROUTABLE, ())


@pytest.mark.parametrize(("device", "drains"), [("gpu-0", True), ("gpu-7", False)])
def test_dra_4_rules_taint_devices_too(dra, with_claim, device, drains):
    rule = taint_rule({"driver": "gpu.nvidia.com", "device": device}, version="v1alpha3")
    found = with_claim(dra["ResourceClaim"], rule)
    assert (found.state is Routability.DRAINING) is drains


@pytest.mark.parametrize(("option", "expected"), [("Drain", Routability.DRAINING), ("Ignore", Routability.ROUTABLE)])
def test_dra_4_unhealthy_device_drains(dra, tag, pod, option, expected):
    health = {"resourceID": "gpu.nvidia.com/gpu-node-1/gpu-0", "health": "Unhealthy", "message": "ECC"}
    allocated = [{"name": "c", "resources": [health]}]
    status = {"containerStatuses": [{"name": "vllm", "allocatedResourcesStatus": allocated}]}
    documents = [dra["ResourceSlice"], dra["counters"], dra["ResourceClaim"], bare_pod(pod, status=status)]
    found = tag(documents, options={"on_unhealthy_device": option})
    assert (found.state, found.devices[0].health) == (expected, "Unhealthy")


def newer(slices, *, generation=4, count=2):
    """A slice of the next generation, in which the device's memory is another."""
    changed = copy.deepcopy(slices)
    changed["metadata"]["name"] += f"-{generation}"
    changed["spec"]["pool"].update(generation=generation, resourceSliceCount=count)
    changed["spec"]["devices"][0]["capacity"]["memory"]["value"] = "1Gi"
    return changed


def test_dra_6_incomplete_pool_keeps_its_last_complete_generation(dra, tag, inventory_of):
    slices = [dra["ResourceSlice"], dra["counters"]]
    before = inventory_of(slices)
    # both old slices are gone, one of two new ones is there
    documents = [newer(dra["ResourceSlice"]), dra["ResourceClaim"]]
    decoded = decode(documents, "test")
    now = Inventory.build([decoded.file], before)
    assert now.remarks == (
        "device pool gpu.nvidia.com/gpu-node-1: its newest generation is incomplete; the last complete one is used",
    )
    found = tag(documents, previous=before)
    assert (found.memory_bytes, found.attributes["epp/stale"]) == (81559 * MIB, True)


def test_dra_6_old_generation_that_is_still_there_counts_until_the_new_one_is_complete(dra, tag):
    old = [dra["ResourceSlice"], dra["counters"], dra["ResourceClaim"]]
    half = tag([*old, newer(dra["ResourceSlice"])])
    assert (half.memory_bytes, half.attributes["epp/stale"]) == (81559 * MIB, True)
    whole = tag([*old, newer(dra["ResourceSlice"], count=1)])
    assert whole.memory_bytes == 2**30
    assert "epp/stale" not in whole.attributes


def test_dra_6_pool_that_is_gone_stays_while_a_claim_has_devices_of_it(dra, tag, inventory_of):
    first = inventory_of([dra["ResourceSlice"], dra["counters"], dra["ResourceClaim"]])
    second = Inventory.build([decode([dra["ResourceClaim"]]).file], first)
    found = tag([dra["ResourceClaim"]], previous=second)
    assert (found.model, found.attributes["epp/stale"]) == ("h100", True)


def test_dra_6_without_any_slice_the_device_is_counted_still(dra, tag):
    found = tag([dra["ResourceClaim"]])
    assert (found.count, found.vendor, found.memory_bytes) == (1, "nvidia", None)
    assert found.devices[0].id == "gpu.nvidia.com/gpu-node-1/gpu-0"


def test_dra_7_claim_of_two_pods_has_half_of_the_device_for_each(dra, with_claim, pod):
    found = with_claim(shared(dra["ResourceClaim"], VLLM_B), bare_pod(pod))
    assert (found.count, found.partition.kind, found.partition.sharers) == (1, Sharing.TIME_SLICING, 2)
    assert (found.memory_bytes, found.tflops()) == (81559 * MIB // 2, 989 / 2)


def test_claims_of_two_systems_that_differ_are_a_conflict(dra, documents, inventory_of):
    inventory = inventory_of([*documents("instaslice-generation-2"), *documents("dra")[:3]])
    merged = TagBuilder(inventory).build(Endpoint("vllm-a", "10.0.0.11", 8000, "llm"))
    assert merged.tag.devices[0].id == GPU_A
    assert merged.conflicts == (
        "ResourceClaim/llm/vllm-a-gpu-x7k2p and InstaSlice claim different devices: the first one counts",
    )


def test_figures_of_devices_that_do_not_count_do_not_count_either(dra, documents, inventory_of):
    inventory = inventory_of([*documents("tensor-fusion"), *documents("dra")])  # an A100 of 312 TFLOPS, and an H100
    merged = TagBuilder(inventory).build(Endpoint("vllm-a", "10.0.0.11", 8000, "llm"))
    assert (merged.tag.model, merged.tag.performance.fp16) == ("h100", 989)
    assert not any(name.startswith("tensor-fusion.ai/") for name in merged.tag.attributes)
    assert merged.conflicts == (
        "ResourceClaim/llm/vllm-a-gpu-x7k2p and GPU/gpu-0000000a claim different devices: the first one counts",
    )


def test_dra_5_device_is_in_the_clique_of_its_node(documents, tag, node):
    (device,) = tag([*documents("dra"), node({"nvidia.com/gpu.clique": "uuid.1"})]).devices
    assert (device.pcie_root, device.clique) == ("pci0000:16", "uuid.1")


EXISTS, EQUAL = {"operator": "Exists"}, {"key": "k", "value": "v"}


@pytest.mark.parametrize(
    ("toleration", "effects"),
    [
        (EXISTS, ()),
        (EQUAL, ()),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, ()),
        ({"key": "k", "operator": "Exists", "effect": "NoSchedule"}, ("NoExecute",)),
        ({"key": "other", "operator": "Exists"}, ("NoExecute",)),
        ({"key": "k", "value": "w"}, ("NoExecute",)),
        (EXISTS | {"tolerationSeconds": 300}, ("NoSchedule",)),  # its pods are evicted later
    ],
)
def test_dra_8_tolerated_taint_has_no_effect_on_the_endpoint(dra, with_claim, toleration, effects):
    slices = tainted(dra["ResourceSlice"], value="v", effect="NoExecute")
    found = with_claim(with_result(dra["ResourceClaim"], tolerations=[toleration]), slices=slices)
    assert found.devices[0].taints == effects
    assert (found.state is Routability.DRAINING) is (effects == ("NoExecute",))


@pytest.mark.parametrize(("selector", "drains"), [({}, True), (None, False)])
def test_dra_8_rule_without_a_selector_matches_no_device_and_an_empty_one_all(dra, with_claim, selector, drains):
    found = with_claim(dra["ResourceClaim"], taint_rule(selector))
    assert (found.state is Routability.DRAINING) is drains


def test_dra_9_shares_of_one_device_add_up(dra, with_claim):
    quarter = {"memory": f"{81560 // 4}Mi"}
    claim = with_result(dra["ResourceClaim"], shareID="a", consumedCapacity=quarter)
    (first,) = claim["status"]["allocation"]["devices"]["results"]
    claim["status"]["allocation"]["devices"]["results"].append(first | {"shareID": "b", "request": "more"})
    found = with_claim(claim)
    assert (found.count, found.memory_bytes) == (1, 81560 // 4 * 2 * MIB)
    assert found.partition.memory_fraction == pytest.approx(1 / 2, rel=1e-3)


def test_dra_10_claim_of_a_group_of_pods_is_shared_by_the_pods_that_name_it(dra, with_claim, pod):
    claim = copy.deepcopy(dra["ResourceClaim"])
    group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "g"}
    claim["status"]["reservedFor"] = [group]
    status = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": claim["metadata"]["name"]}]}
    found = with_claim(claim, bare_pod(pod, status=status), pod(name="vllm-b", uid="b", status=status))
    assert (found.partition.sharers, found.memory_bytes) == (2, 81559 * MIB // 2)


@pytest.mark.parametrize(("requests", "kind"), [(["gpu/small"], Sharing.MPS), (["gpu/big"], Sharing.TIME_SLICING)])
def test_dra_11_configuration_of_the_alternative_that_was_allocated_counts(dra, with_claim, requests, kind):
    claim = shared(with_result(dra["ResourceClaim"], request="gpu/small"), VLLM_B)
    parameters = {"sharing": {"strategy": "MPS"}}
    config = {"requests": requests, "opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}
    claim["status"]["allocation"]["devices"]["config"] = [config]
    assert with_claim(claim).partition.kind is kind


@pytest.mark.parametrize(
    ("device_class", "vendor"), [("gpu.nvidia.com", "nvidia"), ("gpu.intel.com", "intel"), ("dra.net", "")]
)
def test_dra_12_extended_resource_of_a_device_class_counts_devices(tag, pod, device_class, vendor):
    found = tag([pod({f"deviceclass.resource.kubernetes.io/{device_class}": "2"}, uid=POD_UID)])
    assert (found.vendor, found.count) == (vendor, 2 if vendor else 0)
