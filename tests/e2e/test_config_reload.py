# SPDX-License-Identifier: Apache-2.0
"""An edited configuration file takes effect in a running picker; a bad one changes nothing, and it says why."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.config_files import endpoints_file, picker_config, replace, with_pool
from tests.support.gateways import gateway_with
from tests.support.load import load_on
from tests.support.serving import PLAIN, destination_of, serving
from tests.support.world import client_of, endless, rest_of

ONLY = picker_config("""
plugins:
- type: label-selector-filter
  parameters: {matchLabels: {group: GROUP}}
- type: queue-scorer
schedulingProfiles: [{name: default, plugins: [{pluginRef: label-selector-filter}, {pluginRef: queue-scorer}]}]
""")


@dataclass(frozen=True)
class Files:
    """A configuration that keeps one group of servers, and the two servers: `a` in group `one`, `b` in `other`."""

    config: Path
    pool: Path

    def text(self, group: str) -> str:
        return with_pool(ONLY.replace("GROUP", group), self.pool)

    def keep(self, group: str) -> None:
        replace(self.config, self.text(group))


@pytest.fixture
async def files(simulated: Callable, tmp_path: Path) -> Files:
    a, b = (await simulated("a", "b")).values()
    pool = endpoints_file(
        tmp_path / "endpoints.yaml", a=(a.address, {"group": "one"}), b=(b.address, {"group": "other"})
    )
    files = Files(tmp_path / "config.yaml", pool)
    files.keep("one")
    return files


async def test_edited_file_moves_all_traffic_and_no_request_is_lost(files: Files, record_testsuite_property):
    async with gateway_with(files.config) as gateway, client_of(gateway.url) as client:
        stream = await endless(client, 1_000)
        async with load_on(gateway.url, long=0) as load:
            assert await load.answered_after(0) == {"a"}

            edited = time.monotonic()
            files.keep("other")
            await gateway.process.says('"msg":"configuration applied"')

            assert await load.answered_after(time.monotonic()) == {"b"}
        moved = min(answer.ended for answer in load.answers if answer.server == "b")
        record_testsuite_property("seconds until an edited configuration is in effect", round(moved - edited, 3))
        assert not [answer for answer in load.answers if answer.started > moved and answer.server == "a"]
        await rest_of(stream)  # begun before the edit, at a server that gets no more requests
        assert await gateway.config_metrics() == {"generation": 2, "last_reload_successful": 1, "reloads_total": 1}


async def test_bad_file_changes_nothing_and_is_explained_until_there_is_a_good_one(files: Files):
    async with gateway_with(files.config) as gateway, load_on(gateway.url, long=0) as load:
        assert await gateway.health() == (200, healthy(generation=1))
        bad = files.text("other").replace("matchLabels", "matchLabel")
        (line,) = [number for number, line in enumerate(bad.splitlines(), 1) if "matchLabel" in line]
        column = bad.splitlines()[line - 1].index("matchLabel") + 1

        replace(files.config, bad)

        reason = json.loads(await gateway.process.says("configuration rejected"))["reason"]
        assert reason.startswith(f"{files.config}:{line}:{column}: plugins[0].parameters.matchLabel: ")
        assert "did you mean 'matchLabels'?" in reason
        assert await load.answered_after(time.monotonic()) == {"a"}
        assert await gateway.config_metrics() == {"generation": 1, "last_reload_successful": 0, "reloads_total": 1}
        assert await gateway.health() == (200, healthy(generation=1, refused=reason))

        files.keep("one")  # what is in effect anyway

        await gateway.process.says("configuration file is back to the version in effect")
        assert await gateway.config_metrics() == {"generation": 1, "last_reload_successful": 1, "reloads_total": 1}
        assert await gateway.health() == (200, healthy(generation=1))

        files.keep("other")

        await gateway.process.says('"msg":"configuration applied"')
        assert await load.answered_after(time.monotonic()) == {"b"}
        assert await gateway.health() == (200, healthy(generation=2))


def healthy(*, generation: int, refused: str | None = None) -> dict:
    config = {"generation": generation, "refused": refused}
    nothing_wrong = {"failing_tasks": {}, "lost_log_lines": 0, "not_in_effect": [], "ignored_values": []}
    pool = {"pool": "default", "endpoints": 2, "reachable": 2, "unreachable": [], "attention": []}
    return {"ready": True, **pool, "config": config, "inherited_requests": 0, **nothing_wrong}


async def test_file_that_is_not_watched_may_be_edited_without_effect(files: Files):
    watch_nothing = "--watch-config-file=false"
    async with serving(None, PLAIN, f"--config-file={files.config}", watch_nothing) as served:
        files.keep("other")
        # Another file in that directory, which is followed, and edited later: once it is seen, so was the first.
        endpoints_file(files.pool, a=("10.0.0.1:8000", {"group": "one"}), b=("10.0.0.2:8000", {"group": "other"}))
        await served.command.says('"msg":"endpoints file applied"')
        async with served.channel() as channel:
            assert await destination_of(channel) == "10.0.0.1:8000"
        assert (await served.metrics())["llm_d_epp_config_generation"] == {frozenset(): 1}
