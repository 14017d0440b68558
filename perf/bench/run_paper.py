# SPDX-License-Identifier: Apache-2.0
"""Scale on paper: the load on each part of many pickers, computed from measured costs: `make bench-paper`."""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from epp.framework.arrays import Floats
from epp.framework.sharing import MOST_PAYLOAD_BYTES
from epp.runtime.addresses import RedisAddress
from epp.sharing.exchange import BATCH_SECONDS
from perf.bench.rows.idle import POLLED, poll_microseconds
from perf.bench.rows.inner import figures_of
from perf.rig.pickers import own
from perf.rig.processes import BenchError, Child, cpu_seconds
from perf.rig.stand import Load, loader, stand

PROMPT_BYTES = 4096
BLOCKS = 16
"""Blocks of a prompt of this size."""
POLLS_PER_SECOND, POLLS_SHARE, LEAST_LEFT = 20.0, 0.2, 0.25
"""Maximum rate per endpoint; share of the event loop's free time for polls; minimum free time to assume."""
NETWORK_BYTES = 1.25e9
"""Bytes per second: 10 Gbit/s."""
_REQUESTS = Load(1500, prompt_bytes=PROMPT_BYTES)
_ENTRY_BYTES, _ENTRIES, _ROUNDS = 16 * 1024, 50, 100
_CHAIN_BYTES, _WORK_ENTRIES = 8 * BLOCKS + 8, MOST_PAYLOAD_BYTES // 80
"""Bytes of a prompt in a payload of placements; endpoints in a payload of work in flight."""


class Costs(msgspec.Struct, frozen=True):
    """CPU seconds on this machine, and bytes."""

    decision: dict[int, float]
    """Cost of a request without a socket, by number of endpoints."""
    request: float
    """Cost of a request with sockets, at 100 endpoints."""
    envoy: float
    """Cost of a request in Envoy."""
    poll: float
    write_batch: float
    write_request: float
    apply_batch: float
    apply_request: float
    batch_bytes: float
    request_bytes: float
    client_write: float
    """Cost of the store's client to write a batch."""
    client_read: float
    client_byte: float
    """Cost per byte read."""
    store_write: float
    """Costs of the store itself."""
    store_read: float
    store_byte: float

    def of_request(self, endpoints: int) -> float:
        """Return the cost of a request with sockets: linear between the measured sizes, and beyond the last one."""
        sizes = sorted(self.decision)
        low, high = next((pair for pair in pairwise(sizes) if endpoints <= pair[1]), sizes[-2:])
        slope = (self.decision[high] - self.decision[low]) / (high - low)
        return self.request + self.decision[low] - self.decision[POLLED] + slope * max(endpoints - low, 0)


class Part(NamedTuple):
    """Load on one part: its share of the capacity, and a text with numbers."""

    used: float
    text: str


def parts(costs: Costs, endpoints: int, pickers: int, rate: float) -> Mapping[str, Part]:
    """Return the load on each part; `pickers` have one event loop each, `rate` is the total rate of requests.

    With P pickers, a batch of each leaves every `b = 20 ms * max(1, (P - 1) / 10)`, and each picker reads all of them.
    """
    each, peers = rate / pickers, pickers - 1
    interval = BATCH_SECONDS * max(1.0, peers / 10)
    batches = 1 / interval if peers else 0.0  # of a picker
    shared = (
        each + min(endpoints, _WORK_ENTRIES) / 2 if peers else 0.0
    )  # repeated each second: two endpoints per request
    told = pickers * (batches * costs.batch_bytes + shared * costs.request_bytes)
    routing = each * costs.of_request(endpoints)
    writing = batches * (costs.write_batch + costs.client_write) + shared * costs.write_request
    applying = peers * (batches * costs.apply_batch + shared * costs.apply_request)
    applying += batches * costs.client_read + told * costs.client_byte
    free = max(1 - routing - writing - applying, LEAST_LEFT)
    polls = min(POLLS_PER_SECOND * endpoints, POLLS_SHARE * free / costs.poll)
    placed = each * interval * _CHAIN_BYTES if peers else 0.0
    changed = min(2 * each * interval, endpoints) if peers else 0.0
    store = pickers * batches * (costs.store_write + costs.store_read) + pickers * told * costs.store_byte
    busy = routing + writing + applying + polls * costs.poll
    return {
        "event loop of a picker": Part(
            busy,
            f"{busy:.2f} cores: requests {routing:.2f}, writing {writing:.3f}, others' batches {applying:.2f}, "
            f"polls {polls * costs.poll:.2f}",
        ),
        "polls": Part(
            0.0, f"{polls:,.0f}/s by a picker: each endpoint every {endpoints / polls:.2f} s, in all "
            f"{pickers * polls / endpoints:,.0f}/s at an endpoint",
        ),
        "placements in a batch": Part(placed / MOST_PAYLOAD_BYTES, f"{placed:,.0f} of {MOST_PAYLOAD_BYTES:,} bytes"),
        "changed endpoints in a batch": Part(changed / _WORK_ENTRIES, f"{changed:,.0f} of {_WORK_ENTRIES}"),
        "store, CPU": Part(store, f"{store:.2f} of a core, {2 * pickers * batches:,.0f} operations/s"),
        "store, network": Part(
            pickers * told / NETWORK_BYTES, f"{told / 1e6:,.1f} MB/s in, {pickers * told / 1e6:,.0f} MB/s out"
        ),
        "Envoy": Part(0.0, f"{rate * costs.envoy:,.1f} cores, of all Envoys together"),
    }  # fmt: skip


def _used(costs: Costs, endpoints: int, pickers: int, part: str, rate: float) -> float:
    return parts(costs, endpoints, pickers, rate)[part].used


def full_at(used: Callable[[float], float]) -> float:
    """Return the rate at which a part is full; infinite if never, 0 if even without requests."""
    low, high = 0.0, 1e9
    if used(high) < 1:
        return inf
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if used(middle) >= 1 else (middle, high)
    return low


async def measure() -> Costs:
    """Measure all costs; raises BenchError without Envoy or redis-server."""
    async with loader() as load, stand(load, own("asyncio"), servers=POLLED) as found:
        await found.served(_REQUESTS, 0)  # warm-up
        idle = await found.idle_cores(2.0)
        runs = [await found.served(_REQUESTS, number * _REQUESTS.requests) for number in (1, 2, 3)]
        request = min((run.cpu_seconds - idle * run.seconds) / run.requests for run in runs)
        envoy = min(run.envoy_cpu_seconds / run.requests for run in runs)
        await found.moving_gauges()
        await asyncio.sleep(2.0)
        poll = min([await poll_microseconds(found, 2.0) for _ in range(3)]) / 1e6
    inner = await figures_of("paper", sys.executable, quick=False)
    if inner is None:
        raise BenchError("perf/bench/inner/paper.py fails: run it by itself to see why")
    line = {
        name: np.polyfit((1, 100), [inner[f"{name}-1"], inner[f"{name}-100"]], 1)
        for name in ("write", "apply", "bytes")
    }
    return Costs(
        {int(row[9:]): value / 1e6 for row, value in inner.items() if row.startswith("decision-")},
        request, envoy, poll,
        *(float(line[name][place]) / 1e6 for name in ("write", "apply") for place in (1, 0)),
        *(float(line["bytes"][place]) for place in (1, 0)),
        *await _store_costs(),
    )  # fmt: skip


async def _store_costs() -> tuple[float, ...]:
    """Return the costs of a write, a read and a byte read, for the client and for the store."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise BenchError("there is no redis-server: install it")
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as directory:
        socket = Path(directory, "store")
        child = await Child.start(
            "store", program, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", directory
        )
        client = RedisAddress(f"unix://{socket}").client(2.0)

        async def cost(count: int | None) -> Floats:
            """Return the minimum cost of an operation for client and store: a write, or a read of several entries."""
            found: list[Floats] = []
            for _ in range(5):
                before = np.array([time.thread_time(), cpu_seconds(child.pid)])
                for _ in range(_ROUNDS):
                    if count is None:
                        await client.xadd("s", {b"b": bytes(_ENTRY_BYTES)}, maxlen=1000, approximate=True)
                    else:
                        await client.xread({"s": "0-0"}, count=count, block=1000)
                found.append((np.array([time.thread_time(), cpu_seconds(child.pid)]) - before) / _ROUNDS)
            least: Floats = np.min(found, axis=0)
            return least

        while not socket.exists():  # noqa: ASYNC240  of this machine
            child.check()
            await asyncio.sleep(0.05)
        write, one, many = [await cost(count) for count in (None, 1, _ENTRIES)]
        await client.aclose()
        await child.stop()
    byte = (many - one) / (_ENTRIES - 1) / _ENTRY_BYTES
    return tuple(float(row[side]) for side in (0, 1) for row in (write, one - byte * _ENTRY_BYTES, byte))


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measure the CPU time of a request, a poll and a batch, and compute the load of a large pool."
    )
    parser.add_argument("--endpoints", type=int, default=10_000)
    parser.add_argument("--pickers", type=int, default=50, help="processes, workers included")
    parser.add_argument("--rate", type=float, default=100_000, help="requests per second of all pickers")
    parser.add_argument("--costs", type=Path, help="file with costs: read if it exists, otherwise measured and written")
    given = parser.parse_args()
    if given.costs is not None and given.costs.exists():
        costs = msgspec.json.decode(given.costs.read_bytes(), type=Costs)
    else:
        costs = asyncio.run(measure())
        if given.costs is not None:
            given.costs.write_bytes(msgspec.json.encode(costs))
    print(json.dumps(msgspec.to_builtins(costs, str_keys=True), indent=1))
    print(f"{given.endpoints:,} endpoints, {given.pickers} pickers, {given.rate:,.0f} requests a second:")
    found = parts(costs, given.endpoints, given.pickers, given.rate)
    limits = {name: full_at(partial(_used, costs, given.endpoints, given.pickers, name)) for name in found}
    for name, part in found.items():
        limit = "" if limits[name] == inf else f"; full at {limits[name]:,.0f} requests/s"
        print(f"  {name}: {part.text}{limit}")
    first = min(limits, key=lambda name: limits[name])
    print(f"  first: {first}, at {limits[first]:,.0f} requests/s")


if __name__ == "__main__":
    main()
