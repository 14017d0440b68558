# SPDX-License-Identifier: Apache-2.0
"""Plugins are told of the objects that they read, in few calls, whatever happens between them."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epp.framework import SystemClock
from epp.framework.cluster_objects import ObjectKind, ObjectReader, ObjectsOfKind, Reading
from epp.framework.datalayer import AffectedEndpoints, every_endpoint
from epp.kube import readers
from epp.kube.cluster import Cluster
from epp.kube.collection import Delta
from epp.kube.readers import ClusterReaders, ReadingTask, SharedObjects
from epp.kube.resources import PODS
from epp.runtime.supervisor import Supervisor
from tests.support.kube.fake_api import FakeApi
from tests.support.waiting import until

NODE, CLASS, POD = ObjectKind("", "Node"), ObjectKind("ome.io", "AcceleratorClass"), ObjectKind("", "Pod")
CLAIM = ObjectKind("inference.redhat.com", "AllocationClaim")
NODES = "/api/v1/nodes"
CLASSES = "/apis/ome.io/v1beta1/acceleratorclasses"


def decode(document: Mapping[str, object]) -> object:
    if document.get("bad"):
        raise ValueError("spec is bad: write a good one")
    return document.get("data", "")


class Recorder(ObjectReader):
    """Keeps what it is told."""

    plugin_type = "recorder"
    decode = staticmethod(decode)

    def setup(self) -> None:
        self.calls: list[dict[ObjectKind, ObjectsOfKind]] = []
        self.taken: list[ObjectsOfKind] = []
        """What it was told in calls that did not fail."""
        self.failures = 0
        self.answers: AffectedEndpoints = every_endpoint
        self.gate = asyncio.Event()
        self.gate.set()

    async def objects_changed(self, kinds: Sequence[ObjectsOfKind]) -> AffectedEndpoints:
        self.calls.append({each.kind: each for each in kinds})
        await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise LookupError("not this time")
        self.taken += kinds
        return self.answers

    @property
    def known(self) -> dict[ObjectKind, dict[str, object]]:
        """All objects, as of the last time it was told of their kind."""
        return {kind: dict(each.objects) for call in self.calls for kind, each in call.items()}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(readers, "_GATHERING_SECONDS", 0.01)


class World:
    def __init__(self, *shared: SharedObjects) -> None:
        self.api = FakeApi()
        self.supervisor = Supervisor()
        self.cluster = Cluster(self.api, clock=SystemClock(), supervisor=self.supervisor)
        self.readers = ClusterReaders(self.cluster, "llm", supervisor=self.supervisor, shared=shared)
        self.retagged: list[tuple[ObjectReader, AffectedEndpoints]] = []

    async def connect(self, *readings: Reading) -> None:
        await self.readers.connect(readings, lambda *each: self.retagged.append(each))

    @property
    def titles(self) -> list[str]:
        return sorted(watch.collection.title for watch in self.cluster.watches)


@pytest.fixture
async def world():
    world = World()
    world.api.put(NODES, "n1", data="one")
    world.api.put(CLASSES, "gold", data="4")
    yield world
    await world.cluster.close()
    await world.supervisor.stop()


async def test_kind_that_is_not_answered_in_time_is_done_without_until_it_is(world, monkeypatch):
    monkeypatch.setattr(readers, "SETTLING_SECONDS", 0.05)
    world.api.is_away = True
    plugin = Recorder()
    await world.connect(Reading(plugin, (NODE,)))
    assert plugin.known == {NODE: {}}
    world.api.is_away = False
    await until(lambda: plugin.known == {NODE: {"n1": "one"}}, "nodes are read")


async def test_changes_of_all_kinds_during_a_call_are_one_call(world):
    plugin = Recorder()
    await world.connect(Reading(plugin, (NODE, CLASS)))
    await until(lambda: world.api.watches(NODES) and world.api.watches(CLASSES), "both are watched")
    plugin.gate.clear()
    world.api.put(NODES, "n1", data="two")
    await until(lambda: len(plugin.calls) == 2, "the plugin is told")
    world.api.put(NODES, "n2", data="new")
    world.api.delete(NODES, "n1")
    world.api.put(CLASSES, "gold", data="5")
    watches = {watch.collection.title: watch for watch in world.cluster.watches}
    await until(lambda: list(watches["nodes"].objects) == ["n2"], "the changes arrived")
    await until(lambda: watches["acceleratorclasses.ome.io"].objects["gold"] == "5", "that of the class too")
    plugin.gate.set()
    await until(lambda: len(plugin.calls) == 3, "the plugin is told of all of them")
    last = plugin.calls[-1]
    assert (dict(last[NODE].objects), last[NODE].changed) == ({"n2": "new"}, {"n1", "n2"})
    assert (dict(last[CLASS].objects), last[CLASS].changed) == ({"gold": "5"}, {"gold"})
    assert dict(plugin.calls[1][NODE].objects) == {"n1": "two"}  # it keeps what it was given


async def test_call_that_raises_is_repeated_with_all_that_changed(world):
    plugin = Recorder()
    plugin.failures = 1
    await world.connect(Reading(plugin, (NODE,)))
    first, second = plugin.calls
    assert first == second
    await until(lambda: world.api.watches(NODES), "nodes are watched")
    plugin.failures = 1
    world.api.delete(NODES, "n1")
    await until(lambda: len(plugin.calls) == 4, "the plugin is told twice")
    assert plugin.calls[2] == plugin.calls[3]
    assert plugin.calls[3][NODE].changed == {"n1"}


async def test_invalid_version_is_told_with_the_reason_until_there_is_a_valid_one(world):
    plugin = Recorder()
    await world.connect(Reading(plugin, (CLASS,)))
    await until(lambda: world.api.watches(CLASSES), "classes are watched")
    world.api.put(CLASSES, "gold", bad=True)
    await until(lambda: len(plugin.calls) == 2, "the plugin is told")
    told = plugin.calls[1][CLASS]
    assert dict(told.objects) == {"gold": "4"}
    assert [(each.object, each.reason, each.kept) for each in told.problems] == [
        ("AcceleratorClass gold", "spec is bad: write a good one", 1)
    ]
    world.api.put(CLASSES, "gold", data="4")
    await until(lambda: len(plugin.calls) == 3, "the plugin is told again")
    assert plugin.calls[2][CLASS].problems == ()


async def test_kind_that_a_plugin_reads_no_more_is_told_to_be_gone(world):
    plugin = Recorder()
    await world.connect(Reading(plugin, (NODE, CLASS)))
    world.readers.keep([Reading(plugin, (NODE,))])
    await until(lambda: plugin.known[CLASS] == {}, "the classes are gone")
    assert world.titles == ["nodes"]
    world.readers.keep([Reading(plugin, ())])
    await until(lambda: plugin.known == {NODE: {}, CLASS: {}}, "so are the nodes")
    assert world.titles == []


async def test_namespaced_kinds_are_read_in_the_namespace_of_the_pool_or_in_all(world):
    await world.connect(Reading(Recorder(), (ObjectKind("resource.k8s.io", "ResourceClaim"), CLAIM)))
    await until(lambda: len(world.api.requests) >= 4, "they are asked for")
    assert "/apis/resource.k8s.io/v1/namespaces/llm/resourceclaims" in world.api.requests
    assert "/apis/inference.redhat.com/v1alpha1/allocationclaims" in world.api.requests


class Pods:
    """Objects that are there already."""

    def __init__(self) -> None:
        self.objects = {"llm/a": "pod"}
        self.problems = ()
        self.listeners: list = []

    def subscribe(self, listener):
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    async def settled(self) -> None:
        """Be there."""


async def test_objects_that_are_watched_already_are_not_watched_twice():
    pods = Pods()
    world = World(SharedObjects(PODS, decode, pods))
    plugin = Recorder()
    await world.connect(Reading(plugin, (POD,)))
    assert plugin.known == {POD: {"llm/a": "pod"}}
    pods.objects = {"llm/b": "pod"}
    pods.listeners[0](Delta({"llm/b": "pod"}, ("llm/a",)))
    await until(lambda: plugin.known == {POD: {"llm/b": "pod"}}, "the plugin is told")
    assert world.api.requests == []
    world.readers.keep([])
    assert pods.listeners == []
    await world.supervisor.stop()


async def test_plugin_that_decodes_otherwise_has_a_watch_of_its_own():
    world = World(SharedObjects(PODS, dict, Pods()))
    world.api.put("/api/v1/namespaces/llm/pods", "a", data="own", metadata={"namespace": "llm"})
    plugin = Recorder()
    await world.connect(Reading(plugin, (POD,)))
    assert plugin.known == {POD: {"llm/a": "own"}}
    await world.cluster.close()
    await world.supervisor.stop()


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abc"), st.integers(0, 3)),
        st.tuples(st.just("remove"), st.sampled_from("abc")),
        st.just(("turn",)),
        st.just(("fail",)),
    ),
    max_size=15,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CHANGES)
def test_between_two_calls_all_that_differs_is_told_to_have_changed(steps):
    async def run() -> None:
        pods, plugin = Pods(), Recorder()
        task = ReadingTask(plugin, lambda _: (pods, lambda: None), lambda *_: None)
        task.read((POD,))
        running = asyncio.create_task(_restarted(task))
        await task.reported.wait()
        for step in steps:
            if step[0] == "put":
                pods.objects[step[1]] = step[2]
                pods.listeners[0](Delta({step[1]: step[2]}))
            elif step[0] == "remove" and step[1] in pods.objects:
                del pods.objects[step[1]]
                pods.listeners[0](Delta({}, (step[1],)))
            elif step[0] == "fail":
                plugin.failures = 1
            else:
                await asyncio.sleep(0.02)
        pods.objects["last"] = 1
        pods.listeners[0](Delta({"last": 1}))
        await until(lambda: plugin.taken and dict(plugin.taken[-1].objects) == pods.objects, "the plugin knows all")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        for before, after in pairwise(plugin.taken):
            names = {*before.objects, *after.objects}
            assert {name for name in names if before.objects.get(name) != after.objects.get(name)} <= after.changed

    asyncio.run(run())


async def _restarted(task: ReadingTask) -> None:
    while True:
        with contextlib.suppress(LookupError):
            await task.run(None)
