# SPDX-License-Identifier: Apache-2.0
"""What workers cost, give and lose: CPU time of a request, requests a second, failures: `make bench-scale`."""

import argparse
import asyncio
import json
import os
import signal
import statistics
from contextlib import AsyncExitStack

import msgspec

from perf.rig.envoy import FULL_DUPLEX
from perf.rig.pickers import own
from perf.rig.processes import children
from perf.rig.stand import Load, Stand, loader, stand

SERVERS = 8
_ENVOY = {"": msgspec.structs.replace(FULL_DUPLEX, concurrency=2)}
_CLOSED = Load(2000, connections=32)
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
    """Return figures by number of workers."""
    numbers = [int(each) for each in given.workers.split(",")]
    figures: dict[str, dict[str, list[float]]] = {}
    async with loader() as load, AsyncExitStack() as stack:
        stands = {
            number: await stack.enter_async_context(
                stand(
                    load,
                    own("asyncio", name=f"{number} workers", more=f" --workers={number}"),
                    servers=SERVERS,
                    settings=_ENVOY,
                )
            )
            for number in numbers
        }
        sent = 0
        for round_number in range(given.rounds + 1):
            for number, found in stands.items():
                idle = await found.idle_cores(1.0)
                outcome = await found.served(_CLOSED, sent)
                if round_number:  # the first is to warm up
                    rows = figures.setdefault(str(number), {})
                    each = (outcome.cpu_seconds - idle * outcome.seconds) / outcome.requests
                    rows.setdefault("CPU of a request, us", []).append(each * 1e6)
                    rows.setdefault("requests a second", []).append(outcome.requests / outcome.seconds)
                    rows.setdefault("p99, ms", []).append(outcome.p99 * 1e3)
                    rows.setdefault("CPU at rest, % of a core", []).append(idle * 100)
                    rows.setdefault("memory, MiB", []).append(found.picker.memory_mib)
                sent += _CLOSED.requests
        for number, found in stands.items():
            if number > 1:
                figures[str(number)] |= await _killed(found, given.rate, sent)
    return {
        number: {name: statistics.median(values) for name, values in rows.items()} for number, rows in figures.items()
    }


async def _killed(found: Stand, rate: float, first: int) -> dict[str, list[float]]:
    """Kill a worker in the middle of a run; return how many requests failed."""
    requests = int(3 * rate)
    running = asyncio.create_task(found.run(Load(requests, rate=rate), first))
    await asyncio.sleep(_KILL_AFTER_SECONDS)
    os.kill(children(found.picker.child.pid)[0], signal.SIGKILL)
    outcome = await running
    return {f"failed of {requests} as a worker was killed": [outcome.failed]}


def main() -> None:
    given = arguments()
    found = asyncio.run(measure(given))
    if given.json:
        print(json.dumps(found, indent=1))
        return
    names = dict.fromkeys(name for rows in found.values() for name in rows)
    print(f"{'workers':44}" + "".join(f"{number:>10}" for number in found))
    for name in names:
        print(f"{name:44}" + "".join(f"{rows[name]:10.1f}" if name in rows else f"{'':10}" for rows in found.values()))


if __name__ == "__main__":
    main()
