# SPDX-License-Identifier: Apache-2.0
"""A plugin that holds up the event loop is named: by a metric, on /healthz and in the log."""

import json
from collections.abc import Callable
from pathlib import Path

import aiohttp
from blocking import CONFIG, SECONDS
from commands import command
from serving import ANY_PORT, PLAIN, Served, destination_of, served_by
from waiting import until

WHERE = "blocking:Blocking.compute"
TESTS = Path(__file__).parent


async def stalls(served: Served) -> float:
    found = (await served.metrics()).get("llm_d_epp_event_loop_stalls_total", {})
    return found.get(frozenset({f"where={WHERE}"}), 0.0)


async def test_plugin_that_holds_up_the_loop_is_named(simulated: Callable):
    sims = await simulated("only")
    flags = (
        f"--endpoints=only={sims['only'].address}",
        f"--config-text={CONFIG}",
        "--allow-plugin-modules=blocking",
        "--stall-threshold=50ms",
        PLAIN,
        *ANY_PORT,
    )
    async with command("serve", *flags, PYTHONPATH=str(TESTS)) as process:
        served = await served_by(process)
        async with served.channel() as channel:
            assert await destination_of(channel) == sims["only"].address

        async def counted() -> bool:
            return await stalls(served) >= 1

        await until(counted, "the stall is counted")
        line = json.loads(await process.says('"msg":"event loop stalled"'))
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://127.0.0.1:{served.metrics_port}/healthz") as page,
        ):
            health = await page.json()
    assert (line["where"], line["level"]) == (WHERE, "warn")
    assert line["calls"][0].startswith(WHERE)
    assert any(call.startswith("blocking:Blocking.admit:") for call in line["calls"])
    assert health["longest_stall"]["where"] == WHERE
    assert SECONDS / 2 < health["longest_stall"]["seconds"] < 20 * SECONDS


async def test_threshold_of_zero_names_nothing(simulated: Callable):
    sims = await simulated("only")
    flags = (f"--config-text={CONFIG}", "--allow-plugin-modules=blocking", "--stall-threshold=0", PLAIN, *ANY_PORT)
    endpoints = f"--endpoints=only={sims['only'].address}"
    async with command("serve", endpoints, *flags, PYTHONPATH=str(TESTS)) as process:
        served = await served_by(process)
        async with served.channel() as channel:
            await destination_of(channel)
            await destination_of(channel)  # what the first one did would be counted by now
        assert await stalls(served) == 0
        assert "event loop stalled" not in str(process)
