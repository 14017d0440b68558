# SPDX-License-Identifier: Apache-2.0
"""Long load with reloads, changing endpoints, servers that die and clients that disconnect: nothing may grow."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from pathlib import Path

from perf.hostile.behind_envoy import Behind, behind_envoy
from perf.hostile.judging import slope
from perf.hostile.mishaps import OTHER, under_load
from perf.hostile.scene import WIDE, Campaign, Reading, attack_with
from perf.hostile.visitors import PHASES
from tests.support.config_files import endpoints_file, replace, with_pool
from tests.support.killed_servers import Mortal, mortals, simulated_server

_SERVERS = 4
_WARM_SHARE = 0.25
"""Share of the time for warm-up, in which caches and memory pools grow."""
_SAMPLE_SECONDS = 1.0
_MOST_LOST = 1 / 100
_MOST_GROWN = {"memory in MiB": 16.0, "descriptors": 8.0, "threads": 2.0, "requests in flight": 4.0}
"""Maximum growth from the first to the last sample after the warm-up, by a linear fit."""


async def soak(campaign: Campaign) -> None:
    """All of it at the same time, half an hour in a full run; memory, descriptors, threads and requests do not grow."""
    folder, judge = campaign.folder, campaign.judge
    config, pool = folder / "config.yaml", folder / "endpoints.yaml"
    async with mortals(_SERVERS, simulated_server) as servers:
        _write_pool(pool, servers)
        replace(config, with_pool(WIDE, pool))
        addresses = [server.address for server in servers]
        async with behind_envoy(campaign, f"--config-file={config}", "-v=1", servers=addresses, named=False) as behind:
            samples: list[tuple[Reading, float]] = []
            done = {"reloads": 0, "changes of the pool": 0, "servers killed": 0, "clients that left": 0}

            async def reload(number: int) -> None:
                replace(config, with_pool(OTHER if number % 2 == 0 else WIDE, pool))
                done["reloads"] += 1

            async def churn(number: int) -> None:
                _write_pool(pool, [each for each in servers if each is not servers[number % _SERVERS]])
                await asyncio.sleep(1)
                _write_pool(pool, servers)
                done["changes of the pool"] += 2

            async def kill(number: int) -> None:
                await servers[number % _SERVERS].end()
                await asyncio.sleep(2)
                await servers[number % _SERVERS].start()
                done["servers killed"] += 1

            async def sample(_: int) -> None:
                samples.append((behind.scene.now(), (await behind.scene.under_way()).get("running", 0.0)))

            leave = await _leaver(behind, done)
            end = time.monotonic() + campaign.soak_seconds
            async with under_load(behind, campaign) as said, asyncio.TaskGroup() as group:
                for act, pause in ((reload, 5.0), (churn, 3.0), (kill, 10.0), (sample, _SAMPLE_SECONDS), (leave, 0.5)):
                    group.create_task(_again_and_again(act, pause, end))
            statuses = said["statuses"]
            total, good = sum(statuses.values()), statuses.get("200", 0)
            judge.at_least("requests answered with 200", good, 100)
            judge.at_most(f"otherwise: {statuses}", total - good, total * _MOST_LOST)
            for what, times in done.items():
                judge.at_least(what, times, 1)
            _judge_flat(campaign, samples)
            await behind.scene.judge_rest()


async def _leaver(behind: Behind, done: dict[str, int]) -> Callable[[int], Awaitable[None]]:
    """Return a function that disconnects clients in alternating phases, and ends streams of another gateway."""
    attacker = await behind.scene.new_attacker()
    host, port = behind.address

    async def leave(number: int) -> None:
        phase = PHASES[number % len(PHASES)]
        said = await attack_with(attacker, "visitors", "leave", host=host, port=port, phase=phase, count=10)
        picker = behind.scene.served.grpc_port
        await attack_with(attacker, "endings", "end_at_random", port=picker, count=20, seed=number)
        done["clients that left"] += said["left"]

    return leave


async def _again_and_again(act: Callable[[int], Awaitable[None]], pause: float, end: float) -> None:
    for number in count():
        if time.monotonic() + pause > end:
            break
        await act(number)
        await asyncio.sleep(pause)


def _write_pool(path: Path, servers: Sequence[Mortal]) -> None:
    endpoints_file(path, **{f"s{server.port}": (server.address, {}) for server in servers})


def _judge_flat(campaign: Campaign, samples: Sequence[tuple[Reading, float]]) -> None:
    warm = samples[int(len(samples) * _WARM_SHARE) :]
    campaign.judge.at_least("samples", len(warm), 10)
    seconds = warm[-1][0].at - warm[0][0].at
    figures: dict[str, list[tuple[float, float]]] = {
        "memory in MiB": [(each.at, each.resident_mib) for each, _ in warm],
        "descriptors": [(each.at, each.descriptors) for each, _ in warm],
        "threads": [(each.at, each.threads) for each, _ in warm],
        "requests in flight": [(each.at, running) for each, running in warm],
    }
    for name, points in figures.items():
        campaign.judge.at_most(f"growth of {name} in {seconds:.0f} s", slope(points) * seconds, _MOST_GROWN[name])
