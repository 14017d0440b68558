# SPDX-License-Identifier: Apache-2.0
"""A pod that takes the place of another one has its name or its address, and nothing that was known of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.kube.fleet import Fleet, fleet_in
from tests.support.kube.kubeconfig import write_kubeconfig
from tests.support.kube.pickers import Picker, picker_as, pool_of
from tests.support.kube.relay import Relay, relay_to
from tests.support.kube.space import Space, space_in
from tests.support.kube.users import PICKER_ROLE

NAMES = pytest.mark.parametrize("name", ["a", "b"], ids=["same name", "another name"])


@NAMES
async def test_is_11_replaced_pod_at_the_same_address_inherits_nothing(space, tmp_path, name):
    async with picker_that_knows(space, tmp_path) as (fleet, _, picker):
        await replace(fleet, name)
        await picker.knows(2)  # the one that replace() made last
        await picker.uses(f"{name}-rank-0")
        assert await picker.cached() == "0%"
        assert await picker.cached() != "0%"


@NAMES
async def test_is_11_pod_replaced_while_the_api_server_was_away_inherits_nothing(space, tmp_path, name):
    async with picker_that_knows(space, tmp_path) as (fleet, relay, picker):
        relay.cut()
        await replace(fleet, name)
        await relay.join()
        await picker.knows(2)
        await picker.uses(f"{name}-rank-0")
        assert await picker.cached() == "0%"


@NAMES
async def test_is_11_replaced_pod_of_a_new_list_inherits_nothing(own_cluster, tmp_path, name):
    async with (
        space_in(await own_cluster(crds=("inference",))) as space,
        picker_that_knows(space, tmp_path) as (fleet, relay, picker),
    ):
        relay.cut()
        await replace(fleet, name)
        await space.cluster.expire_history()
        await relay.join()
        await picker.knows(2)
        await picker.uses(f"{name}-rank-0")
        assert await picker.cached() == "0%"


async def test_pod_with_other_labels_is_the_same(space, tmp_path):
    async with picker_that_knows(space, tmp_path) as (fleet, _, picker):
        await fleet.label("a", tier="gold")
        await space.pod("last", "127.0.0.1", ready=False)
        await picker.knows(2)
        assert await picker.cached() != "0%"


@asynccontextmanager
async def picker_that_knows(space: Space, directory: Path) -> AsyncIterator[tuple[Fleet, Relay, Picker]]:
    """Run a picker whose only way to the API server is the relay; the pod `a` has the prompt in its cache."""
    async with fleet_in(space) as fleet, relay_to(space.cluster.access) as relay:
        await fleet.start("a")
        await space.pool(ports=fleet.ports)
        user = await space.user("picker", PICKER_ROLE)
        kubeconfig = write_kubeconfig(directory / "kubeconfig", relay.access, token=user.token)
        async with picker_as(kubeconfig, *pool_of(space), "--decision-headers") as picker:
            await picker.uses("a-rank-0")
            assert await picker.cached() == "0%"
            assert await picker.cached() != "0%"
            yield fleet, relay, picker


async def replace(fleet: Fleet, name: str) -> None:
    """Delete the pod `a`, start one at its address, where its server still is, and then one that is not ready."""
    before = fleet.pods["a"]
    await fleet.delete("a")
    after = await fleet.space.pod(name, before["status"]["podIP"])
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    await fleet.space.pod("last", "127.0.0.1", ready=False)
