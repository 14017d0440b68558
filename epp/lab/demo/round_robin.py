# SPDX-License-Identifier: Apache-2.0
"""What round robin would have given: the demo's requests, sent to a second set of the same servers in turn."""

import asyncio
import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from itertools import cycle
from typing import NamedTuple

import aiohttp

_WINDOW_SECONDS = 60.0
_P90 = 0.9
_FEWEST = 10
"""Requests from which on there is something to compare."""
_SIM_SERVER = "x-sim-server"


class Sample(NamedTuple):
    """One request; times are seconds on the monotonic clock."""

    server: str
    started: float
    first_token: float
    ended: float


class Samples:
    """The requests of the last minute."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()

    def add(self, sample: Sample) -> None:
        """Keep a request, and drop what is older than a minute."""
        self._samples.append(sample)
        while self._samples[0].ended < sample.ended - _WINDOW_SECONDS:
            self._samples.popleft()

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def p90_seconds(self) -> float:
        """Time to the first token that nine of ten requests stay within."""
        times = sorted(each.first_token - each.started for each in self._samples)
        return times[int(_P90 * (len(times) - 1))]

    def dollars_per_hour(self, prices: Mapping[str, float]) -> float:
        """Return the price of the servers for the share of the time in which they had a request."""
        begin, end = min(each.started for each in self._samples), max(each.ended for each in self._samples)
        seconds = max(end - begin, 1e-9)
        return sum(self._busy_seconds(server) / seconds * price for server, price in prices.items())

    def _busy_seconds(self, server: str) -> float:
        busy, until = 0.0, 0.0
        for started, ended in sorted((each.started, each.ended) for each in self._samples if each.server == server):
            busy += max(ended - max(started, until), 0.0)
            until = max(until, ended)
        return busy


class RoundRobin:
    """Sends a copy of each request to the next server of the second set; the conversation does not wait for it."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.routed, self.in_turn = Samples(), Samples()
        """Requests by the picker, and their copies."""
        self._addresses = cycle(addresses)
        self._copies: set[asyncio.Task[object]] = set()

    def copy(self, session: aiohttp.ClientSession, body: Mapping[str, object]) -> None:
        """Send a copy."""
        url = f"http://{next(self._addresses)}/v1/chat/completions"
        task: asyncio.Task[object] = asyncio.create_task(ask(session, url, body, self.in_turn))
        self._copies.add(task)
        task.add_done_callback(self._copies.discard)

    async def close(self) -> None:
        """Give up copies that are under way."""
        for copy in self._copies:
            copy.cancel()
        await asyncio.gather(*self._copies, return_exceptions=True)

    def line(self, prices: Mapping[str, float]) -> str:
        """Return the comparison; `prices` are US dollars per hour by name of the server."""
        if min(len(self.routed), len(self.in_turn)) < _FEWEST:
            return ""
        routed, in_turn = (
            f"{samples.p90_seconds:.2f} s, ${samples.dollars_per_hour(prices):.2f}/h"
            for samples in (self.routed, self.in_turn)
        )
        return f"last minute, p90 to the first token and busy servers: {routed}; by round robin {in_turn}"


async def ask(
    session: aiohttp.ClientSession, url: str, body: Mapping[str, object], samples: Samples | None
) -> str | None:
    """Return the answer of a streamed chat; None for any failure, which the table shows."""
    started, first, pieces, server = time.monotonic(), 0.0, [], ""
    try:
        async with session.post(url, json=body) as response:
            if response.status != HTTPStatus.OK:
                return None
            server = response.headers.get(_SIM_SERVER, "")
            async for line in response.content:
                if line.startswith(b"data: {"):
                    for choice in json.loads(line[len(b"data: ") :])["choices"]:  # none in the chunk with the usage
                        if piece := choice["delta"].get("content"):
                            first = first or time.monotonic()
                            pieces.append(piece)
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError):
        return None
    if samples is not None and first:
        samples.add(Sample(server, started, first, time.monotonic()))
    return "".join(pieces)
