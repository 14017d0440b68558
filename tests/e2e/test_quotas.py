# SPDX-License-Identifier: Apache-2.0
"""Tenants that take what their quota allows and no more, behind a real Envoy."""

from pathlib import Path

import pytest

from tests.e2e.test_flow_control import FLOW, Setting
from tests.e2e.test_policies import DROPPED, OBJECTIVE

MANY, QUOTA = 40, 10
SECONDS_PER_TOKEN = 0.05
LONG = 8_000
"""Tokens that take longer than any test, and of which many requests find room in the cache."""


class QuotaSetting(Setting):
    """The files of a gateway whose tenants have quotas, and the servers behind it."""

    def limit(
        self, quotas: dict[str, dict], *, places: int | None = MANY, eviction: bool = False, **defaults: object
    ) -> None:
        """Write the configuration; without `places` nobody waits, as flow control is off."""
        parameters = {"quotas": [{"tenant": name, **quota} for name, quota in quotas.items()], **defaults}
        more = {"enableEviction": True} if eviction else {}
        quotas_plugin = {"type": "tenant-quotas", "parameters": parameters}
        self.configure(quotas_plugin, on=places is not None, places=places or 0, **more)


@pytest.fixture
async def setting(simulated, tmp_path: Path) -> QuotaSetting:
    setting = QuotaSetting(tmp_path, await simulated("a", seconds_per_output_token=SECONDS_PER_TOKEN))
    setting.pool("a")
    return setting


async def test_tf_9_requests_over_a_quota_wait_while_those_of_others_go(setting):
    setting.limit({"a": {"total": {"concurrentRequests": QUOTA}}})
    async with setting.front() as front:
        asked = [front.ask(f"{number}", tokens=LONG, **{FLOW: "a"}) for number in range(MANY)]
        await front.running(QUOTA)
        await front.waiting(MANY - QUOTA)
        assert (await front.ask("other", **{FLOW: "b"}))[0] == 200
        names = await setting.served()
        assert len(names) == QUOTA + 1
        asked[int(names[0])].cancel()  # each end lets one of the others go
        await front.waiting(MANY - QUOTA - 1)
        await front.running(QUOTA)


async def test_tf_9_a_request_beyond_what_one_may_take_is_refused_for_good(setting):
    setting.limit({"a": {"single": {"promptTokens": 5, "outputTokens": 10}}}, places=None)
    async with setting.front() as front:
        status, headers, answer = await front.ask("one two three four five six seven eight nine ten", **{FLOW: "a"})
        assert (status, headers[DROPPED]) == (413, "rejected-quota")
        assert "retry-after" not in headers
        assert "single.max.promptTokens" in answer["error"]["message"]
        status, _, answer = await front.ask("long", tokens=11, **{FLOW: "a"})
        assert status == 400
        assert "single.max.outputTokens of 'a' is 10, and with this request 11" in answer["error"]["message"]
        assert (await front.ask("fits", tokens=10, **{FLOW: "a"}))[0] == 200
        assert (await front.ask("anybody's", tokens=11))[0] == 200


async def test_a_larger_quota_counts_for_those_that_wait_once_the_file_says_so(setting):
    setting.limit({"a": {"total": {"concurrentRequests": 1}}})
    async with setting.front() as front:
        for number in range(3):
            front.ask(f"{number}", tokens=LONG, **{FLOW: "a"})
        await front.running(1)
        await front.waiting(2)
        setting.limit({"a": {"total": {"concurrentRequests": 3}}})
        await front.running(3)
        await front.waiting(0)


async def test_tf_11_a_request_of_high_priority_takes_the_place_of_a_low_one_of_its_tenant(setting):
    setting.limit({"a": {"total": {"concurrentRequests": 2}}}, eviction=True)
    async with setting.front("--allow-experimental-plugins") as front:
        holder = front.ask("normal", tokens=LONG, **{FLOW: "a"})
        await front.running(1)
        low = front.ask("low", tokens=LONG, **{FLOW: "a", OBJECTIVE: "low"})
        of_another = front.ask("another's", tokens=LONG, **{FLOW: "b", OBJECTIVE: "low"})
        await front.running(3)
        assert (await front.ask("high", **{FLOW: "a", OBJECTIVE: "high"}))[0] == 200
        status, headers, _ = await low
        assert (status, headers[DROPPED]) == (429, "evicted")
        assert not holder.done()
        assert not of_another.done()
