# SPDX-License-Identifier: Apache-2.0
"""Memory and CPU time of a picker at rest: of each endpoint, of each poll, of each open stream.

    python tests/bench/bench_memory.py

It starts `epp serve` for servers that do nothing but show metrics, all on loopback.
"""

import asyncio
import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from aiohttp import web

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "e2e"), str(TESTS / "unit" / "extproc")]

from serving import PLAIN, Served, serving  # noqa: E402  found by the lines above
from waiting import until  # noqa: E402

ENDPOINTS = 500
POLLED = 100
STREAMS = 2_000
CONNECTIONS = 10
POLLS = 5_000
METRICS = "vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n"
TICKS = os.sysconf("SC_CLK_TCK")


class Pool:
    """Servers that count how often their metrics are asked for."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.polls = 0

    async def metrics(self, _: web.Request) -> web.Response:
        self.polls += 1
        return web.Response(text=METRICS)


@asynccontextmanager
async def pool(count: int):
    found = Pool()
    app = web.Application()
    app.router.add_get("/metrics", found.metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    for _ in range(count):
        await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.addresses = [f"127.0.0.1:{port}" for _, port in runner.addresses]
    yield found
    await runner.cleanup()


def memory_kib(served: Served) -> int:
    lines = Path(f"/proc/{served.command.pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS:")]
    return int(line.split()[1])


def cpu_seconds(served: Served) -> float:
    fields = Path(f"/proc/{served.command.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def memory_at_rest(count: int) -> int:
    """Return the memory of a picker with so many endpoints, in KiB."""
    async with pool(count) as servers:
        flags = (f"--endpoints={','.join(servers.addresses)}", "--refresh-metrics-interval=1s")
        async with serving(None, PLAIN, *flags) as served:
            await until(lambda: servers.polls >= 2 * count, "every endpoint has been polled twice", seconds=60)
            return memory_kib(served)


async def cpu_of_a_poll() -> float:
    """Return the CPU time of one poll in seconds, at the default interval."""
    async with (
        pool(POLLED) as servers,
        serving(None, PLAIN, f"--endpoints={','.join(servers.addresses)}") as served,
    ):
        await until(lambda: servers.polls >= POLLED, "every endpoint has been polled", seconds=60)
        polls, started = servers.polls, cpu_seconds(served)
        await until(lambda: servers.polls >= polls + POLLS, "enough polls", seconds=60)
        return (cpu_seconds(served) - started) / (servers.polls - polls)


async def with_streams() -> tuple[int, int]:
    """Return the memory of a picker at rest, and with all streams open and their requests routed."""
    async with pool(1) as servers, AsyncExitStack() as stack:
        served = await stack.enter_async_context(serving(None, PLAIN, f"--endpoints={servers.addresses[0]}"))
        await until(lambda: servers.polls > 1, "the endpoint has been polled")
        before = memory_kib(served)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(str(TESTS / "e2e" / "many_streams.py"), str(served.grpc_port), str(STREAMS), str(CONNECTIONS)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        try:
            async with asyncio.timeout(60):
                assert await process.stdout.readline() == b"routed\n"
            return before, memory_kib(served)
        finally:
            process.kill()
            await process.wait()


async def main() -> None:
    """Print a table."""
    alone, many = await memory_at_rest(1), await memory_at_rest(ENDPOINTS)
    cpu = await cpu_of_a_poll()
    before, after = await with_streams()
    print(f"{'picker with one endpoint':<48} {alone / 1024:>8.0f} MiB")
    print(f"{f'each of {ENDPOINTS} endpoints':<48} {(many - alone) / (ENDPOINTS - 1):>8.0f} KiB")
    print(f"{f'each of {STREAMS} open streams, bodies of 3 KiB':<48} {(after - before) / STREAMS:>8.0f} KiB")
    print(f"{'poll of an endpoint':<48} {cpu * 1e6:>8.0f} us CPU")


if __name__ == "__main__":
    asyncio.run(main())
