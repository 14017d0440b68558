# SPDX-License-Identifier: Apache-2.0
"""The API server of these tests fails as real ones do: it dies, hangs, and forgets its history."""

import asyncio
import contextlib

import aiohttp
import pytest

from tests.support.kube.client import RefusedError, listed
from tests.support.kube.space import space_in
from tests.support.waiting import until


@pytest.fixture
async def own_space(own_cluster):
    """A namespace in a cluster of its own."""
    async with space_in(await own_cluster(crds=("inferencepools",))) as space:
        yield space


async def test_killed_server_comes_back_on_the_same_port_with_its_objects(own_space):
    await own_space.pod("a", "127.0.0.9")
    await own_space.pool("pool")
    url = own_space.cluster.access.url
    own_space.cluster.server.kill()
    with pytest.raises(aiohttp.ClientConnectionError):
        await own_space.admin.list("v1", "Pod", own_space.namespace)
    await own_space.cluster.server.start()
    assert own_space.cluster.access.url == url
    pods = await own_space.admin.list("v1", "Pod", own_space.namespace)
    assert listed(pods["items"]) == ["a"]
    assert (await own_space.pool("pool"))["metadata"]["generation"] == 1  # as it was


async def test_stopped_server_ends_watches(own_space):
    async with contextlib.aclosing(own_space.admin.watch("v1", "Pod", own_space.namespace)) as events:
        await own_space.pod("a", "127.0.0.9")
        assert (await anext(events))["type"] == "ADDED"
        await own_space.cluster.server.stop()
        with contextlib.suppress(aiohttp.ClientError):
            assert {event["type"] async for event in events} <= {"MODIFIED"}


async def test_paused_server_says_nothing_until_it_is_resumed(own_space):
    listing = asyncio.create_task(_listed_after_pause(own_space))
    await asyncio.sleep(1)
    assert not listing.done()
    own_space.cluster.server.resume()
    assert (await listing)["items"] == []


async def test_watch_from_before_the_history_was_forgotten_is_answered_with_410(own_space):
    before = (await own_space.admin.list("v1", "Pod", own_space.namespace))["metadata"]["resourceVersion"]
    await own_space.cluster.expire_history()
    event = await _first_event(own_space, before)
    assert event["type"] == "ERROR"
    assert event["object"]["code"] == 410


async def test_compacted_version_is_answered_with_410_where_the_server_has_no_cache(own_cluster):
    cluster = await own_cluster("--watch-cache=false", crds=("inferencepools",))
    async with space_in(cluster) as space:
        before = (await space.admin.list("v1", "Pod", space.namespace))["metadata"]["resourceVersion"]
        await cluster.etcd.compact()
        event = await _first_event(space, before)
        assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
        with pytest.raises(RefusedError, match="410 Expired"):
            await space.admin.list(
                "v1", "Pod", space.namespace, resourceVersion=before, resourceVersionMatch="Exact", limit="1"
            )


async def test_kind_that_is_uninstalled_is_not_served_until_it_is_back(own_space):
    await own_space.pool("pool")
    await own_space.cluster.uninstall("inferencepools")

    async def gone() -> bool:
        try:
            await own_space.admin.list("inference.networking.k8s.io/v1", "InferencePool", own_space.namespace)
        except RefusedError as error:
            return error.status == 404
        return False

    await until(gone, "pools are not served")
    await own_space.cluster.install("inferencepools")
    pools = await own_space.admin.list("inference.networking.k8s.io/v1", "InferencePool", own_space.namespace)
    assert pools["items"] == []


async def _listed_after_pause(space):
    space.cluster.server.pause()
    return await space.admin.list("v1", "Pod", space.namespace)


async def _first_event(space, version: str) -> dict:
    watch = space.admin.watch("v1", "Pod", space.namespace, resourceVersion=version)
    async with contextlib.aclosing(watch) as events:
        return await anext(events)
