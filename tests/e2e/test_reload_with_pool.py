# SPDX-License-Identifier: Apache-2.0
"""A configuration that brings another pool along takes effect as one."""

from pathlib import Path

import pytest

from tests.support.config_files import endpoints_file, picker_config, replace, with_pool
from tests.support.load import load_on
from tests.support.world import open_world, until

RELOADS = 20
BY_GROUP = picker_config("""
plugins:
- type: label-selector-filter
  parameters: {matchLabels: {group: GROUP}}
- type: metrics-data-source
  parameters: {timeout: TIMEOUT}
- type: queue-scorer
schedulingProfiles: [{name: default, plugins: [{pluginRef: label-selector-filter}, {pluginRef: queue-scorer}]}]
""")


def config(group: str, pool: Path, timeout: str = "1s") -> str:
    return with_pool(BY_GROUP.replace("GROUP", group).replace("TIMEOUT", timeout), pool)


@pytest.mark.slow
async def test_no_request_meets_the_old_filter_and_the_new_pool(simulated, tmp_path):
    sims = await simulated("a", "b")
    pools = {
        name: endpoints_file(tmp_path / f"pool_{name}.yaml", **{name: (sim.address, {"group": name})})
        for name, sim in sims.items()
    }
    file = tmp_path / "config.yaml"
    replace(file, config("a", pools["a"]))
    async with open_world(config_file=file) as world, load_on(world.url, long=0) as load:
        picker = world.gateway.picker
        for generation in range(2, RELOADS + 2):
            group = "a" if generation % 2 else "b"
            # Another data source each time, so that the one before has to end.
            replace(file, config(group, pools[group], f"{generation}s"))
            await until(lambda g=generation: picker.config.generation == g, f"configuration {generation} is in effect")
            assert world.available == {group}
        assert {answer.server for answer in load.answers} == {"a", "b"}
