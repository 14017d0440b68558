# SPDX-License-Identifier: Apache-2.0
"""Operators who look at a pool see what is wrong with it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.config_files import replace
from tests.support.kube import manifests as write
from tests.support.kube.client import Manifest
from tests.support.kube.fleet import fleet_in
from tests.support.kube.replicas import ELECTION, EVENTS, LEASES, PATIENCE_SECONDS, Replica, leader_of, replica, role
from tests.support.kube.space import Space, space_in
from tests.support.waiting import until

GOOD = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}]
"""
BAD = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}, {type: no-such-scorer}]
"""
OBSERVED_SECONDS = 5
"""Several times as long as a picker takes to look at what is wrong."""


@pytest.fixture
async def fleet(space):
    async with fleet_in(space) as fleet:
        yield fleet


@pytest.fixture
async def pool(fleet, space) -> Manifest:
    """A pool with a pod."""
    await fleet.start("a")
    return await space.pool(ports=fleet.ports)


@pytest.fixture
async def config(tmp_path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
async def start(pool, space, tmp_path) -> AsyncIterator[Callable[..., object]]:
    """Start a replica: `await start("--config-file=...")`."""
    user = await space.user("picker", role(LEASES, EVENTS))
    kubeconfig = user.kubeconfig(tmp_path / "kubeconfig")
    async with AsyncExitStack() as stack:

        async def begin(*flags: str, pod: str = "epp-1") -> Replica:
            return await stack.enter_async_context(replica(kubeconfig, space.namespace, *flags, POD_NAME=pod))

        yield begin


async def events(space: Space) -> dict[str, Manifest]:
    """Return the events on the pool by reason, as `kubectl get events` does."""
    selector = "involvedObject.kind=InferencePool,involvedObject.name=pool"
    listed = await space.admin.list("v1", "Event", space.namespace, fieldSelector=selector)
    found = {item["reason"]: item for item in listed["items"]}
    assert len(found) == len(listed["items"]), "two events of one reason"
    return found


async def told(space: Space, reason: str, *, text: str = "") -> Manifest:
    """Wait for an event whose message has the text, and return it."""
    found: list[Manifest] = []

    async def there() -> bool:
        event = (await events(space)).get(reason)
        found[:] = [event] if event is not None and text in event["message"] else []
        return bool(found)

    await until(there, f"the event {reason} says {text!r}", seconds=PATIENCE_SECONDS)
    return found[0]


async def test_configuration_that_is_refused_is_an_event_on_the_pool_and_so_is_its_correction(
    start, space, pool, config
):
    picker = await start(f"--config-file={config}")
    replace(config, BAD)
    event = await told(space, "ConfigurationRefused")
    assert event["type"] == "Warning"
    assert "plugins[1].type" in event["message"]
    assert "no-such-scorer" in event["message"]
    about = event["involvedObject"]
    assert (about["apiVersion"], about["kind"]) == ("inference.networking.k8s.io/v1", "InferencePool")
    assert (about["name"], about["namespace"]) == ("pool", space.namespace)
    assert about["uid"] == pool["metadata"]["uid"]
    assert event["source"]["component"] == "inference-epp"
    assert event["reportingInstance"].startswith("epp-1_")
    assert (event["count"], event["firstTimestamp"]) == (1, event["lastTimestamp"])
    replace(config, BAD.replace("no-such", "not-even-such"))
    again = await told(space, "ConfigurationRefused", text="not-even-such")
    assert (again["count"], again["firstTimestamp"]) == (2, event["firstTimestamp"])
    assert again["metadata"]["name"] == event["metadata"]["name"]
    replace(config, GOOD)
    assert (await told(space, "ConfigurationAccepted"))["type"] == "Normal"
    assert await picker.ready()


async def test_pool_without_endpoints_is_an_event_that_says_why(start, space, fleet):
    await start()
    await fleet.unready("a")
    event = await told(space, "NoEndpoints")
    assert event["type"] == "Warning"
    assert event["message"] == f"no pod in {space.namespace} with the labels app=vllm is ready on a port of the pool"
    await fleet.ready("a")
    assert (await told(space, "EndpointsFound"))["type"] == "Normal"
    await fleet.delete("a")
    await told(space, "NoEndpoints", text=f"no pod in {space.namespace} has the labels app=vllm")


async def test_pool_that_is_gone_and_back_is_two_events(start, space, pool, fleet):
    await start()
    await space.delete(pool)
    event = await told(space, "PoolNotFound")
    assert "uid" not in event["involvedObject"]
    back = await space.pool(ports=fleet.ports)
    event = await told(space, "PoolFound")
    assert event["involvedObject"]["uid"] == back["metadata"]["uid"]
    assert "NoEndpoints" not in await events(space)  # one cause, one event


async def test_objects_that_are_not_in_effect_are_an_event(start, space):
    await start()
    broken = write.rewrite("chat", pool="pool", rules=[write.rule("chat", **{"": 1})])
    await space.apply(broken)
    event = await told(space, "ObjectsRefused")
    assert event["type"] == "Warning"
    assert event["message"].startswith(
        f"InferenceModelRewrite {space.namespace}/chat: spec.rules[0].targets[0].modelRewrite is empty"
    )
    await space.apply(write.rewrite("chat", pool="pool", rules=[write.rule("chat", **{"chat-v1": 1})]))
    assert (await told(space, "ObjectsAccepted"))["type"] == "Normal"


async def test_no_event_is_written_while_all_is_well(start, space):
    await start()
    await asyncio.sleep(OBSERVED_SECONDS)
    assert await events(space) == {}


async def test_replicas_without_a_leader_write_one_event_together(start, space, config):
    for pod in ("epp-1", "epp-2"):
        await start(f"--config-file={config}", pod=pod)
    replace(config, BAD)
    await told(space, "ConfigurationRefused")
    await asyncio.sleep(OBSERVED_SECONDS)
    assert list(await events(space)) == ["ConfigurationRefused"]  # which `events` has counted


async def test_only_the_leader_writes_events_and_its_heir_tells_what_lasts(start, space, config, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text(GOOD)
    first = await start(ELECTION, f"--config-file={config}")
    await leader_of(first)
    second = await start(ELECTION, f"--config-file={other}", pod="epp-2")
    replace(other, BAD)
    await second.command.says('"msg":"configuration rejected')
    await asyncio.sleep(OBSERVED_SECONDS)
    assert await events(space) == {}
    first.command.terminate()
    assert await leader_of(second) is second
    event = await told(space, "ConfigurationRefused")
    assert event["reportingInstance"] == (await second.election())["identity"]


async def test_events_that_are_forbidden_are_said_once_and_change_nothing(pool, space, tmp_path, config):
    kubeconfig = (await space.user("picker", role())).kubeconfig(tmp_path / "kubeconfig")
    async with replica(kubeconfig, space.namespace, f"--config-file={config}") as picker:
        replace(config, BAD)
        said = await picker.command.says('"msg":"events cannot be written"')
        assert '"level":"info"' in said
        assert f"allow create and patch of events in {space.namespace}, or ignore this" in said
        replace(config, GOOD)
        await picker.command.says('"msg":"configuration file is back to the version in effect"')
        replace(config, BAD)
        await asyncio.sleep(OBSERVED_SECONDS)
        assert picker.events("events cannot be written") == 1
        _, page = await picker.page()
        assert page["kubernetes"]["failing_tasks"] == {}
        assert await picker.ready()


async def test_events_wait_while_the_api_server_is_away(own_cluster, tmp_path, config):
    cluster = await own_cluster(crds=("inferencepools", "inferenceobjectives", "inferencemodelrewrites"))
    async with space_in(cluster) as space, fleet_in(space) as fleet:
        await fleet.start("a")
        await space.pool(ports=fleet.ports)
        kubeconfig = (await space.user("picker", role(EVENTS))).kubeconfig(tmp_path / "kubeconfig")
        async with replica(kubeconfig, space.namespace, f"--config-file={config}") as picker:
            cluster.server.kill()
            replace(config, BAD)
            await picker.command.says('"msg":"configuration rejected')
            await asyncio.sleep(OBSERVED_SECONDS)
            assert await picker.ready()
            await cluster.server.start()
            await told(space, "ConfigurationRefused")
