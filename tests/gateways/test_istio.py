# SPDX-License-Identifier: Apache-2.0
"""Behind Istio's control plane, as it configures Envoy for the example in `deploy/`: where requests go."""

import asyncio
import itertools
import json
import sys
import time

import pytest
import yaml

from perf.rig.processes import cpu_seconds
from tests.gateways import features
from tests.gateways.place import (
    CLIENTS,
    EXAMPLE,
    GATEWAY_API,
    PATIENCE_SECONDS,
    PICKER,
    Answer,
    addresses_of,
    answers_during,
    route,
    to_pool,
    update_servers,
    whole,
)
from tests.support.kube import manifests as write
from tests.support.waiting import until
from tests.support.world import MODEL

OTHER = "router.modelServers.matchLabels.app=llama"
"""Of a second release: the labels of its model servers."""

FIVE_TOKENS_A_MINUTE = {
    "apiVersion": "llm-d.ai/v1alpha1",
    "kind": "EndpointPickerConfig",
    "plugins": [
        {"type": "queue-scorer"},
        {"type": "tenant-quotas", "parameters": {"quotas": [{"tenant": "team-a", "total": {"tokensPerMinute": 5}}]}},
    ],
}


async def test_example_as_shipped_is_accepted(example):
    for kind, api_version in (("InferencePool", write.POOLS), ("HTTPRoute", GATEWAY_API)):
        assert await example.conditions(kind, "vllm", api_version) == {
            "Accepted": ("True", "Accepted"),
            "ResolvedRefs": ("True", "ResolvedRefs"),
        }
    pool = await example.space.admin.get(write.manifest(write.POOLS, "InferencePool", "vllm", example.space.namespace))
    (parent,) = pool["status"]["parents"]
    assert parent["parentRef"]["name"] == "inference-gateway"

    async def programmed() -> bool:
        return (await example.conditions("Gateway", "inference-gateway"))["Programmed"] == ("True", "Programmed")

    await until(programmed, "the gateway has an address")


class TestBasics(features.Basics):
    """See `features`."""


async def test_access_log_shows_the_endpoint(example):
    answer = await example.ask()
    line = (await example.access_log())[-1]
    assert f'"{answer.picked}" outbound|54321||vllm-ip-' in line


async def test_pool_that_fails_open_is_served_without_a_picker(place):
    servers = await place.open_example()
    await place.scale("vllm-epp", 0, **PICKER)
    answers = [await place.ask() for _ in range(20)]
    assert {(answer.status, answer.picked) for answer in answers} == {(200, None)}
    assert {answer.server for answer in answers} == set(addresses_of(servers))
    await place.scale("vllm-epp", 1, **PICKER)
    await place.picks()


async def test_pool_that_fails_closed_is_not_served_without_a_picker(place):
    await place.open_example("router.inferencePool.failureMode=FailClose")
    await place.scale("vllm-epp", 0, **PICKER)
    assert {(await place.ask()).status for _ in range(20)} == {500}
    await place.scale("vllm-epp", 1, **PICKER)
    await place.picks()


async def test_each_rule_of_a_route_has_the_picker_of_its_pool(place):
    one, other = await place.serve(2), await place.serve(2, name="llama")
    await place.install()
    await place.install(OTHER, release="llama")
    both = route("both", to_pool("llama"), path="/llama")
    both["spec"]["rules"] += route("both", to_pool("vllm"))["spec"]["rules"]
    await place.open_gateway(both)
    await place.answers()
    for path, pods in (("/v1/completions", one), ("/llama/v1/completions", other)):
        answers = [await place.ask(path=path) for _ in range(10)]
        assert {answer.picked for answer in answers} <= set(addresses_of(pods).values())


@pytest.mark.parametrize("port", [8000, 9999])
async def test_port_of_a_route_to_a_pool_has_no_effect(place, port):
    addresses = addresses_of(await place.serve(1))
    await place.install()
    await place.open_gateway(route("vllm", to_pool("vllm", port=port)))
    await place.answers()
    assert (await place.ask()).picked in addresses.values()


async def test_route_to_a_pool_that_does_not_exist_says_so(place):
    await place.open_gateway(route("nobody", to_pool("nobody")))
    await place.answers(500)
    assert (await place.conditions("HTTPRoute", "nobody"))["ResolvedRefs"] == ("False", "BackendNotFound")


async def test_rule_with_two_pools_asks_one_picker_for_both(place):
    one, other = await place.serve(2), await place.serve(2, name="llama")
    await place.install()
    await place.install(OTHER, release="llama")
    await place.open_gateway(route("both", to_pool("vllm", weight=70), to_pool("llama", weight=30)))
    await place.answers()
    answers = [await place.ask() for _ in range(200)]
    assert {answer.status for answer in answers} == {200}
    addresses = [addresses_of(pods) for pods in (one, other)]
    # 140 of 200 are expected, with a standard deviation of 6.5.
    assert 108 < sum(answer.server in addresses[0] for answer in answers) < 172
    as_picked = [
        {answer.picked == known[answer.server] for answer in answers if answer.server in known} for known in addresses
    ]
    assert as_picked in ([{True}, {False}], [{False}, {True}])


async def test_pool_whose_picker_is_missing_says_so(place):
    await place.open_example(count=1)
    await place.change_pool(endpointPickerRef={"name": "nobody"})

    async def said() -> bool:
        return (await place.conditions("InferencePool", "vllm", write.POOLS))["ResolvedRefs"][0] == "False"

    await until(said, "the missing picker is in the status of the pool", seconds=PATIENCE_SECONDS)


async def test_refusals_of_the_picker_reach_the_client_whole(place, tmp_path):
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"router": {"epp": {"pluginsConfig": FIVE_TOKENS_A_MINUTE}}}))
    await place.serve(1)
    await place.install(files=(EXAMPLE / "values.yaml", values))
    await place.open_gateway()
    await place.answers()
    tenant = {"x-llm-d-inference-fairness-id": "team-a"}
    assert (await place.ask(headers=tenant)).status == 200
    refusal = await place.ask(headers=tenant)
    assert (refusal.status, "error" in json.loads(refusal.body)) == (429, True)
    assert "retry-after" in refusal.headers
    await place.scale("vllm", 0, app="vllm")
    refusal = await place.ask()
    assert (refusal.status, "error" in json.loads(refusal.body)) == (503, True)
    assert refusal.headers["x-llm-d-request-dropped-reason"]


async def test_rewritten_model_is_what_the_server_gets_and_not_what_the_client_sees(place):
    (server,) = await place.serve(1)
    await place.install()
    rules = [write.rule("chat", **{MODEL: None})]
    await place.space.apply(write.rewrite("chat", pool="vllm", rules=rules, api=write.LEGACY_POLICIES))
    await place.open_gateway()
    await place.answers()
    answer = await place.ask(model="chat", stream=True)
    assert answer.status == 200
    assert b'"model":"chat"' in answer.body
    assert MODEL.encode() not in answer.body
    assert (await place.records(server))[-1]["model"] == MODEL


async def test_each_port_of_a_pod_is_an_endpoint(place):
    pods = await place.serve(2, ports=(8000, 8001))
    await place.install()
    await place.change_pool(targetPorts=[{"number": 8000}, {"number": 8001}])
    await place.open_gateway()
    await place.answers()
    answers = [await place.ask(f"prompt {number}") for number in range(40)]
    assert {answer.status for answer in answers} == {200}
    assert {answer.picked for answer in answers} == {
        f"{pod['status']['podIP']}:{port}" for pod in pods for port in (8000, 8001)
    }


async def test_new_selector_of_a_pool_loses_no_request(place):
    old, new = addresses_of(await place.serve(2)), addresses_of(await place.serve(2, name="llama"))
    await place.install()
    await place.open_gateway()
    await place.answers()
    answers = await answers_during(
        place,
        lambda: place.change_pool(selector={"matchLabels": {"app": "llama"}}),
        lambda answer: answer.server in new,
    )
    assert whole(answers)
    assert {answer.server for answer in answers} == {*old, *new}
    assert {answer.server for answer in answers[-200:]} == set(new)


async def test_new_port_of_a_pool_loses_no_request(place):
    await place.open_example(ports=(8000, 8001))
    answers = await answers_during(
        place,
        lambda: place.change_pool(targetPorts=[{"number": 8001}]),
        lambda answer: str(answer.picked).endswith(":8001"),
    )
    assert whole(answers)


async def test_rolling_update_of_model_servers_loses_no_request(place):
    old = addresses_of(await place.open_example())
    assert whole(
        await answers_during(place, lambda: update_servers(place, old), lambda answer: answer.server not in old)
    )


async def test_killed_picker_loses_the_requests_that_were_there(place):
    await place.open_example()
    (pod,) = await place.kubelet.pods(**PICKER)

    async def kill() -> None:
        place.kubelet.process(pod).kill()
        await place.picks()

    answers = await answers_during(place, kill, lambda answer: answer.picked is not None)
    lost = [answer for answer in answers if not whole([answer])]
    # Envoy has passed on the bodies of those that were at the picker, and cannot go on without it.
    assert {answer.status for answer in lost} <= {200, 500}
    assert len(lost) <= 5 * CLIENTS
    assert any(answer.status == 200 and answer.picked is None for answer in answers)


REQUESTS = 50_000
MANY_CLIENTS = 32
BETWEEN_CHANGES, SETTLING = 15.0, 5.0
"""Seconds; the picker knows a new endpoint before Envoy does, which sends requests for it elsewhere until then."""


@pytest.mark.timeout(1800)
async def test_fifty_thousand_requests_are_answered_while_the_pool_changes(place, capsys):
    one, other = await place.serve(2, ports=(8000, 8001)), await place.serve(2, name="llama", ports=(8000, 8001))
    began = time.perf_counter()
    await place.install()
    await place.open_gateway()
    await place.answers()
    first_answer = time.perf_counter() - began
    addresses = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in (*one, *other)}
    numbers = iter(range(REQUESTS))
    lost: list[Answer] = []
    elsewhere: list[float] = []
    """Seconds from the last change to requests that another server answered than the one that was picked."""
    picked: set[str] = set()
    changed_at = time.perf_counter()

    async def client() -> None:
        for number in numbers:
            answer = await place.ask(f"prompt {number}")
            if answer.status != 200 or b'"usage"' not in answer.body:
                lost.append(answer)
                continue
            picked.add(str(answer.picked))
            if str(answer.picked).rpartition(":")[0] != addresses[str(answer.server)]:
                elsewhere.append(time.perf_counter() - changed_at)

    async def change() -> None:
        nonlocal changed_at
        for app, port in itertools.cycle(itertools.product(("llama", "vllm"), (8001, 8000))):
            await asyncio.sleep(BETWEEN_CHANGES)
            await place.change_pool(selector={"matchLabels": {"app": app}}, targetPorts=[{"number": port}])
            changed_at = time.perf_counter()

    (pod,) = await place.kubelet.pods(**PICKER)
    before = cpu_seconds(place.kubelet.process(pod).pid)
    changing = asyncio.create_task(change())
    await asyncio.gather(*(client() for _ in range(MANY_CLIENTS)))
    changing.cancel()
    cpu = cpu_seconds(place.kubelet.process(pod).pid) - before
    with capsys.disabled():
        sys.stdout.write(
            f"\nfirst answer after {first_answer:.1f} s; CPU of a request {cpu / REQUESTS * 1e6:.0f} us; answered by "
            f"another server than picked: {len(elsewhere)} of {REQUESTS}, {max(elsewhere, default=0):.1f} s after a "
            "change at the latest\n"
        )
    assert not lost, f"{len(lost)} of {REQUESTS}: {lost[:3]}"
    assert max(elsewhere, default=0) < SETTLING
    assert picked == {f"{address}:{port}" for address in addresses.values() for port in (8000, 8001)}
