# SPDX-License-Identifier: Apache-2.0
"""A pool of 5,000 endpoints: CPU time of one change, the event loop while all of them join, requests beside the polls.

    python tests/bench/bench_pool.py

All on loopback, where every address of 127.0.0.0/8 answers; it needs 12,000 file descriptors.
"""

import asyncio
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import uvloop

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "e2e"), str(TESTS / "unit" / "extproc")]

from config_files import endpoints_file, with_pool  # noqa: E402  found by the lines above
from serving import PLAIN, Served, answer, ask, exchange, serving  # noqa: E402

from epp.cli.heap import collect_rarely  # noqa: E402
from epp.config import Builder, assemble, load_file  # noqa: E402
from epp.datastore import Datastore  # noqa: E402
from epp.descriptors import raise_limit  # noqa: E402
from epp.director import Cause  # noqa: E402
from epp.framework import Endpoint, Headers, SystemClock  # noqa: E402
from epp.framework.datalayer import Discovery, Pool, Report  # noqa: E402
from epp.framework.registry import Registry  # noqa: E402
from epp.framework.snapshot import KV_USAGE, RUNNING, WAITING  # noqa: E402
from epp.observability import logs  # noqa: E402
from epp.observability.metrics import Metrics  # noqa: E402
from epp.picker.running import RunningConfig  # noqa: E402

COUNT = 5_000
ROUNDS = 7
SECONDS = 15.0
SAMPLES = TESTS.parent / "epp" / "samples"
HEADERS = Headers([(":path", "/v1/completions"), ("x-request-id", "bench")])
BODY = b'{"model":"m","prompt":"hello hello hello hello"}'
METRICS = b"vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n"
PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" % (len(METRICS), METRICS)
CONFIG = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}, {type: prefix-cache-scorer}]
"""
TICKS = os.sysconf("SC_CLK_TCK")


class Given(Discovery):
    """Keeps the pool, to be changed by hand."""

    plugin_type = "given"

    async def start(self, pool: Pool) -> None:
        self.pool = pool

    async def follow(self, pool: Pool) -> None:
        await asyncio.Event().wait()


def endpoint(number: int, *, uid: str = "u", **labels: str) -> Endpoint:
    labels = {"llm-d.ai/role": "decode", "app": "vllm", "zone": f"z{number % 3}", **labels}
    return Endpoint(f"e{number}", address(1, number), 1, labels=labels, uid=uid)


def address(net: int, number: int) -> str:
    return f"127.{net}.{number // 250}.{number % 250 + 1}"


def milliseconds(work: Callable[..., Any], *arguments: object) -> float:
    started = time.process_time()
    work(*arguments)
    return (time.process_time() - started) * 1e3


def changes(number: int) -> Iterable[tuple[str, list[Endpoint], list[str]]]:
    yield "other labels", [endpoint(number, x=str(number))], []
    yield "replaced by another pod", [endpoint(number, uid="other")], []
    yield "left", [], [f"default/e{number}"]
    yield "joined", [endpoint(number)], []


async def running(sample: str) -> tuple[RunningConfig, Given]:
    clock, discovery = SystemClock(), Given()
    assembly = assemble(load_file(SAMPLES / f"{sample}.yaml"), Builder(Registry(), clock))
    found = RunningConfig(assembly, clock, Metrics("bench", clock), discovery=discovery, poll_seconds=3600.0)
    await found.start()
    return found, discovery


async def one_change(sample: str) -> None:
    """Print the CPU time of each kind of change among 5,000 endpoints, without the polls."""
    config, _ = await running(sample)
    store: Datastore = config.store
    store.update([endpoint(number) for number in range(COUNT)])
    for member in store.endpoints:
        store.report(member, Report({WAITING: 1.0, RUNNING: 2.0, KV_USAGE: 0.5}))

    def request() -> None:
        routing = config.director.route(HEADERS, BODY, None)
        routing.complete(Cause.NATURAL)  # type: ignore[union-attr]

    request()
    costs: dict[str, list[tuple[float, ...]]] = {}
    for number in range(ROUNDS):
        for kind, changed, removed in changes(number):
            update = milliseconds(store.update, changed, removed)
            snapshot = milliseconds(store.snapshot)
            first = milliseconds(request)
            costs.setdefault(kind, []).append((update, snapshot, first, milliseconds(request)))
    for kind, rows in costs.items():
        update, snapshot, first, later = (min(column) for column in zip(*rows, strict=True))
        print(f"{sample:<24} {kind:<24} {update:>7.2f} {snapshot:>9.2f} {first:>14.2f} {later:>6.2f}")
    await config.stop()


async def all_join(sample: str) -> None:
    """Print how long it takes until 5,000 endpoints are in, and the longest turn of the event loop."""
    config, discovery = await running(sample)
    members = [endpoint(number) for number in range(COUNT)]
    started, last, longest = time.perf_counter(), time.thread_time(), 0.0
    discovery.pool.update(members)
    while len(config.store.endpoints) < COUNT:
        await asyncio.sleep(0.001)
        now = time.thread_time()
        longest, last = max(longest, now - last), now
    print(f"{sample:<24} {time.perf_counter() - started:>14.2f} s {longest * 1e3:>14.0f} ms")
    await config.stop()


class Page(asyncio.Protocol):
    """Answers each request with the same metrics."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(PAGE)  # type: ignore[attr-defined]


def serve_pages(pipe: Any) -> None:
    """Serve metrics on every address of loopback until killed."""

    async def serve() -> None:
        raise_limit()
        server = await asyncio.get_running_loop().create_server(Page, "0.0.0.0", 0, backlog=4096)  # noqa: S104
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(serve())


def cpu_seconds(served: Served) -> float:
    fields = Path(f"/proc/{served.command.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_kib(served: Served) -> int:
    lines = Path(f"/proc/{served.command.pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS:")]
    return int(line.split()[1])


async def requests_beside_polls(port: int, answering: int, refusing: int) -> float:
    """Print CPU and times of requests in a pool that answers in part; return the memory in KiB."""
    with tempfile.TemporaryDirectory() as directory:
        members = {f"a{number}": (f"{address(1, number)}:{port}", {}) for number in range(answering)}
        members |= {f"r{number}": (f"{address(2, number)}:1", {}) for number in range(refusing)}
        config = Path(directory) / "config.yaml"
        config.write_text(with_pool(CONFIG, endpoints_file(Path(directory) / "pool.yaml", **members)))
        async with serving(None, PLAIN, f"--config-file={config}", "-v=1") as served, served.channel() as channel:
            await asyncio.sleep(SECONDS)  # all have been asked
            times, started, before = [], time.perf_counter(), cpu_seconds(served)
            while time.perf_counter() - started < SECONDS:
                asked = time.perf_counter()
                call = exchange(channel)
                await ask(call)
                times.append((time.perf_counter() - asked) * 1e3)
                await answer(call)
                await asyncio.sleep(0.02)
            cpu = (cpu_seconds(served) - before) / (time.perf_counter() - started)
            metrics = await served.metrics()
            (interval,) = metrics["llm_d_epp_datalayer_poll_interval_seconds"].values()
            times.sort()
            print(
                f"{answering:>9} {refusing:>9} {interval:>7.2f} s {cpu:>7.0%} "
                f"{times[len(times) // 2]:>8.1f} {times[len(times) * 99 // 100]:>6.0f} ms"
            )
            return memory_kib(served)


async def main() -> None:
    """Print three tables."""
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115, ASYNC230  for log lines, to the end
    logs.configure(0)
    collect_rarely()
    raise_limit()
    print(f"milliseconds of CPU for one of {COUNT} endpoints; the first request afterwards, and those that follow")
    print(f"{'configuration':<24} {'change':<24} {'update':>7} {'snapshot':>9} {'first request':>14} {'later':>6}")
    for sample in ("default", "session-sticky", "heterogeneous-latency"):
        await one_change(sample)
    print(f"\n{COUNT} endpoints join\n{'configuration':<24} {'until all are in':>16} {'longest turn, CPU':>17}")
    for sample in ("default", "heterogeneous-latency"):
        await all_join(sample)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    pages = multiprocessing.get_context("spawn").Process(target=serve_pages, args=(theirs,), daemon=True)
    pages.start()
    try:
        port = await asyncio.to_thread(ours.recv)
        print("\nrequests beside the polls: time until a request is routed, by a client on the same machine")
        print(f"{'answering':>9} {'refusing':>9} {'interval':>9} {'CPU':>7} {'median':>8} {'p99':>9}")
        few = await requests_beside_polls(port, 10, 0)
        await requests_beside_polls(port, 100, 0)
        many = await requests_beside_polls(port, COUNT, COUNT)
        print(f"\nmemory of an endpoint: {(many - few) / (2 * COUNT - 10):.0f} KiB")
    finally:
        pages.kill()


if __name__ == "__main__":
    uvloop.run(main())
