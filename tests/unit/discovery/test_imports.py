# SPDX-License-Identifier: Apache-2.0
"""Endpoints of an imported pool: the gateways of the clusters that export it."""

import asyncio
from contextlib import asynccontextmanager

import pytest
import yaml

from epp.framework import ConfigurationError, ManualClock
from epp.framework.registry import Registry
from epp.pool.clusters.tagger import ClusterTagger
from epp.pool.discovery import FileDiscovery, PoolImportDiscovery
from epp.routing.datastore import Datastore
from tests.support.config_files import replace
from tests.support.kube.manifests import manifest
from tests.support.waiting import until
from tests.unit.clusters.test_imports import exported_by

CLAIM = "gateway.example.com"


def build(plugin, **parameters):
    registry = Registry({})
    registry.register(plugin)
    return registry.build(plugin.plugin_type, parameters, name=plugin.plugin_type, clock=ManualClock())


def managed(name: str, gateway: str = "", **labels: str) -> dict:
    """Return a ManagedCluster, with the address of its gateway as a claim."""
    claims = [{"name": CLAIM, "value": gateway}] if gateway else []
    made = manifest("cluster.open-cluster-management.io/v1", "ManagedCluster", name, status={"clusterClaims": claims})
    return {**made, "metadata": {"name": name, "labels": labels}}


class Hub:
    """Objects in a file, and the endpoints that follow from them."""

    def __init__(self, path) -> None:
        self.path = path
        self.store = Datastore(ManualClock())
        self.write()

    def write(self, *documents: dict) -> None:
        replace(self.path, yaml.safe_dump_all(documents or [{"apiVersion": "v1", "kind": "ConfigMap"}]))

    @asynccontextmanager
    async def followed(self, **parameters):
        clusters = build(ClusterTagger, paths=[str(self.path)], cluster="east", missingFileGracePeriod="0s")
        source = build(PoolImportDiscovery, poolImport="example/llm-pool", **parameters)
        source.connect({"clusters": clusters})
        await source.start(self.store)
        task = asyncio.create_task(source.follow(self.store))
        yield source, clusters
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    @property
    def endpoints(self) -> dict[str, str]:
        return {f"{one.id} in {one.cluster}": one.hostport for one in self.store.endpoints}


@pytest.fixture
def hub(tmp_path) -> Hub:
    return Hub(tmp_path / "hub.yaml")


async def test_ocm_16_clusters_that_export_the_pool_are_endpoints_at_their_gateways(hub):
    hub.write(exported_by("west", "north", "east"), managed("north", "https://10.0.0.9", region="eu"))
    async with hub.followed(gateways={"west": "10.0.0.1:80"}, gatewayClaim=CLAIM) as (source, clusters):
        both = {"example/west in west": "10.0.0.1:80", "example/north in north": "10.0.0.9:443"}
        assert hub.endpoints == both  # and not the local one
        north = hub.store.endpoint("example/north")
        assert (north.tls, dict(north.labels)) == (True, {"region": "eu"})
        assert source.trouble == ""
        hub.write(exported_by("north"), managed("north", "10.0.0.8:8080"))
        await clusters.check()
        await until(lambda: hub.endpoints == {"example/north in north": "10.0.0.8:8080"}, "west exports it no more")


async def test_ocm_16_import_that_is_missing_is_told_of_until_it_is_there(hub):
    async with hub.followed(gateways={"west": "10.0.0.1:80"}) as (source, clusters):
        assert source.trouble.startswith("there is no InferencePoolImport example/llm-pool: ")
        hub.write(exported_by("west"))
        await clusters.check()
        await until(lambda: list(hub.endpoints.values()) == ["10.0.0.1:80"], "it is there")
        assert source.trouble == ""


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ("", f"cluster west has no gateway: write its address under gateways, or as claim {CLAIM} of its Managed"),
        ("gopher://x", f"claim {CLAIM} of ManagedCluster west: 'gopher://x' has the scheme gopher"),
    ],
)
async def test_ocm_16_cluster_without_a_good_address_is_told_of_and_the_others_serve(hub, claim, said):
    hub.write(exported_by("west", "north"), managed("west", claim))
    async with hub.followed(gateways={"north": "10.0.0.2:80"}, gatewayClaim=CLAIM) as (source, _):
        assert list(hub.endpoints.values()) == ["10.0.0.2:80"]
        assert said in source.trouble


async def test_ocm_16_hub_that_is_not_read_is_told_of(hub):
    hub.write(exported_by("west"))
    async with hub.followed(gateways={"west": "10.0.0.1:80"}) as (source, clusters):
        clusters.unread = lambda kinds: f"hub: {kinds[0]}s cannot be read"
        assert source.trouble == "hub: InferencePoolImports cannot be read"
        assert list(hub.endpoints.values()) == ["10.0.0.1:80"]


def test_ocm_16_wrong_parameters_are_refused_with_the_remedy(tmp_path):
    with pytest.raises(ConfigurationError, match=r"gateways.west: 'x/y' has the path '/y'.* write x"):
        build(PoolImportDiscovery, poolImport="a/b", gateways={"west": "x/y"})
    with pytest.raises(ConfigurationError, match="poolImport is 'b': write the namespace/name"):
        build(PoolImportDiscovery, poolImport="b")
    other = build(FileDiscovery, path=str(tmp_path / "x"))
    with pytest.raises(ValueError, match="clusters is 'file-discovery': name a cluster-data-source"):
        build(PoolImportDiscovery, poolImport="a/b").connect({"clusters": other})
