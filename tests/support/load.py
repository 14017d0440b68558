# SPDX-License-Identifier: Apache-2.0
"""Clients that send one request after the other, short ones and long streams, and that take no failure."""

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from tests.support.waiting import until
from tests.support.world import question

SHORT_TOKENS = 2
LONG_TOKENS = 400
MOST_REQUESTS = 50_000
"""What all clients send at most: a test that hangs does not go on for ever."""


@dataclass(frozen=True)
class Answer:
    started: float
    ended: float
    server: str


class Load:
    """Requests under way, and those that were answered with 200, to the last byte."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self._open: dict[int, float] = {}
        self._numbers = itertools.count()

    def after(self, moment: float) -> list[Answer]:
        """Return the answers to requests that were sent after that."""
        return [answer for answer in self.answers if answer.started > moment]

    def servers_after(self, moment: float) -> set[str]:
        """Return the names of the servers that answered requests that were sent after that."""
        return {answer.server for answer in self.after(moment)}

    async def answered_after(self, moment: float, count: int = 20) -> set[str]:
        """Wait for answers to requests that were sent after that; return the names of the servers."""
        await until(lambda: len(self.after(moment)) >= count, f"{count} more requests are answered", seconds=60)
        return self.servers_after(moment)

    async def reaches(self, *servers: str) -> None:
        """Wait until each of these servers has answered a request that is sent from now on; fails if others do."""
        moment = time.monotonic()
        await until(lambda: self.servers_after(moment) >= set(servers), f"{servers} have all answered", seconds=60)
        assert self.servers_after(moment) == set(servers)

    async def ended_before(self, moment: float) -> None:
        """Wait until every request that was sent before that is answered."""
        await until(
            lambda: all(started > moment for started in self._open.values()), "earlier requests have ended", seconds=60
        )

    async def send(self, http: aiohttp.ClientSession, tokens: int) -> None:
        """Send one request; fails unless it is answered with 200, and all of its stream arrives."""
        number, started = next(self._numbers), time.monotonic()
        self._open[number] = started
        chat = question(secrets.token_hex(16), tokens, ignore_eos=True, stream=tokens > SHORT_TOKENS)
        try:
            async with http.post("/v1/chat/completions", json=chat) as response:
                content = await response.read()
        finally:
            del self._open[number]
        assert response.status == 200, f"{response.status} {content!r:.300}"
        if chat["stream"]:
            assert content.endswith(b"data: [DONE]\n\n"), f"a stream ends with {content[-200:]!r}"
        self.answers.append(Answer(started, time.monotonic(), response.headers["x-sim-server"]))


@asynccontextmanager
async def load_on(url: str, *, short: int = 4, long: int = 2) -> AsyncIterator[Load]:
    """Let so many clients send short requests, and so many long ones, until the block ends."""
    load = Load()
    stopping = asyncio.Event()

    async def ask_on(tokens: int) -> None:
        while not stopping.is_set() and len(load.answers) < MOST_REQUESTS:
            await load.send(http, tokens)

    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(url, timeout=timeout) as http, asyncio.TaskGroup() as clients:
        for tokens in [SHORT_TOKENS] * short + [LONG_TOKENS] * long:
            clients.create_task(ask_on(tokens))
        yield load
        stopping.set()
