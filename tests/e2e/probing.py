# SPDX-License-Identifier: Apache-2.0
"""A client of its own connection, as a program: `probing.py PORT`. It measures what others make it wait for.

One small request after the other, each in full duplex and with its own answer. At the end of standard input it prints
the milliseconds of its requests as JSON: number, p50, p99, longest.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import http2_bytes as h2
from bench import BODY, request_body
from raw_connection import connected
from serving import first_message

from epp.extproc.wire import METHOD, SERVICE

PATH = f"/{SERVICE}/{METHOD}"
REQUEST = h2.grpc_message(first_message().SerializeToString()) + h2.grpc_message(
    request_body(BODY, end=True).SerializeToString()
)
PAUSE_SECONDS = 0.002


@dataclass
class Waits:
    """Milliseconds of the requests of a probe."""

    requests: int = 0
    p50: float = 0.0
    p99: float = 0.0
    longest: float = 0.0
    all: list[float] = field(default_factory=list, repr=False)


async def measure(port: int, stop: asyncio.Event) -> list[float]:
    """Return how long each request took, in milliseconds."""
    taken = []
    while not stop.is_set():
        async with connected(port) as connection:
            peer = connection.peer
            await connection.send(peer.grant(h2.MOST_WINDOW - h2.DEFAULT_WINDOW))
            for _ in range(1000):
                began = time.perf_counter()
                call, opened = peer.call(PATH, REQUEST, end=True)
                await connection.send(opened)
                await connection.until(lambda call=call: call.closed, "the probe is answered")
                taken.append((time.perf_counter() - began) * 1000)
                assert call.status == 0, call
                if stop.is_set():
                    break
                await asyncio.sleep(PAUSE_SECONDS)
    return taken


@contextlib.asynccontextmanager
async def probed(port: int) -> AsyncIterator[Waits]:
    """Run the probe in a process of its own; what it measured is known at the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *(str(Path(__file__)), str(port)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    waits = Waits()
    try:
        assert (await process.stdout.readline()).strip() == b"probing"
        yield waits
        process.stdin.close()
        vars(waits).update(json.loads(await process.stdout.read()))
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()


async def main(port: int) -> None:
    stop = asyncio.Event()
    measuring = asyncio.create_task(measure(port, stop))
    await asyncio.sleep(0.2)
    print("probing", flush=True)  # noqa: T201  how it speaks to its parent
    await asyncio.to_thread(sys.stdin.read)
    stop.set()
    taken = sorted(await measuring)
    at = {"p50": taken[len(taken) // 2], "p99": taken[len(taken) * 99 // 100], "longest": taken[-1]}
    print(json.dumps({"requests": len(taken), **at, "all": taken}), flush=True)  # noqa: T201  the same


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
