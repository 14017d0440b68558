# SPDX-License-Identifier: Apache-2.0
"""Requests find the hardware that suits them, through a real Envoy, with the cluster's objects read from files."""

import asyncio
import random
from pathlib import Path

import openai
import pytest
import yaml

from epp.framework.snapshot import ACCELERATOR, SERVED
from epp.lab.sim.server import RunningSim
from tests.support.config_files import endpoints_file, replace
from tests.support.world import MODEL, World, open_world, until

GPUS = {"big": "NVIDIA-H100-80GB-HBM3", "medium": "NVIDIA-A100-SXM4-40GB", "small": "Tesla-T4"}
PRICES = {"nvidia-h100": (80, "4.25"), "nvidia-a100": (40, "2.00"), "nvidia-t4": (16, "0.53")}
PROFILE = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: file-discovery
  parameters: {{path: {directory}/endpoints.yaml}}
- type: accelerator-data-source
  parameters: {{paths: [{directory}/objects]}}
{plugins}
dataLayer: {{discovery: {{pluginRef: file-discovery}}}}
"""


def objects() -> list[dict]:
    """A node and a pod for each endpoint, and a class for each kind of GPU."""
    found: list[dict] = []
    for name, product in GPUS.items():
        labels = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.count": "1"}
        found += [
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{name}", "labels": labels}},
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
                "spec": {
                    "nodeName": f"node-{name}",
                    "containers": [{"name": "vllm", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
                },
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
            },
        ]
    for (name, (memory, price)), product in zip(PRICES.items(), GPUS.values(), strict=True):
        found.append(
            {
                "apiVersion": "ome.io/v1beta1",
                "kind": "AcceleratorClass",
                "metadata": {"name": name},
                "spec": {
                    "vendor": "nvidia",
                    "discovery": {"nodeSelector": {"nvidia.com/gpu.product": product}},
                    "capabilities": {"memoryGB": f"{memory}Gi"},
                    "cost": {"perHour": price},
                },
            }
        )
    return found


def write(directory: Path, sims: dict[str, RunningSim], plugins: str) -> Path:
    endpoints_file(directory / "endpoints.yaml", **{name: (sim.address, {}) for name, sim in sims.items()})
    (directory / "objects").mkdir(exist_ok=True)
    (directory / "objects" / "cluster.yaml").write_text(yaml.safe_dump_all(objects()))
    config = directory / "config.yaml"
    config.write_text(PROFILE.format(directory=directory, plugins=plugins))
    return config


def words(count: int) -> str:
    """A prompt of about so many tokens that shares nothing with any other."""
    return "".join(f"{random.getrandbits(32):08x}"[:4] for _ in range(count))


def classes(world: World) -> dict[str, str]:
    snapshot = world.gateway.picker.store.snapshot()
    tags = snapshot.records(ACCELERATOR).values
    return {e.name: tags[slot].primary_class for slot, e in enumerate(snapshot.endpoints.values) if e is not None}


async def test_ome_6_short_requests_go_to_the_a100_and_long_ones_to_the_h100(simulated, tmp_path):
    sims = await simulated(*GPUS)
    config = write(
        tmp_path,
        sims,
        "- type: preference-order-scorer\n"
        "  parameters:\n"
        "    preferenceOrder:\n"
        "    - {class: nvidia-a100, score: 100, conditions: [{promptTokens: '<2048'}]}\n"
        "    - {class: nvidia-h100, score: 90}\n"
        "    - {class: nvidia-a100, score: 40}\n",
    )
    async with open_world(config_file=config, sims=sims) as world:
        assert classes(world) == {"big": "nvidia-h100", "medium": "nvidia-a100", "small": "nvidia-t4"}
        assert [await world.ask(words(500)) for _ in range(3)] == ["medium"] * 3
        assert [await world.ask(words(6000)) for _ in range(3)] == ["big"] * 3


async def test_ome_3_request_for_fp8_never_goes_to_a_t4(simulated, tmp_path):
    sims = await simulated(*GPUS)
    config = write(
        tmp_path,
        sims,
        "- type: accelerator-selection-producer\n"
        "  parameters: {allowRequestOverrides: true}\n"
        "- type: accelerator-filter\n"
        "- type: active-request-scorer\n",
    )
    fp8 = {"extra_headers": {"x-epp-accelerator-features": "fp8"}}
    async with open_world(config_file=config, sims=sims) as world:
        await asyncio.gather(*(world.ask(words(50), max_tokens=20) for _ in range(12)))
        assert world.column(SERVED)["small"] > 0  # for others it is as good as any
        served_before = world.column(SERVED)["small"]
        answers = await asyncio.gather(*(world.ask(words(50), max_tokens=20, **fp8) for _ in range(24)))
        assert set(answers) == {"big"}  # an A100 has no fp8 either
        assert world.column(SERVED)["small"] == served_before
        arrived = {name for request in await world.requests_at("big") for name, _ in request["headers"]}
        assert "x-request-id" in arrived
        assert not any(name.startswith("x-epp-") for name in arrived)


async def test_ome_5_client_can_tighten_and_never_loosen(simulated, tmp_path):
    sims = await simulated(*GPUS)
    config = write(
        tmp_path,
        sims,
        "- type: accelerator-selection-producer\n"
        "  parameters:\n"
        "    allowRequestOverrides: true\n"
        "    requestOverrides: strict\n"
        "    defaults: {acceleratorClasses: [nvidia-h100, nvidia-a100]}\n"
        "- type: accelerator-filter\n"
        "- type: active-request-scorer\n",
    )
    async with open_world(config_file=config, sims=sims) as world:
        tightened = {"extra_headers": {"x-epp-accelerator-class": "nvidia-a100"}}
        assert {await world.ask(words(20), **tightened) for _ in range(4)} == {"medium"}
        with pytest.raises(openai.BadRequestError, match="x-epp-accelerator-class"):
            await world.ask(words(20), extra_headers={"x-epp-accelerator-class": "nvidia-t4"})


async def test_ome_7_the_thresholds_of_pool_and_service_are_hard_and_follow_their_files(simulated, tmp_path):
    sims = await simulated(*GPUS)
    config = write(
        tmp_path,
        sims,
        f"- type: accelerator-selection-producer\n  parameters: {{paths: [{tmp_path}/objects]}}\n"
        "- type: accelerator-filter\n"
        "- type: most-capable-scorer\n",
    )
    bounds = tmp_path / "objects" / "bounds.yaml"
    bounds.write_text(yaml.safe_dump_all([_service("1")]))
    async with open_world(config_file=config, sims=sims) as world:
        assert await world.ask(words(20)) == "small"  # $0.53 an hour
        replace(bounds, yaml.safe_dump_all([_service("3"), _pool("9")]))
        await until(lambda: _asked(world, "medium"), "an endpoint of $2 is allowed")
        replace(bounds, yaml.safe_dump_all([_service("3"), _pool("0.1")]))  # the stricter one counts
        await until(lambda: _is_refused(world), "no endpoint is allowed")
        with pytest.raises(openai.RateLimitError) as refused:
            await world.ask(words(20))
        assert refused.value.response.headers["x-llm-d-request-dropped-reason"] == "rejected-constraint"
        assert "retry-after" not in refused.value.response.headers


async def test_ome_17_service_of_the_proposal_routes_by_strategy_classes_and_capabilities(simulated, tmp_path):
    sims = await simulated(*GPUS)
    config = write(
        tmp_path,
        sims,
        f"- type: accelerator-selection-producer\n  parameters: {{paths: [{tmp_path}/objects]}}\n"
        "- type: accelerator-filter\n"
        "- type: accelerator-policy-scorer\n",
    )
    service = tmp_path / "objects" / "service.yaml"

    def select(**selector: object) -> None:
        replace(service, yaml.safe_dump(_service("9", acceleratorSelector=selector)))

    select(strategy="cost")
    async with open_world(config_file=config, sims=sims) as world:
        assert {await world.ask(words(20)) for _ in range(4)} == {"small"}
        select(strategy="cost", requiredCapabilities={"memoryGB": "40Gi"})
        await until(lambda: _asked(world, "medium"), "the T4 has too little memory")
        select(strategy="cost", preferredClasses=["nvidia-h100", "nvidia-a100"])
        await until(lambda: _asked(world, "big"), "the H100 is preferred")
        select(strategy="cost", nodeSelector={"nvidia.com/gpu.product": GPUS["medium"]})
        await until(lambda: _asked(world, "medium"), "the node has the label")
        select(strategy="performance")
        await until(lambda: _asked(world, "big"), "the H100 is the fastest")


async def test_ome_5_engine_and_decoder_of_a_service_bound_their_legs(simulated, tmp_path):
    sims = await simulated(*GPUS)
    config = write(
        tmp_path,
        sims,
        f"- type: accelerator-selection-producer\n  parameters: {{paths: [{tmp_path}/objects]}}\n"
        "- type: accelerator-filter\n"
        "- type: header-profile-handler\n"
        "schedulingProfiles:\n"
        "- {name: prefill, plugins: [{pluginRef: accelerator-filter}]}\n"
        "- {name: decode, plugins: [{pluginRef: accelerator-filter}]}\n",
    )
    spec = {
        "engine": {"acceleratorOverride": {"acceleratorClass": "nvidia-h100"}},
        "decoder": {"acceleratorOverride": {"acceleratorClass": "nvidia-t4"}},
    }
    (tmp_path / "objects" / "bounds.yaml").write_text(yaml.safe_dump(_service("9", **spec)))
    async with open_world(config_file=config, sims=sims) as world:
        for profile, expected in (("prefill", "big"), ("decode", "small")):
            asked = {"extra_headers": {"EPP-Profile": profile}}
            assert {await world.ask(words(20), **asked) for _ in range(4)} == {expected}


async def test_is_5_endpoint_that_loses_its_slice_gets_no_new_request_and_ends_what_it_has(simulated, tmp_path):
    sims = await simulated(*GPUS)
    config = write(tmp_path, sims, "- type: accelerator-availability-filter\n- type: cheapest-scorer\n")
    claims = tmp_path / "objects" / "claims.yaml"
    claims.write_text(yaml.safe_dump_all([_node_accelerator(), _claim("inUse")]))
    async with open_world(config_file=config, sims=sims) as world:
        assert await world.ask(words(20)) == "small"  # the cheapest
        begun = await world.client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": words(20)}],
            max_tokens=200,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        first = await anext(aiter(begun))
        replace(claims, yaml.safe_dump_all([_node_accelerator(), _claim("orphaned")]))
        snapshot = world.gateway.picker.store.snapshot
        await until(
            lambda: any(tag.state == "draining" for tag in snapshot().records(ACCELERATOR).values), "it is draining"
        )
        assert {await world.ask(words(20)) for _ in range(4)} == {"medium"}  # the next cheapest
        pieces = [piece async for piece in begun]
        assert first.choices
        assert len(pieces) >= 199


def _service(threshold: str, **spec: object) -> dict:
    annotations = {"ome.io/cost-threshold": threshold}
    return {
        "apiVersion": "ome.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "chat", "namespace": "default", "annotations": annotations},
        "spec": {"model": {"name": MODEL}, **spec},
    }


def _pool(threshold: str) -> dict:
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": "pool", "namespace": "default", "annotations": {"ome.io/cost-threshold": threshold}},
        "spec": {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 8000}]},
    }


async def _asked(world: World, name: str) -> bool:
    return await world.ask(words(20)) == name


async def _is_refused(world: World) -> bool:
    try:
        await world.ask(words(20))
    except openai.RateLimitError:
        return True
    return False


def _node_accelerator() -> dict:
    gpus = [{"gpuUuid": "GPU-t", "gpuName": "NVIDIA A30-24GB", "gpuMemory": "24Gi"}]
    return {
        "apiVersion": "inference.redhat.com/v1alpha1",
        "kind": "NodeAccelerator",
        "metadata": {"name": "node-small", "namespace": "das-operator"},
        "spec": {"acceleratorType": "nvidia-mig"},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "reason": "GPUsAccessible"}],
            "nodeResources": {"nodeGpus": gpus, "migPlacement": {}},
        },
    }


def _claim(state: str) -> dict:
    return {
        "apiVersion": "inference.redhat.com/v1alpha1",
        "kind": "AllocationClaim",
        "metadata": {"name": "uid-small-node-small-vllm-0", "namespace": "das-operator"},
        "spec": {
            "profile": "1g.6gb",
            "podRef": {"kind": "Pod", "namespace": "default", "name": "small", "uid": "uid-small"},
            "migPlacement": {"size": 1, "start": 0},
            "gpuUUID": "GPU-t",
            "nodename": "node-small",
        },
        "status": {"state": state},
    }


async def test_is_11_what_was_learned_of_a_pod_ends_when_the_objects_have_another_of_its_name(simulated, tmp_path):
    """The endpoint list does not name pods; the files with the cluster's objects do."""
    sims = await simulated(*GPUS)
    config = write(tmp_path, sims, "- {type: approx-prefix-cache-producer}\n- {type: prefix-cache-scorer}")
    async with open_world(config_file=config, sims=sims) as world:
        prompt = words(2000)
        first = await world.ask(prompt)
        assert [await world.ask(prompt) for _ in range(3)] == [first] * 3
        objects_file = tmp_path / "objects" / "cluster.yaml"
        replace(objects_file, objects_file.read_text().replace(f"uid-{first}", "uid-of-another"))
        await until(lambda: world.column(SERVED)[first] == 0, "the new pod is known")
        assert sum(world.column(SERVED).values()) == 0  # the other endpoints are as they were
