# SPDX-License-Identifier: Apache-2.0
"""The pods of a pool get requests while they are ready, and for as long as they stay."""

import pytest

from tests.support.kube.fleet import fleet_in
from tests.support.kube.pickers import picker_in


@pytest.fixture
async def fleet(space):
    """Two ready pods, `a` and `b`, and a pool that selects them."""
    async with fleet_in(space) as fleet:
        await fleet.start("a", "b")
        await space.pool(ports=fleet.ports)
        yield fleet


@pytest.fixture
async def picker(fleet, space, tmp_path):
    async with picker_in(space, tmp_path) as picker:
        yield picker


async def test_pod_that_is_not_ready_serves_none_until_it_is_ready_again(fleet, picker):
    await picker.uses("a-rank-0", "b-rank-0")
    assert await picker.answers() == {"a-rank-0", "b-rank-0"}
    await fleet.unready("a")
    await picker.uses("b-rank-0")
    assert await picker.answers() == {"b-rank-0"}
    await fleet.ready("a")
    await picker.uses("a-rank-0", "b-rank-0")
    assert await picker.answers() == {"a-rank-0", "b-rank-0"}


async def test_pod_that_is_terminating_serves_no_more(fleet, picker):
    await picker.uses("a-rank-0", "b-rank-0")
    await fleet.terminate("a")
    await picker.uses("b-rank-0")
    assert await picker.answers() == {"b-rank-0"}
    await fleet.delete("a")
    assert await picker.answers() == {"b-rank-0"}


async def test_deleted_pod_serves_no_more(fleet, picker):
    await picker.uses("a-rank-0", "b-rank-0")
    await fleet.delete("a")
    await picker.uses("b-rank-0")
    assert await picker.answers() == {"b-rank-0"}


async def test_new_pod_serves_as_soon_as_it_is_ready(fleet, picker):
    await fleet.start("c", ready=False)
    await picker.knows(3)
    await picker.uses("a-rank-0", "b-rank-0")
    await fleet.ready("c")
    await picker.uses("a-rank-0", "b-rank-0", "c-rank-0")
    assert await picker.answers(18) == {"a-rank-0", "b-rank-0", "c-rank-0"}
