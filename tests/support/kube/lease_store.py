# SPDX-License-Identifier: Apache-2.0
"""An API server with one lease, that refuses what an API server refuses, and replicas with clocks of their own."""

import heapq
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from epp.framework.clock import Clock
from epp.kube.access import ApiError
from epp.kube.leader_election import Attempt, Lease, LeaseSettings

SETTINGS = LeaseSettings(name="epp-llm-pool.llm-d.ai", namespace="llm")


class LeaseStore:
    """The latest version of the lease, and when its holder took it."""

    def __init__(self) -> None:
        self.document: dict | None = None
        self.requests = 0
        self.holder_since = 0
        """Number of the request that made the present holder hold it."""

    @property
    def spec(self) -> dict:
        return {} if self.document is None else self.document["spec"]

    @property
    def holder(self) -> str:
        return self.spec.get("holderIdentity", "")

    def delete(self) -> None:
        self.document = None

    def answer(self, method: str, content: dict | None) -> tuple[int, bytes]:
        """Return the status and the body."""
        self.requests += 1
        if method == "POST":
            if self.document is not None:
                return 409, b""
        elif self.document is None:
            return 404, b""
        if content is not None:
            if method == "PUT" and content["metadata"]["resourceVersion"] != self._version:
                return 409, b""
            before = self.holder
            self.document = json.loads(json.dumps(content))
            self.document["metadata"]["resourceVersion"] = str(self.requests)
            if self.holder != before:
                self.holder_since = self.requests
        return 200, json.dumps(self.document).encode()

    @property
    def _version(self) -> str:
        assert self.document is not None
        return self.document["metadata"]["resourceVersion"]


def deliver(exchange: Attempt, status: int, body: bytes) -> tuple[str, dict | None] | None:
    """Deliver a response; return the next request, None at the end."""
    try:
        return exchange.send(body) if status == 200 else exchange.throw(ApiError(status))
    except StopIteration:
        return None


def attempt(lease: Lease, store: LeaseStore, *, resigns: bool = False) -> list[str]:
    """Renew the lease, try to take it, or release it; return the methods of all requests."""
    exchange = lease.attempt(resigns=resigns)
    sent, request = [], next(exchange)
    while request is not None:
        sent.append(request[0])
        request = deliver(exchange, *store.answer(*request))
    return sent


@dataclass
class World:
    """Real time, which no replica knows."""

    time: float = 0.0
    queue: list[tuple[float, int, Iterator[float]]] = field(default_factory=list)

    def start(self, process: Iterator[float]) -> None:
        """Run a process that yields how long it waits."""
        heapq.heappush(self.queue, (self.time, len(self.queue), process))

    def steps(self, until: float) -> Iterator[float]:
        """Run all processes until a time; yield the time after each step."""
        while self.queue and self.queue[0][0] <= until:
            self.time, order, process = heapq.heappop(self.queue)
            wait = next(process, None)
            if wait is not None:
                heapq.heappush(self.queue, (self.time + wait, order, process))
            yield self.time


@dataclass
class DriftingClock(Clock):
    """Runs at its own rate, and is set wrong."""

    world: World
    rate: float = 1.0
    offset: float = 0.0

    def now(self) -> float:
        return self.world.time * self.rate

    def utc(self) -> float:
        return max(0.0, self.world.time * self.rate + self.offset)


@dataclass
class Replica:
    """A replica that takes part until it crashes or resigns."""

    lease: Lease
    clock: DriftingClock
    generator: random.Random
    latency_seconds: float = 0.0
    crashes_at: float = float("inf")
    resigns_at: float = float("inf")

    @property
    def leads(self) -> bool:
        """Whether it believes to lead, and is there to act on it."""
        world = self.clock.world
        return self.lease.is_leader and world.time < min(self.crashes_at, self.resigns_at)

    @property
    def takes_part(self) -> bool:
        return self.clock.world.time < min(self.crashes_at, self.resigns_at)

    def run(self, store: LeaseStore) -> Iterator[float]:
        world = self.clock.world
        while world.time < self.resigns_at:
            yield from self._send_all(store)
            yield SETTINGS.retry_seconds * self.generator.uniform(0.8, 1.2) / self.clock.rate
            if world.time >= self.crashes_at:
                return
        yield from self._send_all(store, resigns=True)

    def _send_all(self, store: LeaseStore, *, resigns: bool = False) -> Iterator[float]:
        exchange = self.lease.attempt(resigns=resigns)
        request = next(exchange)
        while request is not None:
            yield self.latency_seconds * self.generator.random()
            if self.clock.world.time >= self.crashes_at:
                return
            answer = store.answer(*request)
            yield self.latency_seconds * self.generator.random()
            if self.clock.world.time >= self.crashes_at:
                return
            request = deliver(exchange, *answer)
