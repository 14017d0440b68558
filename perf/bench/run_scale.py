# SPDX-License-Identifier: Apache-2.0
"""Costs and benefits of workers: CPU time per request, requests per second, failures: `make bench-scale`."""

import argparse
import asyncio
import json
import os
import signal
import statistics

import msgspec

from perf.rig.envoy import FULL_DUPLEX
from perf.rig.pickers import own
from perf.rig.processes import children
from perf.rig.stand import Load, Outcome, Stand, loader, stand

SERVERS = 8
_ENVOY = {"": msgspec.structs.replace(FULL_DUPLEX, concurrency=2)}
_CLOSED = Load(3000, connections=32)
_OPEN_SECONDS = 6.0
_EACH_RATE = 150.0
"""Requests per second and worker."""
_KILL_AFTER_SECONDS = 1.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Pickers of one, two and more processes behind an Envoy with two threads, one after the other."
    )
    parser.add_argument(
        "--workers", default="1,2", help="numbers of workers, separated by commas; the first is compared"
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--rate", type=float, default=500.0, help="requests a second while a worker is killed")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


async def measure(given: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return figures by number of workers: medians over the rounds, each with a new picker."""
    figures: dict[int, dict[str, list[float]]] = {int(each): {} for each in given.workers.split(",")}
    async with loader() as load:
        for _ in range(given.rounds):
            for number, rows in figures.items():
                kind = own("asyncio", name=f"{number} workers", more=f" --workers={number}")
                async with stand(load, kind, servers=SERVERS, settings=_ENVOY) as found:
                    for name, value in (await _figures(found, number, given.rate)).items():
                        rows.setdefault(name, []).append(value)
    return {
        str(number): {name: statistics.median(values) for name, values in rows.items()}
        for number, rows in figures.items()
    }


async def _figures(found: Stand, number: int, rate: float) -> dict[str, float]:
    await found.served(_CLOSED, 0)  # warm-up
    idle = await found.idle_cores(2.0)
    outcome = await found.served(_CLOSED, _CLOSED.requests)
    for_each = Load(_CLOSED.requests, connections=_CLOSED.connections * number)
    loaded = await found.served(for_each, 2 * _CLOSED.requests)
    open_loop = Load(int(_OPEN_SECONDS * _EACH_RATE * number), connections=32, rate=_EACH_RATE * number)
    paced = await found.served(open_loop, 3 * _CLOSED.requests)
    figures = {
        "CPU of a request, us": _microseconds(outcome, idle),
        f"the same, {_CLOSED.connections} connections for each worker, us": _microseconds(loaded, idle),
        f"the same, {_EACH_RATE:.0f} requests a second for each worker, us": _microseconds(paced, idle),
        "requests a second": outcome.requests / outcome.seconds,
        "p99, ms": outcome.p99 * 1e3,
        "CPU at rest, % of a core": idle * 100,
        "memory, MiB": found.picker.memory_mib,
    }
    return figures if number == 1 else figures | await _killed(found, rate, 4 * _CLOSED.requests)


def _microseconds(outcome: Outcome, idle: float) -> float:
    """Return the CPU time of a request, without that of an idle picker."""
    return (outcome.cpu_seconds - idle * outcome.seconds) / outcome.requests * 1e6


async def _killed(found: Stand, rate: float, first: int) -> dict[str, float]:
    """Kill a worker in the middle of a run; return the number of failed requests."""
    requests = int(3 * rate)
    running = asyncio.create_task(found.run(Load(requests, rate=rate), first))
    await asyncio.sleep(_KILL_AFTER_SECONDS)
    os.kill(children(found.picker.child.pid)[0], signal.SIGKILL)
    outcome = await running
    return {f"failed of {requests} as a worker was killed": outcome.failed}


def main() -> None:
    given = arguments()
    found = asyncio.run(measure(given))
    if given.json:
        print(json.dumps(found, indent=1))
        return
    names = dict.fromkeys(name for rows in found.values() for name in rows)
    print(f"{'workers':52}" + "".join(f"{number:>10}" for number in found))
    for name in names:
        print(f"{name:52}" + "".join(f"{rows[name]:10.1f}" if name in rows else f"{'':10}" for rows in found.values()))


if __name__ == "__main__":
    main()
