# SPDX-License-Identifier: Apache-2.0
"""Objects that bear on hardware change tags and routing while the picker runs."""

import json

import aiohttp
import openai
import pytest

from tests.support.kube import manifests as write
from tests.support.kube.fleet import Fleet, fleet_in
from tests.support.kube.hardware import (
    H100,
    HARDWARE_ROLE,
    ONE_GPU,
    READ,
    T4,
    accelerator_class,
    config,
    label_nodes,
    node_of,
    only,
    picker_with,
    pods_on_nodes,
    served_by,
)
from tests.support.kube.pickers import PATIENCE_SECONDS, Picker
from tests.support.kube.space import space_in
from tests.support.kube.users import PICKER_ROLE
from tests.support.ports import reserved_ports
from tests.support.waiting import until
from tests.support.world import MODEL


@pytest.fixture
async def fleet(space):
    """Pods `a` and `b`, each with one GPU of its own node."""
    async with fleet_in(space) as fleet:
        await pods_on_nodes(fleet)
        yield fleet


async def has_hardware(picker: Picker, **accelerators: int) -> None:
    """Wait until the metrics count so many endpoints with each accelerator."""
    wanted = {name.replace("_", "-"): count for name, count in accelerators.items()}

    async def same() -> bool:
        shown = (await picker.metrics()).get("llm_d_epp_accelerator_ready_endpoints", {})
        return {accelerator_in(labels): int(value) for labels, value in shown.items()} == wanted

    await until(same, f"the endpoints have {wanted}", seconds=PATIENCE_SECONDS)


def accelerator_in(labels: frozenset[str]) -> str:
    return next(label.removeprefix("accelerator=") for label in labels if label.startswith("accelerator="))


async def states(picker: Picker) -> dict[str, str]:
    """Return the state of each watch by its title."""
    _, health = await picker.health()
    return {watch["resource"]: watch["state"] for watch in health["kubernetes"]["watches"]}


async def test_ome_2_label_of_a_node_changes_tag_and_routing(space, fleet, tmp_path):
    nodes = await label_nodes(space)
    async with picker_with(space, tmp_path, only("models: [h100]")) as picker:
        await has_hardware(picker, h100=1, t4=1)
        await served_by(picker, "a")
        await space.label(nodes[1], **H100)
        await has_hardware(picker, h100=2)
        await served_by(picker, "a", "b")
        await space.label(nodes[0], **T4)
        await served_by(picker, "b")


async def test_ome_1_class_that_is_created_edited_and_deleted_changes_tags_and_routing(space, fleet, tmp_path):
    await label_nodes(space)
    async with picker_with(space, tmp_path, only("acceleratorClasses: [gold]", fallback="true")) as picker:
        await served_by(picker, "a", "b")  # there is no such class
        await space.apply(accelerator_class(H100["nvidia.com/gpu.product"]))
        await has_hardware(picker, gold=1, t4=1)
        await served_by(picker, "a")
        await space.apply(accelerator_class(T4["nvidia.com/gpu.product"]))
        await served_by(picker, "b")
        await space.delete(accelerator_class(""))
        await has_hardware(picker, h100=1, t4=1)
        await served_by(picker, "a", "b")


async def test_ome_11_invalid_version_of_a_class_leaves_the_one_before_in_effect(space, fleet, tmp_path):
    await label_nodes(space)
    await space.apply(accelerator_class(H100["nvidia.com/gpu.product"]))
    async with picker_with(space, tmp_path, only("acceleratorClasses: [gold]")) as picker:
        await served_by(picker, "a")
        await space.apply(accelerator_class(T4["nvidia.com/gpu.product"], capabilities={"memoryGB": "a lot"}))

        async def reported() -> bool:
            _, health = await picker.health()
            return [(each["file"], each["object"], each["kept"]) for each in health["not_in_effect"]] == [
                ("cluster", "AcceleratorClass gold", 1)
            ]

        await until(reported, "the version is reported as not in effect", seconds=PATIENCE_SECONDS)
        await served_by(picker, "a")
        await space.apply(accelerator_class(T4["nvidia.com/gpu.product"], capabilities={}))
        await served_by(picker, "b")
        _, health = await picker.health()
        assert health["not_in_effect"] == []


async def test_ome_18_unknown_field_of_a_class_is_on_the_health_page(space, fleet, tmp_path):
    await space.apply(accelerator_class(H100["nvidia.com/gpu.product"], cost={"hourly": "3"}))
    async with picker_with(space, tmp_path, only("models: [h100]", fallback="true")) as picker:

        async def reported() -> bool:
            _, health = await picker.health()
            said = [(each["file"], each["object"], each["reason"]) for each in health["ignored_values"]]
            hint = "known are perHour, perMillionTokens, spotPerHour, tier"
            return said == [("cluster", "gold", f"spec.cost.hourly is unknown: {hint}")]

        await until(reported, "the field is reported", seconds=PATIENCE_SECONDS)


async def test_ome_1_class_of_a_file_takes_precedence_over_that_of_the_cluster(space, fleet, tmp_path):
    await label_nodes(space)
    await space.apply(accelerator_class(H100["nvidia.com/gpu.product"]))
    path = tmp_path / "classes.json"
    path.write_text(json.dumps(accelerator_class(T4["nvidia.com/gpu.product"])))
    text = config(
        f"type: accelerator-data-source, parameters: {{paths: [{path}]}}",
        "type: accelerator-filter, parameters: {acceleratorClasses: [gold], fallbackOnEmpty: false}",
    )
    async with picker_with(space, tmp_path, text) as picker:
        await served_by(picker, "b")
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": []}))
        await served_by(picker, "a")


async def test_is_4_new_allocation_claim_for_a_pod_changes_its_tag_and_routing(space, fleet, tmp_path):
    async with (
        space_in(space.cluster) as operator,
        picker_with(space, tmp_path, only("migProfiles: [3g.20gb]")) as picker,
    ):
        claim = allocation_claim(fleet, "a")
        await operator.apply(claim)
        await served_by(picker, "a")
        await operator.apply(allocation_claim(fleet, "b"))
        await served_by(picker, "a", "b")
        await operator.delete({**claim, "metadata": {**claim["metadata"], "namespace": operator.namespace}})
        await served_by(picker, "b")


def allocation_claim(fleet: Fleet, pod: str) -> dict:
    metadata, node = fleet.pods[pod]["metadata"], node_of(fleet.space, pod)
    spec = {
        "profile": "3g.20gb",
        "podRef": {"kind": "Pod", "namespace": metadata["namespace"], "name": pod, "uid": metadata["uid"]},
        "migPlacement": {"size": 4, "start": 0},
        "gpuUUID": f"GPU-{pod}",
        "nodename": node,
    }
    api, name = "inference.redhat.com/v1alpha1", f"{metadata['uid']}-{node}-vllm-0"
    return write.manifest(api, "AllocationClaim", name, spec=spec, status={"state": "created"})


async def test_dra_1_claim_and_slice_of_a_pod_change_its_tag_and_routing(space, tmp_path):
    async with fleet_in(space) as fleet:
        for name in "ab":
            claims = [{"name": "gpu", "resourceClaimName": f"{name}-gpu"}]
            await fleet.start(name, node=node_of(space, name), resourceClaims=claims)
        await space.pool(ports=fleet.ports)
        async with picker_with(space, tmp_path, only("models: [h100]")) as picker:
            for name, product in (("a", "NVIDIA H100 80GB HBM3"), ("b", "Tesla T4")):
                await space.apply(resource_slice(node_of(space, name), product))
                await allocate(fleet, name)
            await has_hardware(picker, h100=1, t4=1)
            await served_by(picker, "a")
            await space.apply(resource_slice(node_of(space, "b"), "NVIDIA H100 80GB HBM3", generation=2))
            await served_by(picker, "a", "b")
            tainted = [{"key": "gpu.nvidia.com/unhealthy", "effect": "NoExecute"}]
            await space.apply(resource_slice(node_of(space, "a"), "Tesla T4", generation=2, taints=tainted))
            await served_by(picker, "b")


def resource_slice(node: str, product: str, *, generation: int = 1, **device: object) -> dict:
    strings = {"productName": product, "uuid": f"GPU-{node}", "type": "gpu"}
    attributes = {name: {"string": value} for name, value in strings.items()}
    gpu = {"name": "gpu-0", "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}, **device}
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": node, "pool": pool, "devices": [gpu]}
    return write.manifest("resource.k8s.io/v1", "ResourceSlice", f"{node}-gpu.nvidia.com", spec=spec)


async def allocate(fleet: Fleet, pod: str) -> None:
    """Create the claim of a pod, with what the scheduler writes into its status."""
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": node_of(fleet.space, pod), "device": "gpu-0"}
    holder = {"resource": "pods", "name": pod, "uid": fleet.pods[pod]["metadata"]["uid"]}
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [holder]}
    spec = {"devices": {"requests": requests}}
    claim = write.manifest("resource.k8s.io/v1", "ResourceClaim", f"{pod}-gpu", spec=spec, status=status)
    await fleet.space.apply(claim)


async def test_picker_without_rights_on_nodes_serves_says_so_once_and_uses_them_once_it_may(space, fleet, tmp_path):
    await label_nodes(space)
    async with picker_with(space, tmp_path, only("models: [h100]", "true"), roles=(PICKER_ROLE,)) as picker:
        await served_by(picker, "a", "b")
        line = json.loads(await picker.command.says("optional objects not read"))
        assert line["level"] == "info"
        assert "list nodes of group core at cluster scope" in line["forbidden"]
        assert "list acceleratorclasses of group ome.io at cluster scope" in line["forbidden"]
        assert f"list resourceclaims of group resource.k8s.io in namespace {space}" in line["forbidden"]

        async def forbidden() -> bool:
            found = await states(picker)
            kinds = ("nodes", "acceleratorclasses.ome.io", "allocationclaims.inference.redhat.com")
            return all(found.get(kind) == "forbidden" for kind in kinds)

        await until(forbidden, "the page of health says so", seconds=PATIENCE_SECONDS)
        await space.apply(accelerator_class(T4["nvidia.com/gpu.product"]))
        user = await space.user("picker")
        await space.grant(user, HARDWARE_ROLE)
        await has_hardware(picker, gold=1, h100=1)
        await served_by(picker, "a")
        await picker.command.says("optional objects readable now")
        warnings = [line for line in picker.command.err if '"level":"warn"' in line and "forbidden" in line]
        assert warnings == []
        lines = [json.loads(line) for line in picker.command.err if "optional objects not read" in line]
        rights = [right for line in lines for right in line.get("forbidden", ())]
        assert len(rights) == len(set(rights))  # each is said once, in one line unless the machine is slow


async def test_claims_of_the_own_namespace_count_where_those_of_all_are_forbidden(space, fleet, tmp_path):
    rule = {"apiGroups": ["inference.redhat.com"], "resources": ["allocationclaims"], "verbs": READ}
    role = {**HARDWARE_ROLE, "kind": "Role", "rules": [rule]}
    text = only("migProfiles: [3g.20gb]")
    async with picker_with(space, tmp_path, text, roles=(PICKER_ROLE, role)) as picker:
        await space.apply(allocation_claim(fleet, "a"))
        await served_by(picker, "a")
        assert (await states(picker))[f"allocationclaims.inference.redhat.com in {space}"] == "up to date"
        line = json.loads(await picker.command.says("optional objects not read"))
        assert line["only_in_own_namespace"] == [f"allocationclaims.inference.redhat.com in {space}"]


async def test_kind_that_is_installed_later_takes_effect(own_cluster, tmp_path):
    cluster = await own_cluster(crds=("inferencepools",))
    async with space_in(cluster) as space, fleet_in(space) as fleet:
        await pods_on_nodes(fleet)
        await label_nodes(space)
        async with picker_with(space, tmp_path, only("acceleratorClasses: [gold]", fallback="true")) as picker:
            await served_by(picker, "a", "b")
            line = json.loads(await picker.command.says("optional objects not read"))
            assert "acceleratorclasses.ome.io" in line["not_installed"]
            assert "forbidden" not in line
            await cluster.install("acceleratorclasses")
            await space.apply(accelerator_class(T4["nvidia.com/gpu.product"]))
            await served_by(picker, "b")
            await cluster.uninstall("acceleratorclasses")
            await served_by(picker, "a", "b")


async def test_new_pod_has_the_hardware_that_it_requests_of_its_node(space, fleet, tmp_path):
    eight = {"nvidia.com/gpu.count": "8"}
    await label_nodes(space, **eight)
    await space.node(node_of(space, "c"), labels={**H100, **eight})
    await space.apply(accelerator_class(H100["nvidia.com/gpu.product"], cost={"perHour": "4"}))
    async with picker_with(space, tmp_path, only("models: [h100], maxCostPerHour: 5")) as picker:
        await has_hardware(picker, gold=1, t4=1)
        await fleet.start("c", node=node_of(space, "c"), resources=ONE_GPU)
        await served_by(picker, "a", "c")  # 4 $ each: one GPU of eight


async def test_is_11_node_that_boots_anew_resets_what_is_known_of_its_endpoints(space, tmp_path):
    async with fleet_in(space) as fleet:
        node = await space.node(node_of(space, "a"), boot_id="first")
        await fleet.start("a", node=node_of(space, "a"))
        await space.pool(ports=fleet.ports)
        async with picker_with(space, tmp_path, "", "--decision-headers", pods="a") as picker:
            assert await picker.cached() == "0%"
            assert await picker.cached() != "0%"
            await space.label(node, zone="z1")
            await space.node(node_of(space, "last"))
            await picker.knows(2, "nodes")
            assert await picker.cached() != "0%"  # it is the same boot
            await space.node(node_of(space, "a"), boot_id="second")

            async def forgotten() -> bool:
                return await picker.cached() == "0%"

            await until(forgotten, "the cache of a node that booted anew counts as empty", seconds=PATIENCE_SECONDS)
            assert await picker.cached() != "0%"


async def test_is_16_quotas_of_slice_memory_of_a_namespace_and_of_its_queue_limit_a_tenant(space, fleet, tmp_path):
    await label_nodes(space)
    limits = "type: tenant-quotas, parameters: {acceleratorMemoryQuotas: true}"
    async with picker_with(space, tmp_path, config("type: accelerator-data-source", limits)) as picker:
        await has_hardware(picker, h100=1, t4=1)

        async def is_status(wanted: int) -> None:
            """Wait until the tenant with the name of the namespace gets answers with that status."""

            async def same() -> bool:
                try:
                    await picker.ask(extra_headers={"x-llm-d-inference-fairness-id": space.namespace})
                except openai.APIStatusError as error:
                    return error.status_code == wanted
                return wanted == 200

            await until(same, f"requests of the tenant are answered with {wanted}", seconds=PATIENCE_SECONDS)

        await is_status(200)
        resource = "instaslice.redhat.com/accelerator-memory-quota"
        hard = {f"requests.{resource}": "0"}
        made = await space.apply(write.manifest("v1", "ResourceQuota", "slices", spec={"hard": hard}))
        await is_status(400)
        await space.delete(made)
        await is_status(200)
        flavor = {"name": "mig", "resources": [{"name": resource, "nominalQuota": "0"}]}
        kueue, name = "kueue.x-k8s.io/v1beta2", space.namespace
        groups = [{"coveredResources": [resource], "flavors": [flavor]}]
        await space.apply(write.manifest(kueue, "ClusterQueue", name, spec={"resourceGroups": groups}))
        await space.apply(write.manifest(kueue, "LocalQueue", name, spec={"clusterQueue": name}))
        await is_status(400)
        assert await picker.ask()  # other tenants have no quota
        await space.apply(write.manifest(kueue, "LocalQueue", "odd", spec={"clusterQueue": 7}))

        async def told() -> list[str]:
            _, health = await picker.health()
            return [each["plugin"] for each in health["not_in_effect"]]

        async def is_told() -> bool:
            return bool(await told())

        await until(is_told, "the invalid queue is shown", seconds=PATIENCE_SECONDS)
        assert await told() == ["tenant-quotas"]


NEAR = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: disagg-profile-handler, parameters: {deciders: {prefill: prefix-based-pd-decider}}}
- {type: prefix-based-pd-decider, parameters: {nonCachedTokens: 512}}
- {type: topology-affinity-filter, parameters: {minAffinity: region}}
- {type: prefill-filter, parameters: {fallbackOnEmpty: false}}
- {type: decode-filter, parameters: {fallbackOnEmpty: false}}
- {type: random-picker}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: topology-affinity-filter}]}
- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: random-picker}]}
"""


async def test_gie_22_prefill_and_decode_are_in_one_region_by_the_labels_of_their_nodes(space, tmp_path):
    async with fleet_in(space) as fleet:
        for region in ("eu", "us"):
            name = node_of(space, region)
            await space.node(name, labels={"topology.kubernetes.io/region": region})
            for role in ("prefill", "decode"):
                await fleet.start(f"{role}-{region}", node=name, labels={"app": "vllm", "llm-d.ai/role": role})
        await space.pool(ports=fleet.ports)
        pods = tuple(f"{role}-{region}" for role in ("prefill", "decode") for region in ("eu", "us"))
        with reserved_ports(1) as (port,):
            async with picker_with(space, tmp_path, NEAR, f"--admin-port={port}", pods=pods):
                assert {await region_of_both(port, number) for number in range(12)} == {"eu", "us"}


async def region_of_both(admin_port: int, number: int) -> str:
    """Simulate a request with a new prompt; return the region of its two endpoints."""
    body = {"model": MODEL, "prompt": f"{number} " * 9000}
    url = f"http://127.0.0.1:{admin_port}/api/simulate-schedule"
    async with aiohttp.ClientSession() as http, http.post(url, json={"path": "/v1/completions", "body": body}) as found:
        profiles = (await found.json())["profiles"]
    names = [each["endpoint"] for profile in profiles for each in profile["candidates"] if each.get("rank") == 0]
    (region,) = {name.split("-")[1] for name in names}
    assert {name.split("-")[0] for name in names} == {"prefill", "decode"}
    return region
