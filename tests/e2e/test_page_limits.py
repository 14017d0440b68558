# SPDX-License-Identifier: Apache-2.0
"""Model servers whose pages are hostile, beside a real picker: requests go on, and its memory stays low."""

import contextlib
from collections.abc import AsyncIterator

import pytest

from epp.lab.sim.server import running
from tests.support.commands import memory_kib
from tests.support.hostile_servers import HONEST, HostileServer, answering, answers, series, whole
from tests.support.serving import PLAIN, Served, destination_of, serving
from tests.support.waiting import until
from tests.support.world import FAST

LIMITED = "llm_d_epp_datalayer_page_limits_total"
LAG = "llm_d_epp_event_loop_lag_seconds_bucket"


async def test_limit_is_counted_and_named_with_its_remedy():
    many = HONEST + series("vllm:prefix_cache_hits_total", 60, lambda number: f'engine="{number}"')
    async with (
        answering(whole(many)) as hostile,
        serving(None, f"--endpoints=hostile={hostile.address}", PLAIN, "--max-page-series=50") as served,
    ):

        async def is_named() -> bool:
            _, health = await served.health_page()
            return any("--max-page-series" in str(each.get("remedy")) for each in health["attention"])

        await until(is_named, "/healthz names the flag")
        assert any("limit=family_series" in labels for labels in (await served.metrics())[LIMITED])
        async with served.channel() as channel:
            assert await destination_of(channel) == hostile.address  # the page is used as far as it was read


@contextlib.asynccontextmanager
async def beside(kind: str) -> AsyncIterator[tuple[Served, HostileServer]]:
    """A picker for a server that is well and a hostile one of this kind."""
    async with (
        running(FAST) as sim,
        answering(answers()[kind]()) as hostile,
        serving(None, f"--endpoints=well={sim.address},hostile={hostile.address}", PLAIN) as served,
    ):
        yield served, hostile


@pytest.mark.parametrize("kind", ["series", "tiny chunks", "endless"])
async def test_requests_go_on_beside_a_hostile_page(kind):
    async with beside(kind) as (picker, hostile), picker.channel() as channel:
        await until(lambda: hostile.asked >= 2, "its page was asked for again")
        for _ in range(20):
            await destination_of(channel)
        lags = (await picker.metrics())[LAG]
        every, short = (lags[frozenset({f"le={edge}"})] for edge in ("+Inf", "0.25"))
        assert every - short <= 1, lags  # the start aside; it was seconds


async def test_memory_stays_low_while_ten_servers_send_all_they_may():
    async with contextlib.AsyncExitStack() as stack:
        answer = answers()["series"]()
        servers = [await stack.enter_async_context(answering(answer)) for _ in range(10)]
        pool = ",".join(f"h{number}={server.address}" for number, server in enumerate(servers))
        served = await stack.enter_async_context(serving(None, f"--endpoints={pool}", PLAIN))
        await until(lambda: all(server.asked >= 3 for server in servers), "each was asked thrice", seconds=60)
        assert memory_kib(served.command.pid, "VmHWM") < 160 * 1024  # ten pages alone are 77


async def test_picker_stops_while_pages_never_end():
    async with beside("endless") as (picker, hostile):
        await until(lambda: hostile.asked >= 1, "it was asked")
        picker.command.terminate()
        assert await picker.command.end() == 0
