# SPDX-License-Identifier: Apache-2.0
"""CPU time that the picker spends on one request behind a real Envoy, wire included; Envoy and clients not counted.

    python tests/bench/bench_gateway.py

Each case runs without log lines of requests (`-v 0`) and with one each (`-v 2`), in turns; the second as a ratio.

The clients and a trivial model server run in a process of their own, on loopback, 2,000 requests at the most.
"""

import asyncio
import json
import multiprocessing
import os
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp
import uvloop
from aiohttp import web

from epp.discovery import StaticDiscovery, parse_targets
from epp.extproc.settings import ServerSettings
from epp.gateway import GatewaySettings
from epp.local import local_gateway
from epp.observability import logs
from epp.observability.request_log import request_log
from epp.picker import PickerSettings

CONCURRENCY = 16
ROUNDS = 3
CASES = (
    ("JSON, 400 B prompt", 400, 0, 2000),
    ("JSON, 220 KB prompt", 220_000, 0, 500),
    ("SSE, 500 pieces", 400, 500, 60),
)


async def serve_model(pieces: int) -> web.AppRunner:
    """A model server that thinks nothing of it."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        if not pieces:
            return web.json_response({"choices": []})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(pieces):
            await response.write(b'data: {"choices":[{"delta":{"content":"word "}}]}\n\n')
            await asyncio.sleep(0)
        return response

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(
            text="vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n"
        )

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", answer)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner


async def send(url: str, prompt_bytes: int, count: int) -> float:
    """Return the wall time of `count` requests, CONCURRENCY at a time."""
    text = "".join(f"{i:07d} " for i in range(prompt_bytes // 8))
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    left = iter(range(count))

    async def client(session: aiohttp.ClientSession) -> None:
        for _ in left:
            async with session.post(url, data=body) as response:
                assert response.status == 200
                await response.read()

    async with aiohttp.ClientSession() as session:
        started = time.perf_counter()
        await asyncio.gather(*(client(session) for _ in range(CONCURRENCY)))
        return time.perf_counter() - started


async def other_side(pipe: Connection, prompt_bytes: int, pieces: int, count: int) -> None:
    """Model server and clients: tell the address, be told the gateway's, warm up, then run when told."""
    runner = await serve_model(pieces)
    pipe.send(runner.addresses[0][1])
    url = f"{await asyncio.to_thread(pipe.recv)}/v1/chat/completions"
    await send(url, prompt_bytes, CONCURRENCY * 2)
    pipe.send("warm")
    await asyncio.to_thread(pipe.recv)
    pipe.send(await send(url, prompt_bytes, count))
    await runner.cleanup()


def run_other_side(*arguments: object) -> None:
    """Start the other process."""
    uvloop.run(other_side(*arguments))  # type: ignore[arg-type]


async def measure(prompt_bytes: int, pieces: int, count: int, *, verbosity: int) -> tuple[float, float]:
    """Run one case; return the CPU time of one request, and requests a second."""
    writer = logs.configure(verbosity)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=run_other_side, args=(theirs, prompt_bytes, pieces, count)
    )
    process.start()
    try:
        port = await asyncio.to_thread(ours.recv)
        picker = PickerSettings(
            server=ServerSettings("unix:unset"),
            discovery=StaticDiscovery(parse_targets(f"127.0.0.1:{port}")),
            refresh_metrics_seconds=1.0,
            observers=request_log(verbosity),
        )
        async with local_gateway(picker, GatewaySettings(listen_port=0)) as gateway:
            await asyncio.to_thread(ours.send, gateway.url)
            await asyncio.to_thread(ours.recv)
            started = time.process_time()
            await asyncio.to_thread(ours.send, "go")
            seconds = await asyncio.to_thread(ours.recv)
            writer.settle()
            return (time.process_time() - started) / count, count / seconds
    finally:
        process.join(10)
        process.kill()


async def main() -> None:
    """Print a line for each case."""
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115, ASYNC230  for log lines, to the end
    for name, *case in CASES:
        quiet, logged = [], []
        for _ in range(ROUNDS):
            quiet.append(await measure(*case, verbosity=0))
            logged.append(await measure(*case, verbosity=2))
        cpu, rate = min(quiet)[0], max(rate for _, rate in quiet)
        ratio = min(logged)[0] / cpu
        print(f"{name:<20} {cpu * 1e6:>6.0f} us CPU a request {rate:>6.0f} requests a second; -v 2: x {ratio:.2f}")


if __name__ == "__main__":
    uvloop.run(main())
