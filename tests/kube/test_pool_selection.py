# SPDX-License-Identifier: Apache-2.0
"""The pods and ports of a pool change while requests flow: no restart, and no request fails."""

import pytest

from epp.pool.discovery.pods import ACTIVE_PORTS
from tests.support.kube.fleet import fleet_in
from tests.support.kube.pickers import picker_in
from tests.support.load import load_on

CURRENT, FORMER = ACTIVE_PORTS


@pytest.fixture
async def fleet(space):
    """Pods `a` and `b` with two ports, of which the pool has the first, and `other`, which it does not select."""
    async with fleet_in(space, ports=2) as fleet:
        await fleet.start("a", "b", labels={"app": "vllm", "tier": "gold"})
        await fleet.start("other", labels={"app": "other"})
        await space.pool(ports=fleet.ports[:1])
        yield fleet


@pytest.fixture
async def picker(fleet, space, tmp_path):
    async with picker_in(space, tmp_path) as picker:
        await picker.uses("a-rank-0", "b-rank-0")
        yield picker


async def test_relabelled_pod_leaves_and_joins(fleet, picker):
    async with load_on(picker.url) as load:
        await fleet.label("a", app="retired")
        await picker.uses("b-rank-0")
        await load.reaches("b-rank-0")
        await fleet.label("a", app="vllm")
        await picker.uses("a-rank-0", "b-rank-0")
        await load.reaches("a-rank-0", "b-rank-0")


async def test_pool_that_selects_others_has_those_at_once(fleet, space, picker):
    async with load_on(picker.url) as load:
        await space.pool(selector={"app": "other"}, ports=fleet.ports[:1])
        await picker.uses("other-rank-0")
        await load.reaches("other-rank-0")
        await space.pool(selector={"app": "vllm", "tier": "gold"}, ports=fleet.ports[:1])
        await picker.uses("a-rank-0", "b-rank-0")
        await load.reaches("a-rank-0", "b-rank-0")


async def test_changes_of_pods_count_after_the_pool_has_selected_others(fleet, space, picker):
    await space.pool(selector={"app": "other"}, ports=fleet.ports[:1])
    await picker.uses("other-rank-0")
    await fleet.start("new", labels={"app": "other"})
    await picker.uses("other-rank-0", "new-rank-0")
    await fleet.label("a", app="other")
    await fleet.unready("other")
    await picker.uses("a-rank-0", "new-rank-0")


async def test_other_ports_are_other_endpoints(fleet, space, picker):
    async with load_on(picker.url) as load:
        await space.pool(ports=fleet.ports)
        both = {"a-rank-0", "a-rank-1", "b-rank-0", "b-rank-1"}
        await picker.uses(*both)
        await load.reaches(*both)
        await space.pool(ports=fleet.ports[1:])
        await picker.uses("a-rank-0", "b-rank-0")  # the first port of the pool is now the second of before
        await load.reaches("a-rank-1", "b-rank-1")


@pytest.mark.parametrize("annotation", [CURRENT, FORMER])
async def test_pod_serves_on_its_active_ports(fleet, space, picker, annotation):
    await space.pool(ports=fleet.ports)
    await picker.uses("a-rank-0", "a-rank-1", "b-rank-0", "b-rank-1")
    async with load_on(picker.url) as load:
        await fleet.annotate("a", **{annotation: f" {fleet.ports[1]},not-a-port,99999"})
        await fleet.annotate("b", **{annotation: ""})
        await picker.uses("a-rank-1")
        await load.reaches("a-rank-1")
        await fleet.annotate("b", **{annotation: None})
        await picker.uses("a-rank-1", "b-rank-0", "b-rank-1")


async def test_current_name_of_the_annotation_goes_before_the_former(fleet, space, picker):
    await space.pool(ports=fleet.ports)
    await fleet.annotate("a", **{CURRENT: str(fleet.ports[0]), FORMER: str(fleet.ports[1])})
    await picker.uses("a-rank-0", "b-rank-0", "b-rank-1")
