# SPDX-License-Identifier: Apache-2.0
"""The API server is away: the pool stays as it is, operators are told, and all is right once it is back."""

import asyncio

import pytest

from tests.support.kube.fleet import fleet_in
from tests.support.kube.kubeconfig import write_kubeconfig
from tests.support.kube.pickers import Picker, picker_as, picker_in, pool_of
from tests.support.kube.relay import relay_to
from tests.support.kube.space import space_in
from tests.support.kube.users import PICKER_ROLE
from tests.support.load import load_on
from tests.support.waiting import until

AWAY_SECONDS = 20.0
"""Longer than the longest pause between two attempts to reach the server."""


@pytest.fixture
async def fleet(own_cluster):
    """Three ready pods and their pool, in a cluster of its own."""
    async with space_in(await own_cluster(crds=("inference",))) as space, fleet_in(space) as fleet:
        await fleet.start("a", "b", "c")
        await space.pool(ports=fleet.ports)
        yield fleet


@pytest.fixture
async def relay(fleet):
    async with relay_to(fleet.space.cluster.access) as relay:
        yield relay


@pytest.fixture
async def picker(fleet, relay, tmp_path):
    """A picker whose only way to the API server is the relay."""
    user = await fleet.space.user("picker", PICKER_ROLE)
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", relay.access, token=user.token)
    async with picker_as(kubeconfig, *pool_of(fleet.space)) as picker:
        await picker.uses("a-rank-0", "b-rank-0", "c-rank-0")
        yield picker


async def test_killed_api_server_changes_nothing_but_the_staleness(fleet, tmp_path):
    cluster = fleet.space.cluster
    async with picker_in(fleet.space, tmp_path) as picker, load_on(picker.url) as load:
        await picker.uses("a-rank-0", "b-rank-0", "c-rank-0")
        assert await stale_seconds(picker) == 0
        read = await up_to_date(picker)  # the Role allows no nodes, and few kinds are installed
        assert f"pods in {fleet.space}" in read
        cluster.server.kill()
        await until(lambda: is_stale(picker, AWAY_SECONDS), "the objects are stale", seconds=120)
        await load.reaches("a-rank-0", "b-rank-0", "c-rank-0")
        status, health = await picker.health()
        assert (status, health["ready"], health["failing_tasks"]) == (200, True, {})
        for watch in health["kubernetes"]["watches"]:
            assert watch["state"] == "the API server cannot be reached"
            assert watch["stale_seconds"] > AWAY_SECONDS
            assert watch["reason"] == f"{cluster.access.url}: Connection refused"
        current = (await picker.metrics())["llm_d_epp_kubernetes_watch_current"]
        assert set(current.values()) == {0}
        await cluster.server.start()
        await until(lambda: reads(picker, read), "the objects are up to date", seconds=60)
        await fleet.delete("a")
        await picker.uses("b-rank-0", "c-rank-0")
        await load.reaches("b-rank-0", "c-rank-0")
    assert not any("Traceback" in line for line in picker.command.err), picker.command


@pytest.mark.parametrize(("forgotten", "lists"), [(False, 1), (True, 2)], ids=["watch goes on", "history expired"])
async def test_all_that_changed_meanwhile_has_effect_afterwards(fleet, relay, picker, forgotten, lists):
    async with load_on(picker.url) as load:
        relay.cut()
        await until(lambda: is_stale(picker, 1), "the objects are stale")
        await asyncio.gather(fleet.delete("a"), fleet.unready("b"), fleet.start("d"))
        await load.reaches("a-rank-0", "b-rank-0", "c-rank-0")
        if forgotten:
            await fleet.space.cluster.expire_history()
        await relay.join()
        await picker.uses("c-rank-0", "d-rank-0")
        await load.reaches("c-rank-0", "d-rank-0")
    assert await picker.lists("pods") == lists


async def stale_seconds(picker: Picker) -> float:
    """Return for how long the objects have been stale: the shortest time of all resources."""
    return min((await picker.metrics())["llm_d_epp_kubernetes_watch_stale_seconds"].values())


async def is_stale(picker: Picker, seconds: float) -> bool:
    return await stale_seconds(picker) > seconds


async def reads(picker: Picker, titles: set[str]) -> bool:
    """Return whether these objects are up to date."""
    return titles <= await up_to_date(picker)


async def up_to_date(picker: Picker) -> set[str]:
    """Return the titles of the objects that are up to date."""
    _, health = await picker.health()
    return {watch["resource"] for watch in health["kubernetes"]["watches"] if watch["state"] == "up to date"}
