# SPDX-License-Identifier: Apache-2.0
"""A plugin that reads InferencePools is told of the picker's own pool, and of no other in its namespace."""

import pytest
from fake_api import FakeApi
from waiting import until

from epp.framework import ManualClock, SystemClock
from epp.framework.cluster import Reading
from epp.framework.registry import Registry
from epp.hardware.selection.producer import AcceleratorSelectionProducer
from epp.kube.cluster import Cluster
from epp.kube.objects.decode import decode_object
from epp.kube.objects.inference import POOL_GROUP
from epp.kube.readers import ClusterReaders, SharedObjects
from epp.kube.resources import pools
from epp.pool.discovery import PodDiscovery, PodTarget, PoolName
from epp.routing.datastore import Datastore
from epp.runtime.supervisor import Supervisor

PODS = "/api/v1/namespaces/llm/pods"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/llm/inferencepools"
SERVICES = "/apis/ome.io/v1beta1/namespaces/llm/inferenceservices"
NODES = "/api/v1/nodes"


class Place:
    def __init__(self, source: PoolName | PodTarget) -> None:
        self.api = FakeApi()
        self.api.install(PODS, POOLS, NODES, SERVICES)
        self.supervisor = Supervisor()
        cluster = Cluster(self.api, clock=SystemClock(), supervisor=self.supervisor)
        self.cluster = cluster
        self.discovery = PodDiscovery(cluster, "llm", source)
        shared = [SharedObjects(pools(POOL_GROUP), decode_object, self.discovery.pool)]
        self.readers = ClusterReaders(cluster, "llm", supervisor=self.supervisor, shared=shared)
        registry = Registry({})
        registry.register(AcceleratorSelectionProducer)
        plugin = registry.build("accelerator-selection-producer", {}, name="selection", clock=ManualClock())
        assert isinstance(plugin, AcceleratorSelectionProducer)
        self.plugin = plugin

    async def start(self) -> None:
        await self.discovery.start(Datastore(ManualClock()))
        await self.readers.connect([Reading(self.plugin, tuple(self.plugin.kinds))], lambda *_: None)

    async def close(self) -> None:
        await self.cluster.close()
        await self.supervisor.stop()

    def pool(self, name: str, threshold: str) -> None:
        metadata = {"namespace": "llm", "annotations": {"ome.io/cost-threshold": threshold}}
        spec = {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 8000}]}
        self.api.put(
            POOLS, name, apiVersion="inference.networking.k8s.io/v1", kind="InferencePool", metadata=metadata, spec=spec
        )

    @property
    def threshold(self) -> float | None:
        return self.plugin.objectives.pool.max_endpoint_cost_per_hour


@pytest.fixture
async def place():
    place = Place(PoolName("pool", "llm"))
    yield place
    await place.close()


async def test_ome_7_the_threshold_is_that_of_the_pickers_own_pool_and_follows_it(place):
    place.pool("pool", "7")
    place.pool("another", "1")
    await place.start()
    await until(lambda: place.threshold == 7.0, "the threshold counts")
    place.pool("pool", "5")
    await until(lambda: place.threshold == 5.0, "the new one counts")
    place.api.delete(POOLS, "pool")
    await until(lambda: place.threshold is None, "there is none any more")


async def test_ome_5_services_of_the_cluster_count_as_soon_as_they_are_installed(place):
    place.pool("pool", "7")
    await place.start()
    await until(lambda: place.threshold == 7.0, "the pool is known")
    spec = {"model": {"name": "llama"}, "acceleratorSelector": {"constraints": {"minMemory": 40}}}
    metadata = {"namespace": "llm"}
    place.api.put(SERVICES, "chat", apiVersion="ome.io/v1beta1", kind="InferenceService", metadata=metadata, spec=spec)
    await until(lambda: "llm/chat" in place.plugin.objectives.services, "the service counts")


async def test_ome_7_pods_without_a_pool_have_no_threshold():
    place = Place(PodTarget({"app": "vllm"}, (8000,)))
    try:
        place.pool("another", "1")
        await place.start()
        assert place.threshold is None
    finally:
        await place.close()
