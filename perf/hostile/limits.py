# SPDX-License-Identifier: Apache-2.0
"""A machine without memory, descriptors or disk space."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from perf.hostile.scene import Campaign, scene

_LIMIT_KIB = 1_600_000
_DESCRIPTORS = 128


async def little_memory(campaign: Campaign) -> None:
    """Bodies larger than the memory limit of the picker: some are refused, and it keeps serving."""
    async with scene(campaign.judge, ulimit=f"-v {_LIMIT_KIB}") as picker:
        said = await picker.attack("floods", "hold_bodies", port=picker.served.grpc_port, count=60, size=31)
        for how in ("held", "waiting", "refused", "ended"):
            campaign.judge.shows(f"bodies that were {how}", said[how])
        async with picker.beside() as seen:
            await asyncio.sleep(2)
        picker.judge_beside(seen, longest=None)
        await picker.judge_rest(grown_mib=1024.0, tracebacks=True)  # of MemoryError


async def few_descriptors(campaign: Campaign) -> None:
    """Far more connections than descriptors: open ones are served, and new ones as soon as descriptors are free."""
    async with scene(campaign.judge, ulimit=f"-n {_DESCRIPTORS}") as picker:
        async with picker.beside() as seen:
            await asyncio.sleep(1)
            before = picker.now()
            said = await picker.attack(
                "limits",
                "connect",
                ports=[picker.served.grpc_port, picker.served.metrics_port],
                count=500,
                seconds=campaign.of(20, 4),
            )
            after = picker.now()
        campaign.judge.shows("connections", said["connected"])
        cpu = (after.cpu_seconds - before.cpu_seconds) / (after.at - before.at)
        campaign.judge.at_most("share of a CPU meanwhile", cpu, 0.5)
        picker.judge_beside(seen, longest=None)
        await picker.judge_rest()
        async with picker.beside() as then:
            await asyncio.sleep(1)
        picker.judge_beside(then, longest=None)


async def connect(ports: list[int], count: int, seconds: float) -> dict[str, Any]:
    """Open a number of connections, alternating between the ports, and keep them."""
    async with AsyncExitStack() as stack:
        connected = 0
        for number in range(count):
            try:
                async with asyncio.timeout(1):
                    _, writer = await asyncio.open_connection("127.0.0.1", ports[number % len(ports)])
            except OSError:
                continue
            stack.callback(writer.transport.abort)
            connected += 1
        await asyncio.sleep(seconds)
    return {"connected": connected}


async def full_disk(campaign: Campaign) -> None:
    """Neither log nor files can be written: the picker keeps serving, and reports it on its pages."""
    async with scene(campaign.judge, "-v=4", deaf=True) as picker:
        async with picker.beside() as seen:
            await picker.attack("endings", "send_malformed", port=picker.served.grpc_port, count=400, seed=3)
        lost = sum((await picker.metrics())["llm_d_epp_log_lines_lost_total"].values())
        campaign.judge.at_least("log lines lost, as the page says", lost, 1)
        picker.judge_beside(seen, longest=None)
        await picker.judge_rest()
