# SPDX-License-Identifier: Apache-2.0
"""A plugin that holds up the event loop is named in the log."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.support.blocking import CONFIG, SECONDS
from tests.support.commands import command
from tests.support.serving import ANY_PORT, PLAIN, destination_of, served_by

MODULES = Path(__file__).parents[1] / "support"


async def test_plugin_that_holds_up_the_loop_is_named(simulated: Callable):
    sims = await simulated("only")
    flags = f"--config-text={CONFIG}", "--allow-plugin-modules=blocking", PLAIN, *ANY_PORT
    endpoints = f"--endpoints=only={sims['only'].address}"
    async with command("serve", endpoints, *flags, PYTHONPATH=str(MODULES)) as process:
        served = await served_by(process)
        async with served.channel() as channel:
            assert await destination_of(channel) == sims["only"].address
        line = json.loads(await process.says('"msg":"event loop delayed"'))
    assert (line["plugin"], line["level"]) == ("blocking", "warn")
    assert SECONDS / 2 < line["plugin_seconds"] < 20 * SECONDS


async def test_threshold_of_zero_logs_nothing(simulated: Callable):
    sims = await simulated("only")
    flags = (f"--config-text={CONFIG}", "--allow-plugin-modules=blocking", "--stall-threshold=0", PLAIN, *ANY_PORT)
    endpoints = f"--endpoints=only={sims['only'].address}"
    async with command("serve", endpoints, *flags, PYTHONPATH=str(MODULES)) as process:
        served = await served_by(process)
        async with served.channel() as channel:
            await destination_of(channel)
            await destination_of(channel)  # a line on the first one would be there by now
        assert "event loop delayed" not in str(process)
