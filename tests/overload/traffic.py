# SPDX-License-Identifier: Apache-2.0
"""Clients of the gateway: some ask again as soon as they have an answer, others at a rate."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

import aiohttp
from stage import HIGH

_MODEL = "meta-llama/Llama-3.1-8B-Instruct"
_TOKENS = 20
_LONGEST_SECONDS = 60.0


@dataclass(slots=True)
class Answer:
    """What a request got."""

    sent_at: float
    seconds: float
    status: int
    """0 for none at all."""
    retry_after: str = ""
    reason: str = ""


@dataclass(slots=True)
class Tenant:
    """Requests of one fairness id."""

    name: str
    objective: str = ""
    sent: int = 0
    answers: list[Answer] = field(default_factory=list)

    async def ask(self, session: aiohttp.ClientSession, url: str) -> Answer:
        """Send a request and note its answer."""
        headers = {"x-llm-d-inference-fairness-id": self.name, "x-llm-d-inference-objective": self.objective}
        body = {"model": _MODEL, "prompt": f"{self.name} {self.sent}", "max_tokens": _TOKENS}
        self.sent += 1
        started = monotonic()
        try:
            async with session.post(f"{url}/v1/completions", json=body, headers=headers) as response:
                await response.read()
                told = response.headers
                answer = Answer(
                    started,
                    monotonic() - started,
                    response.status,
                    told.get("retry-after", ""),
                    told.get("x-llm-d-request-dropped-reason", ""),
                )
        except (aiohttp.ClientError, TimeoutError):
            answer = Answer(started, monotonic() - started, 0)
        self.answers.append(answer)
        return answer

    def good(self) -> list[Answer]:
        """Return the answers of a model server."""
        return [each for each in self.answers if each.status == 200]

    def p95(self) -> float:
        """Return the time within which 95 % of those came, in seconds."""
        seconds = sorted(each.seconds for each in self.good())
        return seconds[int(0.95 * (len(seconds) - 1))]


def new_session() -> aiohttp.ClientSession:
    """Return a session with as many connections as it takes."""
    timeout = aiohttp.ClientTimeout(total=_LONGEST_SECONDS)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)


async def one_by_one(url: str, seconds: float, clients: int) -> Tenant:
    """Return the answers of clients each of which asks again as soon as it has an answer."""
    tenant, end = Tenant("calibration", HIGH), monotonic() + seconds

    async def client(session: aiohttp.ClientSession) -> None:
        while monotonic() < end:
            await tenant.ask(session, url)

    async with new_session() as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return tenant


async def at_rates(url: str, seconds: float, tenants: Sequence[tuple[Tenant, float]]) -> None:
    """Send requests of each tenant at its rate per second, however long answers take, and wait for all answers."""
    chance = random.Random(1)
    end = monotonic() + seconds

    async def come(session: aiohttp.ClientSession, tenant: Tenant, rate: float, asked: asyncio.TaskGroup) -> None:
        due = monotonic()
        while True:
            due += chance.expovariate(rate)
            if due >= end:
                return
            await asyncio.sleep(max(0.0, due - monotonic()))
            asked.create_task(tenant.ask(session, url))

    async with new_session() as session, asyncio.TaskGroup() as group:
        for tenant, rate in tenants:
            group.create_task(come(session, tenant, rate, group))
