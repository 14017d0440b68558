# SPDX-License-Identifier: Apache-2.0
"""Watches that end: by a server that stops, that hangs, or that has no cache and has forgotten its history."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.support.kube.fleet import Fleet, fleet_in
from tests.support.kube.kubeconfig import write_kubeconfig
from tests.support.kube.pickers import Picker, picker_as, pool_of
from tests.support.kube.relay import Relay, relay_to
from tests.support.kube.space import space_in
from tests.support.kube.users import PICKER_ROLE
from tests.support.load import load_on
from tests.support.waiting import until


@pytest.fixture
async def start(own_cluster, tmp_path):
    """Start a cluster with flags, two pods and a picker behind a relay: `await start("--watch-cache=false")`."""
    async with AsyncExitStack() as stack:

        async def begin(*flags: str) -> tuple[Fleet, Relay, Picker]:
            space = await stack.enter_async_context(space_in(await own_cluster(*flags, crds=("inference",))))
            fleet = await stack.enter_async_context(fleet_in(space))
            await fleet.start("a", "b")
            await space.pool(ports=fleet.ports)
            relay = await stack.enter_async_context(relay_to(space.cluster.access))
            user = await space.user("picker", PICKER_ROLE)
            kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", relay.access, token=user.token)
            picker = await stack.enter_async_context(picker_as(kubeconfig, *pool_of(space)))
            await picker.uses("a-rank-0", "b-rank-0")
            return fleet, relay, picker

        yield begin


async def test_history_that_a_server_without_a_cache_has_forgotten_means_a_new_list(start):
    fleet, relay, picker = await start("--watch-cache=false")
    async with load_on(picker.url) as load:
        relay.cut()
        await fleet.delete("a")
        await fleet.start("c")
        await fleet.space.cluster.etcd.compact()
        await relay.join()
        await picker.uses("b-rank-0", "c-rank-0")
        await load.reaches("b-rank-0", "c-rank-0")
    assert await picker.lists("pods") == 2


async def test_events_of_a_server_without_a_cache_arrive(start):
    fleet, _, picker = await start("--watch-cache=false")
    await fleet.unready("a")
    await picker.uses("b-rank-0")
    await fleet.space.cluster.etcd.compact()
    await fleet.ready("a")
    await fleet.start("c")
    await picker.uses("a-rank-0", "b-rank-0", "c-rank-0")
    assert await picker.lists("pods") == 1


async def test_server_that_stops_and_starts_again_goes_on_with_what_is_there(start):
    fleet, _, picker = await start()
    async with load_on(picker.url) as load:
        for pod in ("c", "d"):
            await fleet.space.cluster.server.stop()
            await fleet.space.cluster.server.start()
            await fleet.start(pod)
            await until(lambda pod=pod: _has(picker, pod), f"{pod} is an endpoint", seconds=60)
        await picker.uses("a-rank-0", "b-rank-0", "c-rank-0", "d-rank-0")
        await load.reaches("a-rank-0", "b-rank-0", "c-rank-0", "d-rank-0")


async def test_server_that_hangs_is_waited_for(start):
    fleet, _, picker = await start()
    async with load_on(picker.url) as load:
        fleet.space.cluster.server.pause()
        try:
            deleting = asyncio.create_task(fleet.delete("a"))
            await load.reaches("a-rank-0", "b-rank-0")
        finally:
            fleet.space.cluster.server.resume()
        await deleting
        await picker.uses("b-rank-0")
        await load.reaches("b-rank-0")
    assert await picker.lists("pods") == 1


async def _has(picker: Picker, pod: str) -> bool:
    return f"{pod}-rank-0" in await picker.endpoints()
