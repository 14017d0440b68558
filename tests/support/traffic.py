# SPDX-License-Identifier: Apache-2.0
"""Clients that send one request after the other, and remember who answered each, and when."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from openai import AsyncOpenAI

from tests.support.world import MODEL, until

CLIENTS = 4
MOST_REQUESTS = 20_000
"""What all clients send at most: a test that hangs does not go on for ever."""


@dataclass(frozen=True)
class Answer:
    started: float
    ended: float
    server: str


def client_of(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=30)


@contextlib.asynccontextmanager
async def traffic(url: str) -> AsyncIterator[list[Answer]]:
    """Let clients send requests until the block ends; fails if any is not answered with 200."""
    answers: list[Answer] = []
    stopping = asyncio.Event()

    async def ask(number: int) -> None:
        started = time.monotonic()
        raw = await client.chat.completions.with_raw_response.create(
            model=MODEL, messages=[{"role": "user", "content": f"q{number}"}], max_tokens=2
        )
        assert raw.status_code == 200
        answers.append(Answer(started, time.monotonic(), raw.headers["x-sim-server"]))

    async def ask_on() -> None:
        while not stopping.is_set() and len(answers) < MOST_REQUESTS:
            await ask(len(answers))

    async with client_of(url) as client, asyncio.TaskGroup() as clients:
        for _ in range(CLIENTS):
            clients.create_task(ask_on())
        yield answers
        stopping.set()


async def some_after(answers: list[Answer], moment: float) -> set[str]:
    """Return who answered the requests that were sent after that; waits for twenty of them."""

    def after() -> list[Answer]:
        return [answer for answer in answers if answer.started > moment]

    await until(lambda: len(after()) >= 20, "twenty more requests are answered")
    return {answer.server for answer in after()}
