# SPDX-License-Identifier: Apache-2.0
"""A plugin that reads InferencePools is told of the picker's own pool, and of no other in its namespace."""

import pytest

from epp.framework import ManualClock
from epp.framework.cluster_objects import Reading
from epp.framework.registry import Registry
from epp.hardware.selection import AcceleratorSelectionProducer
from epp.kube.objects.decode import decode_object
from epp.kube.objects.inference import POOL_GROUP
from epp.kube.readers import ClusterReaders, SharedObjects
from epp.kube.resources import pools
from epp.pool.discovery import PodTarget, PoolName
from tests.support.kube.pool_place import POOLS, VLLM, Place
from tests.support.waiting import until

SERVICES = "/apis/ome.io/v1beta1/namespaces/llm/inferenceservices"


class ReadPool(Place):
    """A place with a plugin that reads the pool."""

    def __init__(self, source: PoolName | PodTarget) -> None:
        super().__init__(source)
        self.api.install(SERVICES)
        shared = [SharedObjects(pools(POOL_GROUP), decode_object, self.discovery.pool)]
        self.readers = ClusterReaders(self.cluster, "llm", supervisor=self.supervisor, shared=shared)
        registry = Registry({})
        registry.register(AcceleratorSelectionProducer)
        plugin = registry.build("accelerator-selection-producer", {}, name="selection", clock=ManualClock())
        assert isinstance(plugin, AcceleratorSelectionProducer)
        self.plugin = plugin

    async def start(self) -> None:
        await super().start()
        await self.readers.connect([Reading(self.plugin, tuple(self.plugin.kinds))], lambda *_: None)

    def costing(self, name: str, threshold: str) -> None:
        self.pool(8000, name=name, **{"ome.io/cost-threshold": threshold})

    @property
    def threshold(self) -> float | None:
        return self.plugin.objectives.pool.max_endpoint_cost_per_hour


@pytest.fixture
async def place():
    place = ReadPool(PoolName("pool", "llm"))
    yield place
    await place.close()


async def test_ome_7_the_threshold_is_that_of_the_pickers_own_pool_and_follows_it(place):
    place.costing("pool", "7")
    place.costing("another", "1")
    await place.start()
    await until(lambda: place.threshold == 7.0, "the threshold counts")
    place.costing("pool", "5")
    await until(lambda: place.threshold == 5.0, "the new one counts")
    place.api.delete(POOLS, "pool")
    await until(lambda: place.threshold is None, "there is none any more")


async def test_ome_5_services_of_the_cluster_count_as_soon_as_they_are_installed(place):
    place.costing("pool", "7")
    await place.start()
    await until(lambda: place.threshold == 7.0, "the pool is known")
    spec = {"model": {"name": "llama"}, "acceleratorSelector": {"constraints": {"minMemory": 40}}}
    metadata = {"namespace": "llm"}
    place.api.put(SERVICES, "chat", apiVersion="ome.io/v1beta1", kind="InferenceService", metadata=metadata, spec=spec)
    await until(lambda: "llm/chat" in place.plugin.objectives.services, "the service counts")


async def test_ome_7_pods_without_a_pool_have_no_threshold():
    place = ReadPool(VLLM)
    try:
        place.costing("another", "1")
        await place.start()
        assert place.threshold is None
    finally:
        await place.close()
