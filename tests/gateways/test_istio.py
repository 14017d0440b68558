# SPDX-License-Identifier: Apache-2.0
"""Behind Istio's control plane, as it configures Envoy for the example in `deploy/`: where requests go."""

import asyncio
import hashlib
import json

import pytest

from tests.gateways.place import PATIENCE_SECONDS, Answer, Place, route, to_pool
from tests.support.kube import manifests as write
from tests.support.kube.client import Manifest
from tests.support.waiting import until
from tests.support.world import MODEL

OTHER = "router.modelServers.matchLabels.app=llama"
"""Of a second release: the labels of its model servers."""


def addresses_of(pods: list[Manifest]) -> dict[str, str]:
    return {pod["metadata"]["name"]: f"{pod['status']['podIP']}:8000" for pod in pods}


async def test_example_as_shipped_is_accepted(example):
    assert await example.conditions("InferencePool", "vllm", write.POOLS) == {
        "Accepted": ("True", "Accepted"),
        "ResolvedRefs": ("True", "ResolvedRefs"),
    }
    assert await example.conditions("HTTPRoute", "vllm") == {
        "Accepted": ("True", "Accepted"),
        "ResolvedRefs": ("True", "ResolvedRefs"),
    }

    async def programmed() -> bool:
        return (await example.conditions("Gateway", "inference-gateway"))["Programmed"] == ("True", "Programmed")

    await until(programmed, "the gateway has an address")


@pytest.mark.parametrize("stream", [False, True])
async def test_endpoint_that_the_picker_chose_answers(example, stream):
    addresses = addresses_of(await example.kubelet.pods(app="vllm"))
    answers = [await example.ask(f"prompt {number}", stream=stream) for number in range(30)]
    assert [answer.status for answer in answers] == [200] * 30
    assert [answer.picked for answer in answers] == [addresses[answer.server] for answer in answers]
    assert {answer.server for answer in answers} == set(addresses)
    assert all(answer.body.endswith(b"data: [DONE]\n\n") == stream for answer in answers)


async def test_access_log_shows_the_endpoint(example):
    answer = await example.ask()
    line = (await example.access_log())[-1]
    assert f'"{answer.picked}" outbound|54321||vllm-ip-' in line


async def test_model_server_gets_the_header_of_the_picker(example):
    answer = await example.ask()
    (pod,) = [pod for pod in await example.kubelet.pods(app="vllm") if pod["metadata"]["name"] == answer.server]
    headers = (await example.records(pod))[-1]["headers"]
    assert ["x-gateway-destination-endpoint", answer.picked] in headers


async def test_body_of_a_megabyte_arrives_whole(example):
    body = json.dumps({"model": MODEL, "prompt": "hello", "max_tokens": 2, "user": "x" * 1_000_000}).encode()
    answer = await example.ask(body=body)
    assert answer.status == 200
    (pod,) = [pod for pod in await example.kubelet.pods(app="vllm") if pod["metadata"]["name"] == answer.server]
    assert (await example.records(pod))[-1]["body_sha256"] == hashlib.sha256(body).hexdigest()


async def test_refusal_of_the_picker_reaches_the_client(example):
    answer = await example.ask(body=b"no JSON")
    assert answer.status == 400
    assert "error" in json.loads(answer.body)


async def test_pool_that_fails_open_is_served_without_a_picker(place):
    servers = await place.serve(2)
    await place.install()
    await place.open_gateway()
    await place.answers()
    await picker_ends(place)
    answers = [await place.ask() for _ in range(20)]
    assert {(answer.status, answer.picked) for answer in answers} == {(200, None)}
    assert {answer.server for answer in answers} == set(addresses_of(servers))
    await place.scale("vllm-epp", 1, **{"app.kubernetes.io/instance": "vllm"})
    await picked(place)


async def test_pool_that_fails_closed_is_not_served_without_a_picker(place):
    await place.serve(2)
    await place.install("router.inferencePool.failureMode=FailClose")
    await place.open_gateway()
    await place.answers()
    await picker_ends(place)
    assert {(await place.ask()).status for _ in range(20)} == {500}
    await place.scale("vllm-epp", 1, **{"app.kubernetes.io/instance": "vllm"})
    await picked(place)


async def picker_ends(place: Place) -> None:
    await place.scale("vllm-epp", 0, **{"app.kubernetes.io/instance": "vllm"})


async def picked(place: Place) -> None:
    """Wait until a picker chooses again."""

    async def chosen() -> bool:
        return (await place.ask()).picked is not None

    await until(chosen, "a picker chooses", seconds=PATIENCE_SECONDS)


async def test_each_route_has_the_picker_of_its_pool(place):
    one, other = await place.serve(2), await place.serve(2, name="llama")
    await place.install()
    await place.install(OTHER, release="llama")
    await place.open_gateway(route("vllm", to_pool("vllm")), route("llama", to_pool("llama"), path="/llama"))
    await place.answers()
    for path, pods in (("/v1/completions", one), ("/llama/v1/completions", other)):
        answers = [await place.ask(path=path) for _ in range(10)]
        assert {answer.picked for answer in answers} <= set(addresses_of(pods).values())


async def test_new_selector_of_a_pool_loses_no_request(place):
    old, new = await place.serve(2), await place.serve(2, name="llama")
    await place.install()
    await place.open_gateway()
    await place.answers()
    pool = write.manifest(write.POOLS, "InferencePool", "vllm", place.space.namespace)
    answers: list[Answer] = []

    async def client() -> None:
        while not answers or answers[-1].server not in addresses_of(new) or len(answers) < 400:
            answers.append(await place.ask(max_tokens=20, stream=True))

    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(client())
        await asyncio.sleep(0.5)
        await place.space.admin.patch(pool, {"spec": {"selector": {"matchLabels": {"app": "llama"}}}})
    assert {answer.status for answer in answers} == {200}
    assert all(answer.body.endswith(b"data: [DONE]\n\n") for answer in answers)
    assert {answer.server for answer in answers} == set(addresses_of(old)) | set(addresses_of(new))
