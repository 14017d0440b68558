# SPDX-License-Identifier: Apache-2.0
"""A hub over the routers of two clusters, through a real Envoy: requests follow what the routers report."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest
import yaml
from aiohttp import web

from tests.support.config_files import replace
from tests.support.gateways import Gateway, gateway_of
from tests.support.listening import listening
from tests.support.waiting import read_until
from tests.unit.config.test_multicluster import HEAD, HUB

COUNT = 6


@dataclass
class Leaf:
    """The router of a cluster: a gateway that answers with its name, and a metrics page on another port."""

    name: str
    usage: float
    queue: float = 0.0
    gateway: str = ""
    page: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        await request.read()
        return web.json_response({"cluster": self.name})

    async def metrics(self, _: web.Request) -> web.Response:
        pool = f'{{name="{self.name}"}}'
        return web.Response(
            text=f"llm_d_epp_average_kv_cache_utilization{pool} {self.usage}\n"
            f"llm_d_epp_average_queue_size{pool} {self.queue}\n"
        )

    @property
    def entry(self) -> dict:
        port = self.page.rpartition(":")[2]
        labels = {"metricsAddress": "localhost", "metricsPort": port}
        return {"name": self.name, "address": "localhost", "port": self.gateway.rpartition(":")[2], "labels": labels}


@asynccontextmanager
async def running(leaf: Leaf):
    async with listening(leaf.answer) as leaf.gateway, listening(leaf.metrics) as leaf.page:
        yield leaf


async def goes_to(hub: Gateway, *clusters: str) -> None:
    """Wait until requests at once are answered by these clusters, and by no others."""

    async def ask(number: int) -> str:
        response = await hub.post("/v1/completions", {"model": "m", "prompt": str(number)})
        return (await response.json())["cluster"] if response.status == 200 else f"status {response.status}"

    async def answered() -> set[str]:
        return set(await asyncio.gather(*map(ask, range(COUNT))))

    await read_until(answered, lambda found: found == set(clusters), f"requests go to {clusters}")


@pytest.fixture
async def leaves():
    async with running(Leaf("cluster-a", usage=0.9)) as one, running(Leaf("cluster-b", usage=0.1)) as other:
        yield one, other


async def test_requests_follow_the_load_that_the_routers_of_clusters_report(leaves, tmp_path):
    one, other = leaves
    clusters, config = tmp_path / "clusters.yaml", tmp_path / "hub.yaml"
    replace(clusters, yaml.safe_dump({"endpoints": [leaf.entry for leaf in leaves]}))
    config.write_text(HEAD + HUB.format(path=clusters))
    async with gateway_of(f"--config-file={config}", "--allow-experimental-plugins") as hub:
        await goes_to(hub, "cluster-b")
        one.usage, other.usage = 0.2, 0.8
        await goes_to(hub, "cluster-a")
        one.queue = 9.0  # 0.8 + 0 is less than 0.2 + 1
        await goes_to(hub, "cluster-b")
        one.queue = other.queue = one.usage = other.usage = 0.0
        await goes_to(hub, "cluster-a", "cluster-b")
        async with AsyncExitStack() as third:
            added = await third.enter_async_context(running(Leaf("cluster-c", usage=0.0)))
            one.usage = other.usage = 0.5
            replace(clusters, yaml.safe_dump({"endpoints": [leaf.entry for leaf in (*leaves, added)]}))
            await goes_to(hub, "cluster-c")
        await goes_to(hub, "cluster-a", "cluster-b")  # c is gone, though the file still has it
