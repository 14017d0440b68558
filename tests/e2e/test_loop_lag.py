# SPDX-License-Identifier: Apache-2.0
"""A plugin that holds up the event loop is named in the log."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.blocking import CONFIG, SECONDS
from tests.support.commands import command
from tests.support.serving import ANY_PORT, PLAIN, Served, destination_of, served_by

MODULES = Path(__file__).parents[1] / "support"


@pytest.fixture
async def picker(sim, request) -> AsyncIterator[Served]:
    """A picker with such a plugin, and the flags of the test."""
    flags = (f"--endpoints=only={sim.address}", f"--config-text={CONFIG}", "--allow-plugin-modules=blocking", PLAIN)
    more = getattr(request, "param", ())
    async with command("serve", *ANY_PORT, *flags, *more, PYTHONPATH=str(MODULES)) as process:
        yield await served_by(process)


async def test_plugin_that_holds_up_the_loop_is_named(picker, sim):
    async with picker.channel() as channel:
        assert await destination_of(channel) == sim.address
    line = json.loads(await picker.command.says('"msg":"event loop delayed"'))
    assert (line["plugin"], line["level"]) == ("blocking", "warn")
    assert SECONDS / 2 < line["plugin_seconds"] < 20 * SECONDS


@pytest.mark.parametrize("picker", [("--stall-threshold=0",)], indirect=True)
async def test_threshold_of_zero_logs_nothing(picker):
    async with picker.channel() as channel:
        await destination_of(channel)
        await destination_of(channel)  # a line on the first one would be there by now
    assert "event loop delayed" not in str(picker.command)
