# SPDX-License-Identifier: Apache-2.0
"""Observation of the processes: delays by the machine, the picker's memory, and requests that servers received."""

import asyncio
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import aiohttp
import msgspec

from perf.overload.clients import ID
from perf.overload.stage import Stage

STALL_SECONDS = 0.25
"""Delay of an event loop above which the figures of the window depend on the machine."""
_BEAT_SECONDS = 0.05
_PAGES_SECONDS = 5.0
_IN_TIME = re.compile(rf'^llm_d_epp_event_loop_lag_seconds_bucket\{{le="{STALL_SECONDS:g}"\}} (\S+)$', re.MULTILINE)
_TIMERS = re.compile(r"^llm_d_epp_event_loop_lag_seconds_count (\S+)$", re.MULTILINE)
_RUNNING = re.compile(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", re.MULTILINE)
_OPEN = re.compile(r"^llm_d_epp_request_running\{.*\} (\S+)$", re.MULTILINE)
_QUEUED = re.compile(r"^llm_d_epp_flow_control_queue_size\{.*\} (\S+)$", re.MULTILINE)
_SATURATION = re.compile(r"^llm_d_epp_flow_control_pool_saturation\{.*\} (\S+)$", re.MULTILINE)


class _Record(msgspec.Struct):
    id: str | None
    headers: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Process:
    """Resources of a process."""

    resident_bytes: int
    descriptors: int
    threads: int


def process(pid: int) -> Process:
    """Return the resources of a process."""
    status = Path(f"/proc/{pid}/status").read_text()

    def number(name: str) -> int:
        return int(re.findall(rf"{name}:\s+(\d+)", status)[0])

    return Process(number("VmRSS") * 1024, len(list(Path(f"/proc/{pid}/fd").iterdir())), number("Threads"))


@dataclass(slots=True)
class Watch:
    """Observes all processes until cancelled."""

    stage: Stage
    memory: list[tuple[float, int]] = field(default_factory=list)
    """Time and resident bytes of the picker."""
    stalls: list[tuple[float, float]] = field(default_factory=list)
    """Time spans in which the machine delayed clients or picker."""
    _seen: dict[tuple[str, str], str] = field(default_factory=dict)
    _late: float = 0.0

    async def run(self) -> None:
        """Observe until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat())
            group.create_task(self._pages())

    async def _beat(self) -> None:
        looked = 0.0
        while True:
            before = monotonic()
            await asyncio.sleep(_BEAT_SECONDS)
            now = monotonic()
            if now - before - _BEAT_SECONDS > STALL_SECONDS:
                self.stalls.append((before, now))
            if now - looked >= 1.0:
                looked = now
                self.memory.append((now, process(self.stage.pid).resident_bytes))

    async def _pages(self) -> None:
        async with aiohttp.ClientSession() as session:
            self._late = await self._late_timers(session)
            while True:
                before = monotonic()
                await asyncio.sleep(_PAGES_SECONDS)
                late = await self._late_timers(session)
                if late > self._late:
                    self.stalls.append((before, monotonic()))
                self._late = late
                await self.look_at_servers(session)

    async def _late_timers(self, session: aiohttp.ClientSession) -> float:
        page = await _page(session, self.stage.metrics)
        return float(_TIMERS.findall(page)[0]) - float(_IN_TIME.findall(page)[0])

    async def look_at_servers(self, session: aiohttp.ClientSession) -> None:
        """Record the requests that servers received; servers keep the last 1,000."""
        for url in self.stage.servers:
            async with session.get(f"{url}/sim/requests") as answer:
                records = msgspec.json.decode(await answer.read(), type=list[_Record])
            for record in records:
                self._seen[url, str(record.id)] = dict(record.headers).get(ID, "")

    def at_servers(self) -> Counter[str]:
        """Return the number of times that servers received each request, by its number."""
        return Counter(self._seen.values())


async def _page(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url) as page:
        return await page.text()


async def under_way(stage: Stage) -> dict[str, float]:
    """Return the number of remaining requests, by place."""
    async with aiohttp.ClientSession() as session:
        servers = [await _page(session, f"{url}/metrics") for url in stage.servers]
        picker = await _page(session, stage.metrics)
    return {
        "at servers": sum(float(number) for page in servers for number in _RUNNING.findall(page)),
        "running in the picker": sum(map(float, _OPEN.findall(picker))),
        "queued in the picker": sum(map(float, _QUEUED.findall(picker))),
    }


async def saturation(stage: Stage) -> float:
    """Return the saturation of the servers by the picker's count of requests in flight."""
    async with aiohttp.ClientSession() as session:
        return sum(map(float, _SATURATION.findall(await _page(session, stage.metrics))))
