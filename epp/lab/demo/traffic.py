# SPDX-License-Identifier: Apache-2.0
"""Traffic for the demo: conversations that grow turn by turn."""

import asyncio
import itertools
import random

import aiohttp

from epp.lab.demo.round_robin import RoundRobin, ask

_TURNS = 6
_SYSTEM = "You are the assistant of shop {number}. " + "Be brief, be friendly, quote prices in euros. " * 40
_QUESTIONS = (
    "Where is my parcel?",
    "Do you have this in blue?",
    "How do I return a pair of shoes?",
    "Is the offer of last week still on?",
    "Which size fits someone of 1.80 m?",
)


class Traffic:
    """Several clients, with one conversation each, that send requests to a gateway.

    Together they send at most `requests_per_second`: each waits for its answer, then pauses.
    """

    def __init__(
        self,
        url: str,
        model: str,
        requests_per_second: float,
        *,
        conversations: int,
        beside: RoundRobin | None = None,
    ) -> None:
        """`beside` gets a copy of each request."""
        self._url = f"{url}/v1/chat/completions"
        self._model = model
        self._beside = beside
        self._conversations = conversations
        self._pause_seconds = conversations / requests_per_second

    async def run(self) -> None:
        """Send until cancelled."""
        async with aiohttp.ClientSession() as session:
            try:
                async with asyncio.TaskGroup() as clients:
                    for number in range(self._conversations):
                        clients.create_task(self._client(session, number))
            finally:
                if self._beside is not None:
                    await self._beside.close()

    async def _client(self, session: aiohttp.ClientSession, number: int) -> None:
        generator = random.Random(number)  # noqa: S311  not for secrets
        for conversation in itertools.count():
            messages = [{"role": "system", "content": _SYSTEM.format(number=number)}]
            for turn in range(_TURNS):
                await asyncio.sleep(generator.expovariate(1 / self._pause_seconds))
                question = generator.choice(_QUESTIONS)
                messages.append({"role": "user", "content": f"({conversation}.{turn}) {question}"})
                answer = await self._ask(session, messages)
                if answer is None:
                    break
                messages.append({"role": "assistant", "content": answer})

    async def _ask(self, session: aiohttp.ClientSession, messages: list[dict[str, str]]) -> str | None:
        body = {
            "model": self._model,
            "messages": list(messages),
            "max_tokens": 48,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._beside is None:
            return await ask(session, self._url, body, None)
        self._beside.copy(session, body)
        return await ask(session, self._url, body, self._beside.routed)
