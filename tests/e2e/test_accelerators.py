# SPDX-License-Identifier: Apache-2.0
"""Requests find the hardware that suits them, through a real Envoy, with the cluster's objects read from files."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import openai
import pytest
import yaml

from epp.framework.snapshot import ACCELERATOR, SERVED
from tests.support.config_files import endpoints_file, picker_config, replace
from tests.support.kube import manifests
from tests.support.kube.manifests import manifest
from tests.support.waiting import until
from tests.support.world import MODEL, World, open_world, rest_of

GPUS = {"big": "NVIDIA-H100-80GB-HBM3", "medium": "NVIDIA-A100-SXM4-40GB", "small": "Tesla-T4"}
PRICES = {"nvidia-h100": (80, "4.25"), "nvidia-a100": (40, "2.00"), "nvidia-t4": (16, "0.53")}
PROFILE = picker_config("""
plugins:
- type: file-discovery
  parameters: {{path: {directory}/endpoints.yaml}}
- type: accelerator-data-source
  parameters: {{paths: [{directory}/objects]}}
{plugins}
dataLayer: {{discovery: {{pluginRef: file-discovery}}}}
""")


def objects() -> list[dict]:
    """A node and a pod for each endpoint, and a class for each kind of GPU."""
    found: list[dict] = []
    for (name, product), (of_class, (memory, price)) in zip(GPUS.items(), PRICES.items(), strict=True):
        labels = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.count": "1"}
        pod = {
            "nodeName": f"node-{name}",
            "containers": [{"name": "vllm", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        }
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        accelerator = {
            "vendor": "nvidia",
            "discovery": {"nodeSelector": {"nvidia.com/gpu.product": product}},
            "capabilities": {"memoryGB": f"{memory}Gi"},
            "cost": {"perHour": price},
        }
        found += [
            manifest("v1", "Node", f"node-{name}", metadata={"labels": labels}),
            manifest("v1", "Pod", name, "default", {"uid": f"uid-{name}"}, spec=pod, status=ready),
            manifest("ome.io/v1beta1", "AcceleratorClass", of_class, spec=accelerator),
        ]
    return found


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., None]:
    """Write objects into a file beside those of the cluster, which the picker follows."""
    (tmp_path / "objects").mkdir()
    return lambda *documents: replace(tmp_path / "objects" / "more.yaml", yaml.safe_dump_all(documents))


@pytest.fixture
def cluster(
    simulated: Callable, tmp_path: Path, write: Callable
) -> Callable[[str], AbstractAsyncContextManager[World]]:
    """Open a world of a server for each GPU, with these plugins."""

    @asynccontextmanager
    async def start(plugins: str) -> AsyncIterator[World]:
        sims = await simulated(*GPUS)
        endpoints_file(tmp_path / "endpoints.yaml", **{name: (sim.address, {}) for name, sim in sims.items()})
        (tmp_path / "objects" / "cluster.yaml").write_text(yaml.safe_dump_all(objects()))
        config = tmp_path / "config.yaml"
        config.write_text(PROFILE.format(directory=tmp_path, plugins=plugins.replace("OBJECTS", f"{tmp_path}/objects")))
        async with open_world(config_file=config, sims=sims) as world:
            yield world

    return start


def words(count: int) -> str:
    """A prompt of about so many tokens that shares nothing with any other."""
    return "".join(f"{random.getrandbits(32):08x}"[:4] for _ in range(count))


def classes(world: World) -> dict[str, str]:
    snapshot = world.gateway.picker.store.snapshot()
    tags = snapshot.records(ACCELERATOR).values
    return {e.name: tags[slot].primary_class for slot, e in enumerate(snapshot.endpoints.values) if e is not None}


async def test_ome_3_request_for_fp8_never_goes_to_a_t4(cluster):
    plugins = """\
- type: accelerator-selection-producer
  parameters: {allowRequestOverrides: true}
- type: accelerator-filter
- type: active-request-scorer
"""
    fp8 = {"extra_headers": {"x-epp-accelerator-features": "fp8"}}
    async with cluster(plugins) as world:
        assert classes(world) == {"big": "nvidia-h100", "medium": "nvidia-a100", "small": "nvidia-t4"}
        await asyncio.gather(*(world.ask(words(50), max_tokens=20) for _ in range(12)))
        served_before = world.column(SERVED)["small"]
        assert served_before > 0  # for others it is as good as any
        answers = await asyncio.gather(*(world.ask(words(50), max_tokens=20, **fp8) for _ in range(24)))
        assert set(answers) == {"big"}  # an A100 has no fp8 either
        assert world.column(SERVED)["small"] == served_before
        arrived = {name for request in await world.requests_at("big") for name, _ in request["headers"]}
        assert "x-request-id" in arrived
        assert not any(name.startswith("x-epp-") for name in arrived)


async def test_ome_5_client_can_tighten_and_never_loosen(cluster):
    plugins = """\
- type: accelerator-selection-producer
  parameters:
    allowRequestOverrides: true
    requestOverrides: strict
    defaults: {acceleratorClasses: [nvidia-h100, nvidia-a100]}
- type: accelerator-filter
- type: active-request-scorer
"""
    async with cluster(plugins) as world:
        tightened = {"extra_headers": {"x-epp-accelerator-class": "nvidia-a100"}}
        assert {await world.ask(words(20), **tightened) for _ in range(4)} == {"medium"}
        with pytest.raises(openai.BadRequestError, match="x-epp-accelerator-class"):
            await world.ask(words(20), extra_headers={"x-epp-accelerator-class": "nvidia-t4"})


BOUNDED = """\
- {type: accelerator-selection-producer, parameters: {paths: [OBJECTS]}}
- type: accelerator-filter
"""
"""By objects in files."""


async def test_ome_7_the_thresholds_of_pool_and_service_are_hard_and_follow_their_files(cluster, write):
    write(_service("1"))
    async with cluster(BOUNDED + "- type: most-capable-scorer\n") as world:
        assert await world.ask(words(20)) == "small"  # $0.53 an hour
        write(_service("3"), _pool("9"))
        await goes_to(world, "medium", "an endpoint of $2 is allowed")
        write(_service("3"), _pool("0.1"))  # the stricter one counts
        await until(lambda: _is_refused(world), "no endpoint is allowed")
        with pytest.raises(openai.RateLimitError) as refused:
            await world.ask(words(20))
        assert refused.value.response.headers["x-llm-d-request-dropped-reason"] == "rejected-constraint"
        assert "retry-after" not in refused.value.response.headers


async def test_ome_17_service_of_the_proposal_routes_by_strategy_classes_and_capabilities(cluster, write):
    def select(**selector: object) -> None:
        write(_service("9", acceleratorSelector=selector))

    select(strategy="cost")
    async with cluster(BOUNDED + "- type: accelerator-policy-scorer\n") as world:
        assert {await world.ask(words(20)) for _ in range(4)} == {"small"}
        select(strategy="cost", requiredCapabilities={"memoryGB": "40Gi"})
        await goes_to(world, "medium", "the T4 has too little memory")
        select(strategy="cost", preferredClasses=["nvidia-h100", "nvidia-a100"])
        await goes_to(world, "big", "the H100 is preferred")
        select(strategy="cost", nodeSelector={"nvidia.com/gpu.product": GPUS["medium"]})
        await goes_to(world, "medium", "the node has the label")
        select(strategy="performance")
        await goes_to(world, "big", "the H100 is the fastest")


async def test_ome_5_engine_and_decoder_of_a_service_bound_their_legs(cluster, write):
    plugins = """\
- type: header-profile-handler
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: accelerator-filter}]}
- {name: decode, plugins: [{pluginRef: accelerator-filter}]}
"""
    engine, decoder = ({"acceleratorOverride": {"acceleratorClass": each}} for each in ("nvidia-h100", "nvidia-t4"))
    write(_service("9", engine=engine, decoder=decoder))
    async with cluster(BOUNDED + plugins) as world:
        for profile, expected in (("prefill", "big"), ("decode", "small")):
            asked = {"extra_headers": {"EPP-Profile": profile}}
            assert {await world.ask(words(20), **asked) for _ in range(4)} == {expected}


async def test_is_5_endpoint_that_loses_its_slice_gets_no_new_request_and_ends_what_it_has(cluster, write):
    write(*_slice_in_state("inUse"))
    async with cluster("- type: accelerator-availability-filter\n- type: cheapest-scorer\n") as world:
        assert await world.ask(words(20)) == "small"  # the cheapest
        begun = await world.stream(200)
        write(*_slice_in_state("orphaned"))
        snapshot = world.gateway.picker.store.snapshot
        await until(
            lambda: any(tag.state == "draining" for tag in snapshot().records(ACCELERATOR).values), "it is draining"
        )
        assert {await world.ask(words(20)) for _ in range(4)} == {"medium"}  # the next cheapest
        await rest_of(begun)


async def test_is_11_what_was_learned_of_a_pod_ends_when_the_objects_have_another_of_its_name(cluster, tmp_path):
    """The endpoint list does not name pods; the files with the cluster's objects do."""
    async with cluster("- {type: approx-prefix-cache-producer}\n- {type: prefix-cache-scorer}") as world:
        prompt = words(2000)
        first = await world.ask(prompt)
        assert [await world.ask(prompt) for _ in range(3)] == [first] * 3
        objects_file = tmp_path / "objects" / "cluster.yaml"
        replace(objects_file, objects_file.read_text().replace(f"uid-{first}", "uid-of-another"))
        await until(lambda: world.column(SERVED)[first] == 0, "the new pod is known")
        assert sum(world.column(SERVED).values()) == 0  # the other endpoints are as they were


def _service(threshold: str, **spec: object) -> dict:
    annotations = {"ome.io/cost-threshold": threshold}
    spec = {"model": {"name": MODEL}, **spec}
    return manifest("ome.io/v1beta1", "InferenceService", "chat", "default", {"annotations": annotations}, spec=spec)


def _pool(threshold: str) -> dict:
    found = manifests.pool("pool", namespace="default")
    found["metadata"]["annotations"] = {"ome.io/cost-threshold": threshold}
    return found


async def goes_to(world: World, name: str, why: str) -> None:
    async def is_asked() -> bool:
        return await world.ask(words(20)) == name

    await until(is_asked, why)


async def _is_refused(world: World) -> bool:
    try:
        await world.ask(words(20))
    except openai.RateLimitError:
        return True
    return False


def _slice_in_state(state: str) -> tuple[dict, dict]:
    """The GPU of the node of `small`, and the claim of that pod to a slice of it."""
    das, operator = "inference.redhat.com/v1alpha1", "das-operator"
    gpus = [{"gpuUuid": "GPU-t", "gpuName": "NVIDIA A30-24GB", "gpuMemory": "24Gi"}]
    status = {
        "conditions": [{"type": "Ready", "status": "True", "reason": "GPUsAccessible"}],
        "nodeResources": {"nodeGpus": gpus, "migPlacement": {}},
    }
    claim = {
        "profile": "1g.6gb",
        "podRef": {"kind": "Pod", "namespace": "default", "name": "small", "uid": "uid-small"},
        "migPlacement": {"size": 1, "start": 0},
        "gpuUUID": "GPU-t",
        "nodename": "node-small",
    }
    return (
        manifest(das, "NodeAccelerator", "node-small", operator, spec={"acceleratorType": "nvidia-mig"}, status=status),
        manifest(das, "AllocationClaim", "uid-small-node-small-vllm-0", operator, spec=claim, status={"state": state}),
    )
