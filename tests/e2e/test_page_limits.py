# SPDX-License-Identifier: Apache-2.0
"""Limits on what model servers answer, reached with real pickers: requests go on, and operators see which and where."""

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from epp.lab.sim.server import running
from tests.support.commands import memory_kib
from tests.support.hostile_servers import HONEST, HostileServer, answering, answers, series, whole
from tests.support.serving import PLAIN, Served, destination_of, serving
from tests.support.waiting import until
from tests.support.world import FAST

LIMITED = "llm_d_epp_datalayer_page_limits_total"
LAG = "llm_d_epp_event_loop_lag_seconds_bucket"
MANY = HONEST + series("vllm:prefix_cache_hits_total", 60, lambda number: f'engine="{number}"')


@dataclass
class Beside:
    """A picker for a server that is well and a hostile one."""

    served: Served
    hostile: HostileServer

    async def limited(self) -> set[str]:
        """The limits that pages went beyond."""
        found = (await self.served.metrics()).get(LIMITED, {})
        return {label.removeprefix("limit=") for labels in found for label in labels if label.startswith("limit=")}

    async def condition(self) -> dict[str, object]:
        """What `/healthz` says of the hostile server; nothing while it is well."""
        _, health = await self.served.health_page()
        return next((one for one in health["attention"] if one["endpoint"] == "hostile"), {})


@contextlib.asynccontextmanager
async def beside(answer, *flags: str) -> AsyncIterator[Beside]:
    async with running(FAST) as sim, answering(answer) as hostile:
        pool = f"--endpoints=well={sim.address},hostile={hostile.address}"
        async with serving(None, pool, PLAIN, *flags) as served:
            yield Beside(served, hostile)


@pytest.mark.parametrize(
    ("answer", "flags", "limit", "flag"),
    [
        (whole(MANY), ("--max-page-series=50",), "family_series", "--max-page-series"),
        (answers()["trickle"](), (), "page_seconds", "timeout of the source"),
    ],
    ids=["series of a name", "time"],
)
async def test_each_limit_is_reached_counted_and_named_with_its_remedy(answer, flags, limit, flag):
    async with beside(answer, *flags) as picker:

        async def is_counted() -> bool:
            return await picker.limited() == {limit}

        async def is_named() -> bool:
            return flag in str((await picker.condition()).get("remedy"))

        await until(is_counted, f"{limit} is counted")
        await until(is_named, f"/healthz names {flag}")
        assert (await picker.condition())["used"] is True
        line = json.loads(await picker.served.command.says('"msg":"endpoints"'))
        assert flag in line["attention"][0]["remedy"]
        async with picker.served.channel() as channel:
            assert await destination_of(channel)


@pytest.mark.parametrize("kind", ["series", "tiny chunks", "endless"])
async def test_requests_go_on_beside_a_hostile_page(kind):
    async with beside(answers()[kind]()) as picker, picker.served.channel() as channel:
        await until(lambda: picker.hostile.asked >= 2, "its page was asked for again")
        for _ in range(20):
            await destination_of(channel)
        lags = (await picker.served.metrics())[LAG]
        assert _count(lags, "+Inf") - _count(lags, "0.25") <= 1, lags  # the start aside; it was seconds


def _count(lags: dict[frozenset[str], float], edge: str) -> float:
    return lags[frozenset({f"le={edge}"})]


async def test_memory_stays_low_while_ten_servers_send_all_they_may():
    async with contextlib.AsyncExitStack() as stack:
        answer = answers()["series"]()
        servers = [await stack.enter_async_context(answering(answer)) for _ in range(10)]
        pool = ",".join(f"h{number}={server.address}" for number, server in enumerate(servers))
        served = await stack.enter_async_context(serving(None, f"--endpoints={pool}", PLAIN))
        await until(lambda: all(server.asked >= 3 for server in servers), "each was asked thrice", seconds=60)
        assert memory_kib(served.command.pid, "VmHWM") < 160 * 1024  # ten pages alone are 77


async def test_picker_stops_while_pages_never_end():
    async with beside(answers()["endless"]()) as picker:
        await until(lambda: picker.hostile.asked >= 1, "it was asked")
        picker.served.command.terminate()
        assert await picker.served.command.end() == 0
