# SPDX-License-Identifier: Apache-2.0
"""`/healthz` of a picker in a real cluster: why it is not ready, and what it cannot use."""

from contextlib import suppress

import aiohttp
import pytest

from tests.support.kube.pickers import PATIENCE_SECONDS, picker_in
from tests.support.kube.users import PICKER_ROLE
from tests.support.waiting import until


@pytest.fixture
def shows():
    """Wait until the page of a picker fulfils a condition; give its status and content."""

    async def shows(picker, condition, what):
        found = []

        async def fulfilled():
            with suppress(aiohttp.ClientConnectorError):  # not open yet
                found[:] = await picker.health()
            return found and condition(found[1])

        await until(fulfilled, f"/healthz shows {what}", seconds=PATIENCE_SECONDS)
        return found

    return shows


async def test_picker_that_may_not_list_pods_says_so(space, shows, tmp_path):
    await space.pool()
    rules = [rule for rule in PICKER_ROLE["rules"] if "pods" not in rule["resources"]]
    async with picker_in(space, tmp_path, role={**PICKER_ROLE, "rules": rules}, ready=False) as picker:
        status, health = await shows(picker, lambda page: "forbidden" in page.get("reason", ""), "what is forbidden")
        assert status == 503
        assert health["reason"].startswith(f"starting: pods in {space}: forbidden: pods is forbidden: User ")


async def test_picker_without_objectives_does_not_wait_for_them(space, tmp_path):
    await space.pool()
    await space.pod("a", "127.0.0.1")
    rules = [rule for rule in PICKER_ROLE["rules"] if "inferenceobjectives" not in rule["resources"]]
    async with picker_in(space, tmp_path, role={**PICKER_ROLE, "rules": rules}) as picker:
        states = {watch["resource"]: watch["state"] for watch in (await picker.health())[1]["kubernetes"]["watches"]}
        assert states[f"inferenceobjectives.llm-d.ai in {space}"] == "forbidden"
        assert states[f"pods in {space}"] == "up to date"


async def test_pool_without_reachable_endpoints_is_the_reason(space, shows, tmp_path):
    await space.pool(ports=(1,))
    await space.pod("a", "127.0.0.1")
    async with picker_in(space, tmp_path) as picker:
        status, health = await shows(picker, lambda page: page["unreachable"], "the endpoint")
        assert (status, health["reason"]) == (503, "no endpoint can be reached")
