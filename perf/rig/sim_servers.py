# SPDX-License-Identifier: Apache-2.0
"""Simulated model servers of `epp.lab.sim` in one process, as a program; each run has new servers."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import uvloop

from epp.lab.sim.profile import SimProfile
from epp.lab.sim.server import RunningSim, running
from perf.rig.orders import many_descriptors, obey


async def main() -> None:
    """Serve until standard input is closed."""
    many_descriptors()
    stack = AsyncExitStack()
    servers: list[RunningSim] = []
    seconds: list[float] = []
    watching: list[asyncio.Task[None]] = []

    async def watch() -> None:
        """Measure the busy time of each machine."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(0.01)
            now = loop.time()
            for number, server in enumerate(servers):
                if server.machine.next_event_at is not None:
                    seconds[number] += now - last
            last = now

    async def do(order: dict[str, Any]) -> dict[str, Any]:
        nonlocal stack
        if "profiles" in order:
            await stack.aclose()
            stack = AsyncExitStack()
            profiles = [msgspec.convert(each, SimProfile) for each in order["profiles"]]
            servers[:] = [await stack.enter_async_context(running(profile)) for profile in profiles]
            seconds[:] = [0.0] * len(servers)
            watching[:] = watching or [asyncio.create_task(watch())]
        return {"ports": [server.port for server in servers], "busy": seconds}

    await obey(do)
    await stack.aclose()


if __name__ == "__main__":
    uvloop.run(main())
