# SPDX-License-Identifier: Apache-2.0
"""Send three times as many requests as the servers can serve: `python -m perf.overload.run [SECONDS]`."""

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median
from time import monotonic

import aiohttp

from perf.overload.clients import MEAN_TOKENS, Tenant, again_when_told, at_rate, new_session, one_by_one
from perf.overload.shares_and_waits import median_rate, undisturbed, windows_of
from perf.overload.stage import HIGH, LOW, NORMAL, PLACES, Stage, open_stage
from perf.overload.verdict import Measured, Verdict
from perf.overload.watching import Watch, process, saturation, under_way

_SHARES = (
    ("high", HIGH, 0.15),
    ("normal", NORMAL, 0.15),
    ("calm-a", LOW, 0.1),
    ("calm-b", LOW, 0.1),
    ("flood", LOW, 2.3),
)
"""Names, objectives, and rates as shares of capacity. Low priority is served with the remaining capacity."""
_PATIENT = 40
"""Number of clients of one tenant of low priority; each retries after its `retry-after`."""
_IDLE_CLIENTS = 3
_END_SECONDS = 20.0


async def calibrate(stage: Stage, watch: Watch, seconds: float) -> tuple[Tenant, list[float]]:
    """Return requests of high priority through an idle gateway, and rates of servers under direct load."""
    idle, direct = Tenant("idle", HIGH), Tenant("direct", HIGH)
    await one_by_one([stage.gateway], idle, seconds, _IDLE_CLIENTS)
    started = monotonic()
    await one_by_one(stage.servers, direct, seconds, 2 * PLACES)
    # without the start, before the first request ends, and the end, when servers become idle
    windows = windows_of(started + min(3.0, seconds / 4), started + seconds)
    return idle, [median_rate(direct.answers, undisturbed(windows, watch.stalls) or windows)]


async def measure(stage: Stage, seconds: float, calibration_seconds: float) -> Measured:
    """Calibrate, overload, wait for the end, and calibrate again."""
    async with watching(stage) as watch:
        idle, rates = await calibrate(stage, watch, calibration_seconds)
        capacity = rates[0] / MEAN_TOKENS
        before = process(stage.pid)
        tenants = [Tenant(name, objective) for name, objective, _ in _SHARES]
        patient = Tenant("patient", LOW)
        start, memory_from = monotonic(), len(watch.memory)
        end = start + seconds
        async with new_session() as session, asyncio.TaskGroup() as group:
            for tenant, (_, _, share) in zip(tenants, _SHARES, strict=True):
                group.create_task(at_rate(session, stage.gateway, tenant, share * capacity, end))
            group.create_task(again_when_told(session, stage.gateway, patient, _PATIENT, end))
        memory = watch.memory[memory_from:]
        async with aiohttp.ClientSession() as session:
            await watch.look_at_servers(session)
        left, full = await _after_the_end(stage)
        after = process(stage.pid)
        more, again = await calibrate(stage, watch, calibration_seconds)
        return Measured(
            idle=[*idle.good(), *more.good()],
            capacity=median([*rates, *again]),
            tenants=[*tenants, patient],
            began=start,
            start=start + min(10.0, seconds / 4),  # until the queues are full
            end=end,
            stalls=watch.stalls,
            memory=memory,
            before=before,
            after=after,
            at_servers=watch.at_servers(),
            under_way=left,
            saturation=full,
        )


async def _after_the_end(stage: Stage) -> tuple[dict[str, float], float]:
    """Return the number of requests in flight, when there are none or after a timeout."""
    end = monotonic() + _END_SECONDS
    while True:
        left, full = await under_way(stage), await saturation(stage)
        if monotonic() > end or not (any(left.values()) or full):
            return left, full
        await asyncio.sleep(0.5)


@contextlib.asynccontextmanager
async def watching(stage: Stage) -> AsyncIterator[Watch]:
    """Watch the processes until the block ends."""
    watch = Watch(stage)
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def main(seconds: float, calibration_seconds: float, *, any_machine: bool) -> int:
    """Return 0 if all checks pass."""
    with tempfile.TemporaryDirectory() as folder:
        async with open_stage(Path(folder)) as stage:
            verdict = Verdict(await measure(stage, seconds, calibration_seconds))
    for line in verdict.table():
        print(line)
    print()
    wrong = 0
    for check in verdict.checks():
        is_judged = not (any_machine and check.is_of_time)
        wrong += is_judged and not check.holds
        said = "ok" if check.holds else "WRONG" if is_judged else "not judged"
        print(f"{check.title:56} {check.figure:32} {said}")
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=300.0, help="of overload; by default five minutes")
    parser.add_argument("--calibration", type=float, default=20.0, help="seconds of each of four calibrations")
    parser.add_argument("--any-machine", action="store_true", help="check only what does not depend on its speed")
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.seconds, given.calibration, any_machine=given.any_machine)))
