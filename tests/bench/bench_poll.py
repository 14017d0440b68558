# SPDX-License-Identifier: Apache-2.0
"""CPU time of polling: of one metrics page of 51 KB, and of an idle picker with 8, 100 and 1,000 servers.

    python tests/bench/bench_poll.py [--json FILE]

The servers are one cheap process that sends a page of a genuine vLLM over and over; all on loopback.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "e2e"), str(TESTS / "unit" / "extproc")]

from config_files import endpoints_file, with_pool  # noqa: E402  found by the lines above
from serving import PLAIN, Served, serving  # noqa: E402

from epp.collectors import Collector  # noqa: E402
from epp.collectors.engines.metrics import CoreMetricsExtractor, MetricsDataSource  # noqa: E402
from epp.datastore import Datastore  # noqa: E402
from epp.descriptors import raise_limit  # noqa: E402
from epp.framework import Endpoint, SystemClock  # noqa: E402
from epp.framework.datalayer import Feed  # noqa: E402

PAGE = (TESTS / "data" / "vllm-0.32" / "metrics-busy.txt").read_bytes()
CONFIG = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}, {type: kv-cache-utilization-scorer}, {type: prefix-cache-scorer}]
"""
SERVERS = (8, 100, 1000)
SETTLING_SECONDS = 6.0
SECONDS = 8.0
POLLED = 32
ROUNDS = 5
ROUND_SECONDS = 2.0


def still() -> list[bytes]:
    """The page of a server at rest, which never changes."""
    return [PAGE]


def stirring() -> list[bytes]:
    """Pages of a server at rest, whose process still counts its own seconds."""
    return [varied(rb"^process_cpu_seconds_total (\S+)", number) for number in range(7)]


def moving() -> list[bytes]:
    """Pages of a busy server: every number of the engine changes."""
    return [varied(rb"^vllm:\S+ (\d+\.\d+)$", number) for number in range(7)]


def varied(line: bytes, number: int) -> bytes:
    def other(found: re.Match[bytes]) -> bytes:
        start, end = (place - found.start() for place in found.span(1))
        counted = found[1].endswith(b".0")
        value = b"%.1f" % (float(found[1]) + number) if counted else found[1][:-1] + b"%d" % number
        return found[0][:start] + value + found[0][end:]

    return re.sub(line, other, PAGE, flags=re.MULTILINE)


def answer(page: bytes) -> bytes:
    head = (
        "HTTP/1.1 200 OK\r\ndate: Sun, 22 Nov 2026 09:00:00 GMT\r\nserver: uvicorn\r\n"
        f"content-length: {len(page)}\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\n\r\n"
    )
    return head.encode() + page


def serve(pipe: Connection, pages: list[bytes]) -> None:
    """Serve pages in turns on every address of loopback until killed; says how many on request."""
    answers = [answer(page) for page in pages]
    asked = 0

    class Server(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            nonlocal asked
            asked += 1
            self.transport.write(answers[asked % len(answers)])  # type: ignore[attr-defined]

    def tell() -> None:
        pipe.recv()
        pipe.send(asked)

    async def run() -> None:
        raise_limit()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Server, "0.0.0.0", 0, backlog=4096)  # noqa: S104
        pipe.send(server.sockets[0].getsockname()[1])
        loop.add_reader(pipe.fileno(), tell)
        await server.serve_forever()

    uvloop.run(run())


class Servers:
    """Servers of another process."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.port: int = pipe.recv()

    def polls(self) -> int:
        self._pipe.send(None)
        return int(self._pipe.recv())


@contextmanager
def servers(pages: list[bytes]) -> Iterator[Servers]:
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=serve, args=(theirs, pages), daemon=True)
    process.start()
    try:
        yield Servers(ours)
    finally:
        process.kill()


def address(number: int) -> str:
    return f"127.1.{number // 250}.{number % 250 + 1}"


async def cost_of_a_poll(pages: list[bytes]) -> list[float]:
    """Return the microseconds of CPU of one poll among many, in several rounds; the wake-ups of the loop included."""
    with servers(pages) as polled:
        store = Datastore(SystemClock())
        store.replace([Endpoint(f"e{number}", address(number), polled.port) for number in range(POLLED)])
        feed = Feed(MetricsDataSource(), (CoreMetricsExtractor(),))
        collector = Collector(store, [feed], clock=SystemClock(), interval_seconds=0.02)
        await collector.start()
        await asyncio.sleep(1.0)
        found = []
        for _ in range(ROUNDS):
            polls, before = polled.polls(), time.thread_time()
            await asyncio.sleep(ROUND_SECONDS)
            found.append((time.thread_time() - before) / (polled.polls() - polls) * 1e6)
        await collector.stop()
        await feed.source.close()
        return found


def cpu_seconds(served: Served) -> float:
    """Return the CPU time of all threads of the picker."""
    tasks = Path(f"/proc/{served.command.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def memory_mib(served: Served) -> float:
    lines = Path(f"/proc/{served.command.pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


async def idle(count: int, pages: list[bytes]) -> tuple[float, float, float, float]:
    """Return the share of a core, polls per second, the interval that the picker tells, and MiB of memory."""
    with servers(pages) as polled, tempfile.TemporaryDirectory() as directory:
        members = {f"e{number}": (f"{address(number)}:{polled.port}", {}) for number in range(count)}
        config = Path(directory) / "config.yaml"
        config.write_text(with_pool(CONFIG, endpoints_file(Path(directory) / "pool.yaml", **members)))
        async with serving(None, PLAIN, f"--config-file={config}", "-v=1") as served:
            await asyncio.sleep(SETTLING_SECONDS)
            polls, before, started = polled.polls(), cpu_seconds(served), time.perf_counter()
            await asyncio.sleep(SECONDS)
            seconds = time.perf_counter() - started
            cpu, rate = (cpu_seconds(served) - before) / seconds, (polled.polls() - polls) / seconds
            memory = memory_mib(served)
            metrics = await served.metrics()
            (interval,) = metrics["llm_d_epp_datalayer_poll_interval_seconds"].values()
            return cpu, rate, interval, memory


async def main() -> None:
    """Print two tables, and write them to a file if asked."""
    options = argparse.ArgumentParser()
    options.add_argument("--json", type=Path)
    file = options.parse_args().json
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115, ASYNC230  for log lines, to the end
    raise_limit()
    found: dict[str, object] = {}
    print("microseconds of CPU for one poll of a page of 51 KB")
    for kind in (still, stirring, moving):
        rounds = await cost_of_a_poll(kind())
        found[f"poll {kind.__name__}"] = {"min": min(rounds), "median": statistics.median(rounds)}
        print(f"{kind.__name__:<10} min {min(rounds):>6.1f} median {statistics.median(rounds):>6.1f}")
    print("\nan idle picker")
    print(f"{'servers':>8} {'pages':<10} {'CPU':>8} {'polls/s':>9} {'interval told':>14} {'memory':>10}")
    for count in SERVERS:
        for kind in (still, stirring):
            cpu, rate, interval, memory = await idle(count, kind())
            found[f"idle {count} {kind.__name__}"] = {"cpu": cpu, "polls": rate, "memory_mib": memory}
            print(
                f"{count:>8} {kind.__name__:<10} {cpu:>8.2%} {rate:>9.0f} {interval:>12.3f} s {memory:>6.1f} MiB",
                flush=True,
            )
    if file is not None:
        file.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    uvloop.run(main())
