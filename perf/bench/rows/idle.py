# SPDX-License-Identifier: Apache-2.0
"""CPU time and memory of a picker that polls many servers without requests, and CPU time of one poll."""

import asyncio
import time
from dataclasses import dataclass

from perf.bench.report.samples import Samples
from perf.bench.rows.plan import Plan
from perf.rig.pickers import PickerKind
from perf.rig.stand import Loader, Stand, stand

SMALL = 8
SIZES = (SMALL, 100, 1000)
POLLED = 100
"""Size of the pool whose polls are counted."""
_ROUNDS, _SECONDS = 3, 70.0


@dataclass(frozen=True)
class _Extent:
    settle: float
    """Seconds until polls of idle servers have reached their longest interval."""
    idle: float
    most_servers: int


async def measure(plan: Plan, samples: Samples) -> None:
    """Start each picker with each pool, in each round."""
    extent = _Extent(settle=plan.scaled(50, 5) / 10, idle=plan.scaled(40, 10) / 10, most_servers=plan.scaled(1000, 200))
    async with plan.loader() as load:
        for number in plan.rounds_of("idle", _ROUNDS, seconds=_SECONDS):
            for size in SIZES:
                for kind in plan.turns(plan.kinds if size == SMALL else plan.programs, number):
                    await _one(load, kind, size, extent, samples)
        most = plan.scaled(5000, 200)
        plan.tell(f"idle: {most} servers, and as many that refuse")
        async with stand(load, plan.kinds[0], servers=most, refusing=most, settings={}) as found:
            await asyncio.sleep(extent.settle)
            samples.add("idle-5000", found.name, await found.idle_cores(extent.idle))
            samples.add("memory-5000", found.name, found.picker.memory_mib)


async def _one(load: Loader, kind: PickerKind, size: int, extent: _Extent, samples: Samples) -> None:
    async with stand(load, kind, servers=min(size, extent.most_servers), settings={}) as found:
        await asyncio.sleep(extent.settle)
        samples.add(f"idle-{size}", kind.name, await found.idle_cores(extent.idle))
        samples.add(f"memory-{size}", kind.name, found.picker.memory_mib)
        if size == POLLED:
            await found.moving_gauges()
            await asyncio.sleep(extent.settle)
            samples.add("scrape", kind.name, await poll_microseconds(found, extent.idle))


async def poll_microseconds(found: Stand, seconds: float) -> float:
    """Return the CPU time of the picker per poll of a server whose gauges change."""
    polls, before, started = await found.polls(), found.picker.cpu_seconds, time.perf_counter()
    while await found.polls() - polls < POLLED or time.perf_counter() - started < seconds:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    used = found.picker.cpu_seconds - before
    return used / (await found.polls() - polls) * 1e6
