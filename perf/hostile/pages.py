# SPDX-License-Identifier: Apache-2.0
"""Pages: huge pages of model servers, and stalled scrapes of the picker."""

import asyncio
import time
from typing import Any

from perf.hostile.scene import HERE, STALL_SECONDS, Campaign, attack_with, scene
from perf.rig.processes import Program

_HALF = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
_LONGEST_SECONDS = 60.0


async def large_page(campaign: Campaign) -> None:
    """A page of 130,000 series, 7.7 MB, of one of two model servers."""
    await _page(campaign, "series")


async def adapter_lines(campaign: Campaign) -> None:
    """A page with 80,000 lines of `lora_requests_info`."""
    await _page(campaign, "adapters")


async def one_line(campaign: Campaign) -> None:
    """A page with a line of 7 MB."""
    await _page(campaign, "one line")


async def _page(campaign: Campaign, name: str) -> None:
    async with await Program.run(HERE / "attacker.py") as servers:
        good = await attack_with(servers, "bad_servers", "serve")
        bad = await attack_with(servers, "bad_servers", "serve")
        pool = [f"{name}=127.0.0.1:{port['port']}" for name, port in (("good", good), ("bad", bad))]
        async with scene(campaign.judge, endpoints=pool) as picker:
            said = await attack_with(servers, "bad_servers", "show", page=name)
            before = picker.now()
            async with picker.beside() as seen:
                await asyncio.sleep(campaign.of(30, 6))
            after = picker.now()
            asked = await attack_with(servers, "bad_servers", "show", page="few")
            campaign.judge.shows("size of the page", said["bytes"] / 2**20, "MiB")
            campaign.judge.at_least("times that it was asked for", asked["asked"], 1)
            cpu = (after.cpu_seconds - before.cpu_seconds) / (after.at - before.at)
            campaign.judge.at_most("share of a CPU meanwhile", cpu, 0.5 if campaign.size == "full" else 0.9)
            picker.judge_beside(seen, p99=STALL_SECONDS, longest=None)
            await picker.judge_rest(peak_mib=144.0)


async def half_open_scrapes(campaign: Campaign) -> None:
    """1,000 scrapers that send half a request, and the rest later; another one sends whole requests."""
    async with scene(campaign.judge) as picker:
        async with picker.beside() as seen:
            said = await picker.attack(
                "pages", "scrape_by_halves", port=picker.served.metrics_port, count=campaign.of(1_000, 1_000)
            )
        campaign.judge.exactly("connections accepted", said["connected"], 1_000)
        campaign.judge.exactly("whole scrape beside them", said["beside"], "200")
        campaign.judge.exactly("scrapes completed", said["completed"], 1_000)
        campaign.judge.within("from the second half to the last page", said["seconds"], 2.0)
        picker.judge_beside(seen)
        await picker.judge_rest()


async def scrape_by_halves(port: int, count: int) -> dict[str, Any]:
    """Open the scrapes, send another one, complete them."""
    opened = await asyncio.gather(*(_connect(port) for _ in range(count)))
    held = [each for each in opened if each is not None]
    own = await _connect(port)
    beside = "not accepted" if own is None else await _complete(*own)
    began = time.monotonic()
    statuses = await asyncio.gather(*(_complete(reader, writer) for reader, writer in held))
    return {
        "connected": len(held),
        "beside": beside,
        "completed": statuses.count("200"),
        "seconds": time.monotonic() - began,
    }


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    try:
        async with asyncio.timeout(_LONGEST_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(_HALF)
            await writer.drain()
    except OSError:
        return None
    return reader, writer


async def _complete(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """Send the rest; return the status of the response, or the error."""
    try:
        writer.write(b"\r\n")
        async with asyncio.timeout(_LONGEST_SECONDS):
            answer = await reader.read(-1)
        return answer.split(b" ", 2)[1].decode() if answer.startswith(b"HTTP/1.1") else "nothing"
    except OSError as error:
        return type(error).__name__
    finally:
        writer.transport.abort()
