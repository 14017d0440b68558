# SPDX-License-Identifier: Apache-2.0
"""A running configuration whose plugins read objects of a cluster."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from epp.app.running_config import RunningConfig
from epp.config import Builder, assemble, load_text
from epp.framework import ConfigurationError, ManualClock, SystemClock
from epp.framework.cluster_objects import ObjectKind, ObjectReader
from epp.framework.datalayer import Report, Tagger
from epp.framework.registry import Registry
from epp.framework.snapshot import TOPOLOGY, Topology
from epp.kube.cluster import Cluster
from epp.kube.readers import ClusterReaders
from epp.pool.discovery import StaticDiscovery
from epp.pool.discovery.targets import Target
from epp.runtime.supervisor import Supervisor
from epp.telemetry.metrics import Metrics
from tests.support.kube.fake_api import FakeApi
from tests.support.waiting import until

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\ndataLayer: {injectDefaults: false}\n"
NODES = "/api/v1/nodes"
READER = "{type: zone-of-nodes}"


class ZoneOfNodes(Tagger, ObjectReader):
    """Writes the names of all nodes as the zone of every endpoint."""

    plugin_type = "zone-of-nodes"
    writes = (TOPOLOGY,)
    kinds = (ObjectKind("", "Node"),)

    def setup(self):
        self.nodes = "?"

    @staticmethod
    def decode(document):
        return document["metadata"]["name"]

    async def objects_changed(self, kinds):
        await asyncio.sleep(0)
        self.nodes = "+".join(sorted(kinds[0].objects))
        return lambda endpoint: endpoint.name == "only"

    def tag(self, endpoint):
        return Report(attributes={TOPOLOGY: Topology(zone=self.nodes)})


class World:
    def __init__(self, *plugins: str, cluster: bool = True) -> None:
        self.api = FakeApi()
        self.api.put(NODES, "n1")
        self.supervisor = Supervisor()
        self.cluster = Cluster(self.api, clock=SystemClock(), supervisor=self.supervisor)
        readers = ClusterReaders(self.cluster, "llm", supervisor=self.supervisor) if cluster else None
        self.registry = Registry()
        self.registry.register(ZoneOfNodes)
        clock = ManualClock()
        metrics = Metrics("pool", clock)
        discovery = StaticDiscovery([Target("only", "10.0.0.1", 8000)])
        self.running = RunningConfig(self.assembly(*plugins), clock, metrics, discovery=discovery, readers=readers)

    def assembly(self, *plugins: str, more: str = ""):
        running = getattr(self, "running", None)
        previous = {} if running is None else running.assembly.instances.by_name
        text = f"{HEAD}plugins: [{', '.join(plugins)}]\n{more}"
        return assemble(load_text(text), Builder(self.registry, ManualClock(), previous=previous))

    def zone(self) -> str:
        return self.running.store.snapshot().records(TOPOLOGY).values[0].zone

    @property
    def watched(self) -> list[str]:
        return [watch.collection.title for watch in self.cluster.watches]


@contextlib.asynccontextmanager
async def started(*plugins: str, **options: bool) -> AsyncIterator[World]:
    world = World(*plugins, **options)
    await world.running.start()
    try:
        yield world
    finally:
        await world.running.stop()
        await world.cluster.close()
        await world.supervisor.stop()


async def test_objects_are_known_before_the_first_endpoint_is_tagged_and_followed_until_the_plugin_is_gone():
    async with started(READER) as world:
        assert world.zone() == "n1"
        await until(lambda: world.api.watches(NODES), "nodes are watched")
        world.api.put(NODES, "n2")
        await until(lambda: world.zone() == "n1+n2", "the endpoint is tagged anew")
        (before,) = world.cluster.watches
        await world.running.switch(world.assembly(READER, "{type: queue-scorer}"))
        assert world.cluster.watches == (before,)
        world.api.put(NODES, "n3")
        await until(lambda: world.zone() == "n1+n2+n3", "the plugin that is kept goes on")
        await world.running.switch(world.assembly("{type: queue-scorer}"))
        assert world.watched == []


async def test_plugin_of_a_new_configuration_knows_the_objects_before_it_takes_effect():
    async with started("{type: queue-scorer}") as world:
        seen: list[str] = []
        apply = world.running.director.use
        world.running.director.use = lambda pipeline: (seen.append(world.zone()), apply(pipeline))  # type: ignore[method-assign]
        await world.running.switch(world.assembly(READER))
        assert seen == ["n1"]
        assert world.watched == ["nodes"]


async def test_switch_that_fails_leaves_what_was_read(monkeypatch):
    async with started("{type: queue-scorer}") as world:

        async def fail(*_arguments):
            raise ConfigurationError("not today")

        monkeypatch.setattr(world.running._tagging, "change_over", fail)  # noqa: SLF001  as late as a switch can fail
        with pytest.raises(ConfigurationError, match="not today"):
            await world.running.switch(world.assembly(READER))
        assert world.watched == []


async def test_without_a_cluster_plugins_have_no_objects_and_sources_of_them_are_warned_of():
    source = "{type: k8s-notification-source, name: nodes, parameters: {version: v1, kind: Node}}"
    with capture_logs() as logs:
        async with started(READER, source, cluster=False) as world:
            assert world.zone() == "?"
            assert world.api.requests == []
    (warning,) = [line for line in logs if line["log_level"] == "warning"]
    assert warning["plugin"] == "nodes"
    assert "not pods of a cluster" in warning["event"]
    assert "--pool-name" in warning["remedy"]
