# SPDX-License-Identifier: Apache-2.0
"""Objectives and model rewrites from files, before requests through a real Envoy."""

import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import yaml

from epp.lab.gateway.settings import GatewaySettings, body_modes
from epp.lab.sim.server import RunningSim
from tests.support.config_files import ConfigMap, replace
from tests.support.gateways import Gateway, gateway_of
from tests.support.kube import manifests
from tests.support.waiting import read_until
from tests.support.world import World, open_world, pool_of, question

OBJECTIVE = "x-llm-d-inference-objective"
DROPPED = "x-llm-d-request-dropped-reason"


def objective(name: str, priority: int) -> dict:
    return manifests.objective(name, pool="any", priority=priority)


def rewrite(name: str, *rules: tuple[str, Mapping[str, int | None]]) -> dict:
    """A rewrite with rules: a model, empty for any, and weights of the models to ask for."""
    written = [manifests.rule(model or None, **targets) for model, targets in rules]
    return manifests.rewrite(name, pool="any", rules=written)


def written(path: Path, *documents: dict) -> Path:
    replace(path, yaml.safe_dump_all(documents))
    return path


@pytest.fixture
def with_objects(simulated: Callable, tmp_path: Path) -> Callable:
    """Open a world of one server with the adapters `blue` and `green`, under these objects."""

    async def start(*documents: dict) -> tuple[dict[str, RunningSim], Path]:
        sims = await simulated("a", lora_adapters=("blue", "green"), max_lora=2)
        return sims, written(tmp_path / "objects.yaml", *documents)

    return start


async def answers(world: World, count: int, body: dict) -> list[dict]:
    found = []
    for _ in range(count):
        async with world.http.post(f"{world.url}/v1/chat/completions", json=body) as response:
            assert response.status == 200, await response.text()
            found.append(await response.json())
    return found


async def asked_for(world: World) -> Counter[str]:
    return Counter(record["model"] for record in await world.requests_at("a"))


async def test_requests_are_shared_out_by_weight_and_answers_have_the_name_that_was_asked_for(with_objects):
    sims, objects = await with_objects(
        rewrite("half", ("canary", {"blue": 50, "green": 50})), rewrite("all", ("stable", {"blue": None, "green": 100}))
    )
    async with open_world(endpoints=pool_of(sims), sims=sims, objects=objects) as world:
        assert {answer["model"] for answer in await answers(world, 60, question(model="canary"))} == {"canary"}
        models = await asked_for(world)
        assert set(models) == {"blue", "green"}
        assert 10 <= models["blue"] <= 50  # 30 expected, with a standard deviation of 3.9
        assert {answer["model"] for answer in await answers(world, 20, question(model="stable"))} == {"stable"}
        assert (await asked_for(world))["green"] == models["green"] + 20
        sample = world.gateway.picker.metrics.registry.get_sample_value
        of_rule = {"model_rewrite_name": "half", "model_name": "canary"}
        for model, count in models.items():
            assert sample("llm_d_epp_model_rewrite_decisions_total", {**of_rule, "target_model": model}) == count


async def test_exact_rule_counts_before_a_generic_one_which_takes_requests_without_a_model_too(with_objects):
    sims, objects = await with_objects(rewrite("any", ("", {"blue": None}), ("canary", {"green": None})))
    async with open_world(endpoints=pool_of(sims), sims=sims, objects=objects) as world:
        for model in ("canary", "made up", None):
            await answers(world, 1, question(model=model))
        assert [record["model"] for record in await world.requests_at("a")] == ["green", "blue", "blue"]


@pytest.mark.parametrize(
    ("request_mode", "response_mode"),
    [
        ("BUFFERED", "STREAMED"),
        ("BUFFERED_PARTIAL", "BUFFERED"),
        ("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"),
    ],
)
async def test_rule_holds_in_every_body_mode(with_objects, request_mode, response_mode):
    sims, objects = await with_objects(rewrite("r", ("canary", {"green": None})))
    gateway = GatewaySettings(listen_port=0, modes=body_modes(request_mode, response_mode))
    async with open_world(endpoints=pool_of(sims), sims=sims, objects=objects, gateway=gateway) as world:
        (answer,) = await answers(world, 1, question(model="canary"))
        async with world.http.post(
            f"{world.url}/v1/chat/completions", json=question(model="canary", stream=True)
        ) as response:
            lines = (await response.text()).splitlines()
        events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        assert {each["model"] for each in (answer, *events)} == {"canary"}
        assert len(events) > 1
        assert await asked_for(world) == {"green": 2}


async def test_sheddable_request_is_refused_while_the_servers_are_busy_and_others_are_not(with_objects):
    sims, objects = await with_objects(objective("batch", -1), objective("chat", 5))
    async with open_world(endpoints=pool_of(sims), sims=sims, objects=objects) as world:

        async def status(headers: Mapping[str, str]) -> int:
            url = f"{world.url}/v1/chat/completions"
            async with world.http.post(url, json=question(model="blue"), headers=headers) as response:
                if response.status == 429:
                    assert response.headers[DROPPED] == "rejected-saturated"
                    assert (await response.json())["error"]["code"] == "rate_limit_exceeded"
                return response.status

        requests = [{OBJECTIVE: "batch"}, {"x-gateway-inference-objective": "batch"}, {OBJECTIVE: "chat"}, {}]
        requests.append({OBJECTIVE: "unheard-of"})
        await world.scraped()
        assert [await status(headers) for headers in requests] == [200] * 5
        await world.occupy("a", waiting=5)
        assert [await status(headers) for headers in requests] == [429, 429, 200, 200, 200]
        await world.occupy("a", waiting=4)
        assert await status({OBJECTIVE: "batch"}) == 200
        sample = world.gateway.picker.metrics.registry.get_sample_value
        labels = {"model_name": "blue", "target_model_name": "blue", "fairness_id": "default-flow"}
        assert sample("llm_d_epp_request_total", {**labels, "priority": "-1"}) == 3
        assert sample("llm_d_epp_request_total", {**labels, "priority": "5"}) == 2


async def target(gateway: Gateway) -> str:
    """Send one request; return the model that the server was asked for, the rewrite and the priority, by the log."""
    name = f"r{time.monotonic_ns()}"
    await gateway.post("/v1/chat/completions", question(model="canary"), **{"x-request-id": name, OBJECTIVE: "batch"})
    line = json.loads(await gateway.process.says(f'"x-request-id":"{name}"'))
    return f"{line['targetModelName']} {line['rewrite']} {line['priority']}"


async def until_target(gateway: Gateway, wanted: str) -> None:
    await read_until(lambda: target(gateway), lambda found: found == wanted, f"the target is {wanted}")


@pytest.fixture
async def gateway(simulated: Callable, objects: ConfigMap, tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway that follows `tmp_path / "objects"`, mounted as a ConfigMap is."""
    (sim,) = (await simulated("a", lora_adapters=("blue", "green"), max_lora=2)).values()
    async with gateway_of(f"--endpoints=a={sim.address}", f"--objects={tmp_path / 'objects'}") as gateway:
        yield gateway


@pytest.fixture
def objects(tmp_path: Path) -> ConfigMap:
    (tmp_path / "objects").mkdir()
    first = yaml.safe_dump_all([objective("batch", 1), rewrite("r", ("canary", {"blue": None}))])
    return ConfigMap(tmp_path / "objects", policies=first, other="kind: Deployment\napiVersion: apps/v1\n")


async def test_files_are_applied_without_a_restart_and_a_broken_version_leaves_the_one_before(
    gateway: Gateway, objects: ConfigMap, tmp_path: Path
):
    file = str(tmp_path / "objects" / "policies.yaml")
    labels = frozenset({"plugin_name=--objects", f"file={file}"})
    assert await target(gateway) == "blue r 1"

    objects.update(policies=yaml.safe_dump_all([objective("batch", 2), rewrite("r", ("canary", {"green": None}))]))
    await until_target(gateway, "green r 2")
    assert await gateway.not_in_effect(0) == []

    objects.update(policies="{{ not yaml")
    (broken,) = await gateway.not_in_effect(1)
    assert (broken["plugin"], broken["file"], broken["kept"]) == ("--objects", file, 2)
    assert broken["reason"].startswith("line 1: neither YAML nor JSON: ")
    assert await target(gateway) == "green r 2"
    assert (await gateway.metrics())["llm_d_epp_input_problems"][labels] == 1

    objects.update(policies=yaml.safe_dump_all([objective("batch", 3), rewrite("r", ("canary", {"blue": 0}))]))
    await gateway.process.says("InferenceModelRewrite r stays as it was: spec.rules[0].targets[0].weight is 0")
    await until_target(gateway, "green r 3")
    (broken,) = await gateway.not_in_effect(1)
    assert (broken["object"], broken["kept"]) == ("InferenceModelRewrite r", 1)

    objects.update(policies=yaml.safe_dump(objective("batch", 4)))
    await until_target(gateway, "None None 4")
    assert await gateway.not_in_effect(0) == []
