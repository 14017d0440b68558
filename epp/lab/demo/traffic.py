# SPDX-License-Identifier: Apache-2.0
"""Traffic of the demo: conversations with growing prompts, copies sent by round robin, and the table of endpoints."""

import asyncio
import json
import random
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from itertools import count, cycle
from math import isnan
from typing import NamedTuple

import aiohttp
from rich.markup import escape
from rich.table import Table

from epp.framework import Candidates, Snapshot
from epp.framework.accelerators.arrays import cost_per_hour
from epp.framework.snapshot import (
    ACCELERATOR,
    ANSWERS,
    IN_FLIGHT,
    KV_USAGE,
    PREFIX_HIT_TOKENS,
    PREFIX_QUERY_TOKENS,
    REACHABLE,
    REFUSES,
    RUNNING,
    SERVED,
    SILENT,
    WAITING,
)
from epp.routing.director import Cause, DirectorObserver, Refusal, Routing

_WINDOW_SECONDS = 60.0
_P90 = 0.9
_FEWEST = 10
"""Minimum number of requests for a comparison."""
_SIM_SERVER = "x-sim-server"
_TURNS = 6
_SYSTEM = "You are the assistant of shop {number}. " + "Be brief, be friendly, quote prices in euros. " * 40
_QUESTIONS = (
    "Where is my parcel?",
    "Do you have this in blue?",
    "How do I return a pair of shoes?",
    "Is the offer of last week still on?",
    "Which size fits someone of 1.80 m?",
)


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
        self._samples.append(sample)
        while self._samples[0].ended < sample.ended - _WINDOW_SECONDS:
            self._samples.popleft()

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def p90_seconds(self) -> float:
        """90th percentile of the time to the first token."""
        times = sorted(each.first_token - each.started for each in self._samples)
        return times[int(_P90 * (len(times) - 1))]

    def dollars_per_hour(self, prices: Mapping[str, float]) -> float:
        """Return the total price of the servers, each weighted by its busy share of the time."""
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
    """Sends a copy of each request to the next server of a second set; conversations do not wait for it."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.routed, self.copied = Samples(), Samples()
        """Requests routed by the picker, and their copies."""
        self._addresses = cycle(addresses)
        self._copies: set[asyncio.Task[object]] = set()

    def copy(self, session: aiohttp.ClientSession, body: Mapping[str, object]) -> None:
        url = f"http://{next(self._addresses)}/v1/chat/completions"
        task: asyncio.Task[object] = asyncio.create_task(ask(session, url, body, self.copied))
        self._copies.add(task)
        task.add_done_callback(self._copies.discard)

    async def close(self) -> None:
        for copy in self._copies:
            copy.cancel()
        await asyncio.gather(*self._copies, return_exceptions=True)

    def line(self, prices: Mapping[str, float]) -> str:
        if min(len(self.routed), len(self.copied)) < _FEWEST:
            return ""
        routed, copied = (
            f"{samples.p90_seconds:.2f} s, ${samples.dollars_per_hour(prices):.2f}/h"
            for samples in (self.routed, self.copied)
        )
        return f"last minute, p90 to the first token and busy servers: {routed}; by round robin {copied}"


async def ask(
    session: aiohttp.ClientSession, url: str, body: Mapping[str, object], samples: Samples | None
) -> str | None:
    """Return the answer of a streamed chat; None if it failed (the table shows failures)."""
    started, first, pieces, server = time.monotonic(), 0.0, [], ""
    try:
        async with session.post(url, json=body) as response:
            if response.status != HTTPStatus.OK:
                return None
            server = response.headers.get(_SIM_SERVER, "")
            async for line in response.content:
                if line.startswith(b"data: {"):
                    for choice in json.loads(line[len(b"data: ") :])["choices"]:  # empty in the chunk with the usage
                        if piece := choice["delta"].get("content"):
                            first = first or time.monotonic()
                            pieces.append(piece)
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError):
        return None
    if samples is not None and first:
        samples.add(Sample(server, started, first, time.monotonic()))
    return "".join(pieces)


class Traffic:
    """Clients with one conversation each, which send requests to a gateway.

    Together they send at most `requests_per_second`: each waits for its answer, then pauses. `beside` receives a copy
    of each request.
    """

    def __init__(
        self, url: str, model: str, requests_per_second: float, *, conversations: int, beside: RoundRobin | None = None
    ) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._model = model
        self._beside = beside
        self._conversations = conversations
        self._pause_seconds = conversations / requests_per_second

    async def run(self) -> None:
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
        for conversation in count():
            messages = [{"role": "system", "content": _SYSTEM.format(number=number)}]
            for turn in range(_TURNS):
                await asyncio.sleep(generator.expovariate(1 / self._pause_seconds))
                question = generator.choice(_QUESTIONS)
                messages.append({"role": "user", "content": f"({conversation}.{turn}) {question}"})
                body = {
                    "model": self._model,
                    "messages": list(messages),
                    "max_tokens": 48,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                }
                if self._beside is not None:
                    self._beside.copy(session, body)
                answer = await ask(session, self._url, body, None if self._beside is None else self._beside.routed)
                if answer is None:
                    break
                messages.append({"role": "assistant", "content": answer})


_UNKNOWN = "-"
_STATES = {ANSWERS: "up", SILENT: "silent", REFUSES: "unreachable"}


class Row(NamedTuple):
    """Cells of one endpoint."""

    name: str
    address: str
    accelerator: str
    dollars_per_hour: str
    waiting: str
    running: str
    kv_usage: str
    in_flight: str
    served: str
    prefix_hits: str
    """Share of prompt tokens found in the engine's prefix cache, since its start."""
    state: str
    cluster: str = ""
    """Name of its cluster; empty for the local one."""


def rows(snapshot: Snapshot) -> Iterator[Row]:
    all_endpoints = Candidates(snapshot, snapshot.slots)
    waiting, running, usage = (all_endpoints.values(column) for column in (WAITING, RUNNING, KV_USAGE))
    in_flight, served, reachable = (all_endpoints.values(column) for column in (IN_FLIGHT, SERVED, REACHABLE))
    hits, queries = all_endpoints.values(PREFIX_HIT_TOKENS), all_endpoints.values(PREFIX_QUERY_TOKENS)
    tags, prices = all_endpoints.records(ACCELERATOR), cost_per_hour(all_endpoints)
    for position, endpoint in enumerate(all_endpoints.endpoints):
        tag = tags[position]
        yield Row(
            endpoint.name,
            endpoint.hostport,
            f"{tag.model.upper()} {tag.partition.profile}".strip() or _UNKNOWN,
            _UNKNOWN if isnan(prices[position]) else f"{prices[position]:.2f}",
            _count(waiting[position]),
            _count(running[position]),
            _percent(usage[position]),
            _count(in_flight[position]),
            _count(served[position]),
            _percent(hits[position] / queries[position] if queries[position] > 0 else float("nan")),
            _STATES.get(float(reachable[position]), ""),
            endpoint.cluster,
        )


def table(snapshot: Snapshot, caption: str = "") -> Table:
    result = Table(
        title="endpoints",
        title_justify="left",
        caption=escape(caption),
        caption_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
        expand=True,
    )
    found = tuple(rows(snapshot))
    clusters = any(row.cluster for row in found)
    result.add_column("endpoint", overflow="fold")
    if clusters:
        result.add_column("cluster", overflow="fold")
    result.add_column("accelerator", overflow="fold")
    for heading in ("$/h", "wait", "run", "KV", "in\nflight", "served", "prefix\nhits"):  # all fit into 80 columns
        result.add_column(heading, justify="right", overflow="fold")
    result.add_column("state", overflow="fold")
    for row in found:
        result.add_row(
            f"[bold]{escape(row.name)}[/]\n[dim]{escape(row.address)}[/]",
            *((escape(row.cluster),) if clusters else ()),
            *row[2:-1],  # from the accelerator to the state
            style=None if row.state == "up" else "red",
        )
    return result


def line(snapshot: Snapshot) -> str:
    return " | ".join(
        f"{row.name}{row.cluster and f' in {row.cluster}'} {row.state}: waiting {row.waiting} running {row.running} "
        f"KV {row.kv_usage} served {row.served} prefix hits {row.prefix_hits}"
        for row in rows(snapshot)
    )


def _count(value: float) -> str:
    return _UNKNOWN if isnan(value) else f"{value:.0f}"


def _percent(share: float) -> str:
    return _UNKNOWN if isnan(share) else f"{share:.0%}"


class LastRequest(DirectorObserver):
    """Describes the last request."""

    def __init__(self) -> None:
        self._last: Routing | Refusal | None = None

    def completed(self, routing: Routing, cause: Cause) -> None:  # noqa: ARG002
        self._last = routing

    def refused(self, refusal: Refusal) -> None:
        self._last = refusal

    @property
    def text(self) -> str:
        last = self._last
        if last is None:
            return "last request: none yet"
        if isinstance(last, Refusal):
            return f"last request: refused with {last.error.status}, {last.error.detail or last.error.message}"
        return f"last request: {last.served.name}, {last.decision.why(last.served)}"
