# SPDX-License-Identifier: Apache-2.0
"""One pool of two clusters, through a real Envoy: requests move between them as the hub and the load say."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path

import openai
import pytest
import yaml
from aiohttp import web

from epp.framework.clusters import CLUSTER
from epp.framework.scoring import DYNAMIC_SCORES
from epp.lab.demo.servers import Phase, config_text, two_clusters
from epp.lab.sim.server import RunningSim
from tests.support import hub_objects
from tests.support.config_files import endpoints_file, picker_config, replace, with_pool
from tests.support.listening import listening
from tests.support.waiting import until
from tests.support.world import MODEL, World, open_world, rest_of


def config_of(tmp_path: Path, text: str, servers: Iterable[tuple[str, str]]) -> Path:
    """Write a configuration with servers `<cluster>-<number>`, each a name and an address."""
    config = tmp_path / "config.yaml"
    pool = {name: (address, {}, name.partition("-")[0]) for name, address in servers}
    config.write_text(with_pool(text, endpoints_file(tmp_path / "endpoints.yaml", **pool)))
    return config


def addresses(sims: dict[str, RunningSim]) -> list[tuple[str, str]]:
    return [(name, sim.address) for name, sim in sims.items()]


def statuses(world: World) -> dict[str, object]:
    snapshot = world.gateway.picker.store.snapshot()
    records = snapshot.records(CLUSTER).values
    return {records[slot].cluster: records[slot] for slot in snapshot.slots.tolist()}


async def served_in(world: World, count: int = 8) -> set[str]:
    """Send some requests at once, of different prompts; return the clusters that answered."""
    answers = await asyncio.gather(*(world.ask(f"question {number} of {id(world)}") for number in range(count)))
    return {name.partition("-")[0] for name in answers}


async def test_requests_leave_a_cluster_that_is_full_or_has_failed_and_come_back(tmp_path):
    async with two_clusters(MODEL) as clusters:
        servers = [(server.name, server.address) for server in clusters.servers]
        config = config_of(tmp_path, config_text(clusters.objects), servers)
        async with open_world(config_file=config) as world:
            score = "resource-usage-score/gpuClusterAvailable"
            await world.scraped()
            assert statuses(world)["east"].scores == {score: 60.0}
            assert await served_in(world) == {"east"}

            await clusters.enter(Phase.FULL)
            await until(lambda: statuses(world)["east"].scores == {score: -100.0}, "the score has fallen")
            await world.scraped()
            assert await served_in(world) == {"west"}

            await clusters.enter(Phase.FAILED)
            await until(lambda: statuses(world)["east"].taints, "the taint is known")
            assert await served_in(world) == {"west"}
            await until(lambda: world.available == {"west-1", "west-2"}, "the servers of east are known to be gone")

            await clusters.enter(Phase.BACK)
            await until(lambda: len(world.available) == 4, "the servers of east are back")
            await until(lambda: statuses(world)["east"].scores == {score: 60.0}, "the score is back")
            assert not statuses(world)["east"].taints
            assert await served_in(world) == {"east"}


PLACED = picker_config("""
plugins:
- type: cluster-data-source
  parameters: {{paths: [{objects}], cluster: east}}
- type: placement-filter
  parameters: {{placement: default/llm}}
- type: active-request-scorer
""")


def decisions(path: Path, *pages: tuple[str, ...]) -> None:
    """Write the pages of the decision of a placement."""
    documents = [
        hub_objects.decision(*clusters, page=number, namespace="default") for number, clusters in enumerate(pages, 1)
    ]
    replace(path, yaml.safe_dump_all(documents))


async def test_ocm_4_cluster_that_leaves_a_placement_ends_what_it_has_and_gets_nothing_new(simulated, tmp_path):
    sims = await simulated("east-1", "west-1")
    objects = tmp_path / "hub.yaml"
    decisions(objects, ("east",), ("west",))
    config = config_of(tmp_path, PLACED.format(objects=objects), addresses(sims))
    async with open_world(config_file=config, sims=sims) as world:
        assert await served_in(world) == {"east", "west"}  # of both pages

        decisions(objects, ("east",), ())

        def chosen() -> set[str]:
            return {name for name, each in statuses(world).items() if each.placements["default/llm"].chosen}

        await until(lambda: chosen() == {"east"}, "west has left")
        assert await served_in(world) == {"east"}
        begun = await world.stream(200)

        decisions(objects, ("west",))
        await until(lambda: chosen() == {"west"}, "west is back, and east has left")
        assert await served_in(world) == {"west"}
        await rest_of(begun)

        decisions(objects, ())
        await until(lambda: chosen() == set(), "no cluster is left")
        with pytest.raises(openai.InternalServerError) as refused:
            await world.ask("anything")
        assert refused.value.status_code == 503
        assert "no cluster is available" in str(refused.value)


SCORED = picker_config("""
plugins:
- type: dynamic-score-source
  parameters:
    timeout: 500ms
    validity: 3s
    scorers: [{{name: power, interval: 1s, scoring: {{host: "{url}"}}}}]
- type: cluster-score
  parameters: {{source: dynamic, scoreName: power, missing: neutral}}
- type: active-request-scorer
schedulingProfiles:
- name: default
  plugins: [{{pluginRef: cluster-score, weight: 10}}, {{pluginRef: active-request-scorer}}]
""")


async def test_ocm_8_scorer_that_hangs_costs_requests_nothing_but_its_score(simulated, tmp_path):
    hangs = asyncio.Event()

    async def scoring(request: web.Request) -> web.Response:
        if hangs.is_set():
            await asyncio.sleep(3600)
        results = [{"metric": {"pod": name}, "score": score} for name, score in (("a", -50), ("b", 90.5))]
        return web.Response(text=json.dumps({"results": results}), content_type="application/json")

    async with listening(scoring) as scorer:
        sims = await simulated("a", "b")
        config = config_of(tmp_path, SCORED.format(url=f"http://{scorer}"), addresses(sims))
        async with open_world(config_file=config, sims=sims) as world:

            def known() -> set[bool]:
                snapshot = world.gateway.picker.store.snapshot()
                records = snapshot.records(DYNAMIC_SCORES).values
                scores = [records[slot].by_name.get("power") for slot in snapshot.slots.tolist()]
                return {score is not None and not score.expired for score in scores}

            await until(lambda: known() == {True}, "the scorer has answered")
            assert [await world.ask("x") for _ in range(3)] == ["b"] * 3
            hangs.set()
            while known() == {True}:  # the last scores count until they expire
                answer = await world.ask("x")
                assert answer == "b" or known() == {False}
            answers = await asyncio.gather(*(world.ask(f"{number}") for number in range(8)))
            assert set(answers) == {"a", "b"}  # neither is preferred
            hangs.clear()
            await until(lambda: known() == {True}, "the scorer answers again")
            assert [await world.ask("x") for _ in range(3)] == ["b"] * 3


NETWORKED = picker_config("""
plugins:
- type: cluster-data-source
  parameters: {cluster: east, networks: {west: {latency: 10s}}}
- type: work-seconds-scorer
schedulingProfiles: [{name: default, plugins: [{pluginRef: work-seconds-scorer}]}]
""")


async def test_ocm_17_requests_stay_near_until_the_work_there_takes_longer_than_the_network(simulated, tmp_path):
    sims = await simulated("east-1", "west-1")
    config = config_of(tmp_path, NETWORKED, addresses(sims))
    async with open_world(config_file=config, sims=sims) as world:
        await world.scraped()
        assert await served_in(world) == {"east"}
        await world.occupy("east-1", waiting=500, running=200)
        assert await served_in(world, 1) == {"west"}
