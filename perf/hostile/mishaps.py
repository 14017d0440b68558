# SPDX-License-Identifier: Apache-2.0
"""Faults without an attack: reloads, model servers that die, clocks that jump."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import struct
import subprocess
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from epp.lab.gateway.settings import ClusterType
from perf.hostile.behind_envoy import Behind, behind_envoy
from perf.hostile.scene import HERE, WIDE, Campaign, attack_with
from tests.support.config_files import ConfigMap, replace
from tests.support.killed_servers import Campaign as Toll
from tests.support.killed_servers import Sent, kill_in_turn, mortals, simulated_server
from tests.support.waiting import until

OTHER = WIDE.replace("active-request-scorer", "queue-scorer")
_BROKEN = WIDE[: len(WIDE) // 2] + "\n  - {"
_LOST_SHARE = 1 / 1000
_DAY = 86_400


@contextlib.asynccontextmanager
async def under_load(behind: Behind, campaign: Campaign, clients: int = 4) -> AsyncIterator[dict[str, Any]]:
    """Let clients send requests until the block ends; their results are complete afterwards."""
    host, port = behind.address
    for name in ("begun", "stop"):
        (campaign.folder / name).unlink(missing_ok=True)
    attacker, said = await behind.scene.new_attacker(), dict[str, Any]()
    order = {"host": host, "port": port, "seconds": 3600, "clients": clients, "files": str(campaign.folder)}
    asking = asyncio.create_task(attack_with(attacker, "visitors", "load", **order))
    await until((campaign.folder / "begun").exists, "the first client is answered", seconds=60)
    try:
        yield said
    finally:
        (campaign.folder / "stop").touch()
        said.update(await asking)


def judge_load(campaign: Campaign, said: dict[str, Any], least: int) -> None:
    """Check that every client was answered with 200."""
    statuses = dict(said["statuses"])
    campaign.judge.at_least("requests answered with 200", statuses.pop("200", 0), least)
    campaign.judge.exactly("answered otherwise", statuses or "none", "none")
    campaign.judge.shows("slowest", said["slowest"] * 1e3, "ms")


async def reloads(campaign: Campaign) -> None:
    """50 reloads of a configuration and some broken versions of it, under load."""
    file, count = campaign.folder / "config.yaml", campaign.of(50, 20)
    replace(file, WIDE)
    async with behind_envoy(campaign, f"--config-file={file}") as behind:
        async with under_load(behind, campaign) as said:
            refused = await _change(behind, count, lambda text: replace(file, text), broken_each=5)
        judge_load(campaign, said, 20)
        campaign.judge.exactly("versions in effect", await _config(behind, "generation"), count + 1)
        campaign.judge.exactly("broken versions refused", refused, count // 5)
        await behind.scene.judge_rest()


async def symlink_swaps(campaign: Campaign) -> None:
    """15 versions of a ConfigMap, replaced as Kubernetes does it, under load."""
    count = campaign.of(15, 15)
    (folder := campaign.folder / "mounted").mkdir()
    mounted = ConfigMap(folder, config=WIDE)
    async with behind_envoy(campaign, f"--config-file={folder / 'config.yaml'}") as behind:
        async with under_load(behind, campaign) as said:
            await _change(behind, count, lambda text: mounted.update(config=text))
        judge_load(campaign, said, 20)
        campaign.judge.exactly("versions in effect", await _config(behind, "generation"), count + 1)
        await behind.scene.judge_rest()


async def _change(behind: Behind, count: int, write: Any, broken_each: int = 0) -> int:
    """Write one version after the other, each when the previous one is active; return the number of refusals."""
    refused = 0
    for number in range(1, count + 1):
        if broken_each and number % broken_each == 0:
            write(_BROKEN + f" # {number}")
            await until(lambda: _is(behind, "last_reload_successful", 0), "the broken version is refused", seconds=30)
            refused += 1
        write(f"{OTHER if number % 2 else WIDE}# version {number}\n")
        await until(lambda number=number: _is(behind, "generation", number + 1), "the version counts", seconds=30)
    return refused


async def _config(behind: Behind, name: str) -> float:
    return sum((await behind.scene.metrics())[f"llm_d_epp_config_{name}"].values())


async def _is(behind: Behind, name: str, value: float) -> bool:
    return await _config(behind, name) == value


async def dying_servers(campaign: Campaign) -> None:
    """Model servers that are killed and restarted, one after the other, without retries in Envoy."""
    await _let_servers_die(campaign, ClusterType.ORIGINAL_DST)


async def dying_servers_with_retries(campaign: Campaign) -> None:
    """Model servers that are killed, with fallbacks and Envoy's retries: clients are not affected."""
    await _let_servers_die(campaign, ClusterType.OVERRIDE_HOST)


async def _let_servers_die(campaign: Campaign, cluster_type: ClusterType) -> None:
    kills, judge = campaign.of(16, 2), campaign.judge
    async with mortals(4, simulated_server) as servers:
        pool = [server.address for server in servers]
        async with behind_envoy(campaign, servers=pool, cluster_type=cluster_type) as behind:
            toll = Toll()
            async with under_load(behind, campaign, clients=8) as said:
                await kill_in_turn(servers, toll.deaths, kills=kills, between_seconds=2)
            statuses = dict(said["statuses"])
            total, good = sum(statuses.values()), statuses.pop("200", 0)
            toll.sent += [Sent(began, ended, 0, complete=False) for began, ended in said["lost"]]
            judge.at_least("requests answered with 200", good, 100)
            judge.shows("servers killed", len(toll.deaths))
            judge.shows("requests lost that were under way at a kill", len(toll.lost_at_death))
            if statuses:
                judge.shows(f"answered otherwise: {statuses}", total - good)
            if cluster_type is ClusterType.OVERRIDE_HOST:
                judge.at_most("requests lost that were sent after one", len(toll.lost_after), 0)
            else:
                judge.at_most("requests lost that were sent after one", len(toll.lost_after), total * _LOST_SHARE)
            if campaign.size == "full":
                judge.at_most("requests lost in all", len(toll.lost), total * _LOST_SHARE)
            await behind.scene.judge_rest()


async def clock_jumps(campaign: Campaign) -> None:
    """Under load, the wall clock jumps by days and years in both directions, and the process is suspended."""
    compiler = shutil.which("cc")
    if compiler is None:
        campaign.judge.shows("left out: there is no C compiler for the clock", 0)
        return
    library, offset = campaign.folder / "jumping_clock.so", campaign.folder / "offset"
    source = str(HERE / "jumping_clock.c")
    await asyncio.to_thread(
        subprocess.run, [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), source, "-ldl"], check=True
    )
    offset.write_bytes(struct.pack("<q", 0))
    environment = {"LD_PRELOAD": str(library), "JUMPING_CLOCK": str(offset)}
    async with behind_envoy(campaign, environment=environment) as behind:
        async with behind.scene.beside() as seen, under_load(behind, campaign) as said:
            created = _logged_time(behind)
            for jump in (_DAY, -2 * _DAY, 3650 * _DAY, -3650 * _DAY, 3600, 0):
                with offset.open("r+b") as file:
                    file.write(struct.pack("<q", jump))
                await asyncio.sleep(campaign.of(5, 1))
                if jump == _DAY:
                    campaign.judge.at_least("seconds that its clock has jumped", _logged_time(behind) - created, 8e4)
            await _stop_for(behind, 2)
            await asyncio.sleep(1)
        judge_load(campaign, said, 20)
        if campaign.size == "full":  # long enough for Envoy to mark the picker as unhealthy
            await _stop_for(behind, 30)
            await asyncio.sleep(10)
            async with under_load(behind, campaign) as said:
                await asyncio.sleep(3)
            judge_load(campaign, said, 20)
        behind.scene.judge_beside(seen, longest=None)
        await behind.scene.judge_rest()


async def _stop_for(behind: Behind, seconds: float) -> None:
    """Suspend the picker's process, as on a suspended machine."""
    os.kill(behind.scene.pid, signal.SIGSTOP)
    await asyncio.sleep(seconds)
    os.kill(behind.scene.pid, signal.SIGCONT)


def _logged_time(behind: Behind) -> float:
    """Return the wall clock of the picker's process, from the last line of its log."""
    newest = next(line for line in reversed(behind.scene.served.command.err) if '"ts":' in line)
    return datetime.fromisoformat(json.loads(newest)["ts"]).timestamp()
