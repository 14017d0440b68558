# SPDX-License-Identifier: Apache-2.0
"""Clients: at a fixed rate, in a closed loop, or with retries after exactly the `retry-after` of a refusal."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic

import aiohttp

from perf.overload.stage import PRIORITIES

ID = "x-overload-id"
"""Header with the unique number of a request."""
_MODEL = "meta-llama/Llama-3.1-8B-Instruct"
_LEAST_TOKENS, _LENGTHS = 10, 21
MEAN_TOKENS = _LEAST_TOKENS + _LENGTHS // 2
"""Mean tokens of an answer."""
_LONGEST_SECONDS = 120.0
_BETWEEN_SECONDS = 1.0
"""Pause after a refusal without `retry-after`, or without a response."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Outcome of a request."""

    id: str
    sent_at: float
    left_at: float
    """Time at which it left the gateway's queues, for a server or with a refusal."""
    came_at: float
    status: int
    """HTTP status; 0 without a response."""
    tokens: int = 0
    """Tokens of the answer of a server."""
    retry_after: str = ""

    @property
    def seconds(self) -> float:
        """Seconds from request to answer."""
        return self.came_at - self.sent_at

    @property
    def queued_seconds(self) -> float:
        """Seconds from request to server, or to the refusal."""
        return self.left_at - self.sent_at

    @property
    def told_seconds(self) -> int | None:
        """`retry-after` of a refusal in seconds; None without one."""
        return int(self.retry_after) if self.retry_after.isdigit() else None


@dataclass(slots=True)
class Tenant:
    """Requests of one fairness id."""

    name: str
    objective: str
    sent: int = 0
    answers: list[Answer] = field(default_factory=list)
    again: list[tuple[Answer, ...]] = field(default_factory=list)
    """Answers to a request and its retries: refusals, and the last answer."""

    @property
    def priority(self) -> int:
        """Priority of its objective."""
        return PRIORITIES[self.objective]

    def good(self) -> list[Answer]:
        """Return the answers of a model server."""
        return [each for each in self.answers if each.status == 200]

    def refused(self) -> list[Answer]:
        """Return the refusals with status 429."""
        return [each for each in self.answers if each.status == 429]

    async def ask(self, session: aiohttp.ClientSession, url: str) -> Answer:
        """Send a request and record its answer."""
        number, self.sent = self.sent, self.sent + 1
        name = f"{self.name}-{number}"
        headers = {"x-llm-d-inference-fairness-id": self.name, "x-llm-d-inference-objective": self.objective, ID: name}
        tokens = _LEAST_TOKENS + number * 8 % _LENGTHS  # all lengths equally often
        body = {"model": _MODEL, "prompt": f"{name} {monotonic()}", "max_tokens": tokens, "ignore_eos": True}
        started = monotonic()
        try:
            async with session.post(f"{url}/v1/completions", json=body, headers=headers) as response:
                said = await response.json(content_type=None)
                came, told = monotonic(), response.headers
                at_server = float(told.get("x-envoy-upstream-service-time", 0)) / 1e3
                generated = said["usage"]["completion_tokens"] if response.status == 200 else 0
                answer = Answer(
                    name, started, came - at_server, came, response.status, generated, told.get("retry-after", "")
                )
        except (aiohttp.ClientError, TimeoutError, ValueError):
            answer = Answer(name, started, monotonic(), monotonic(), 0)
        self.answers.append(answer)
        return answer


@asynccontextmanager
async def new_session() -> AsyncIterator[aiohttp.ClientSession]:
    """Open a session without a limit on connections."""
    timeout = aiohttp.ClientTimeout(total=_LONGEST_SECONDS)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        yield session


async def one_by_one(urls: Sequence[str], tenant: Tenant, seconds: float, clients: int) -> None:
    """Send with a number of clients per address, each in a closed loop."""
    end = monotonic() + seconds

    async def client(session: aiohttp.ClientSession, url: str) -> None:
        while monotonic() < end:
            await tenant.ask(session, url)

    async with new_session() as session:
        await asyncio.gather(*(client(session, url) for url in urls for _ in range(clients)))


async def at_rate(session: aiohttp.ClientSession, url: str, tenant: Tenant, rate: float, end: float) -> None:
    """Send requests at a fixed rate (open loop), and wait for all answers."""
    chance = random.Random(tenant.name)
    due = monotonic()
    async with asyncio.TaskGroup() as asked:
        while (due := due + chance.expovariate(rate)) < end:
            await asyncio.sleep(max(0.0, due - monotonic()))
            asked.create_task(tenant.ask(session, url))


async def again_when_told(session: aiohttp.ClientSession, url: str, tenant: Tenant, clients: int, end: float) -> None:
    """Send with a number of clients; each retries after exactly its `retry-after`."""

    async def client() -> None:
        while monotonic() < end:
            tries: list[Answer] = []
            while monotonic() < end:
                answer = await tenant.ask(session, url)
                tries.append(answer)
                if answer.status == 200:
                    break
                due = answer.came_at + (answer.told_seconds or _BETWEEN_SECONDS)
                await asyncio.sleep(min(due, end) - monotonic())
            tenant.again.append(tuple(tries))

    await asyncio.gather(*(client() for _ in range(clients)))
