# SPDX-License-Identifier: Apache-2.0
"""A fleet of endpoints that publish KV events, and a producer of matches that follows them."""

import asyncio
from array import array
from contextlib import AsyncExitStack, asynccontextmanager

import numpy as np

from epp.framework import Candidates, Endpoint, ManualClock, Request, RequestBody
from epp.framework.registry import Registry
from epp.pool.collectors.tagging import Tagging
from epp.pool.kv_events.producer import PrecisePrefixCacheProducer
from epp.routing.datastore import Datastore
from tests.support.kv_publisher import Publisher
from tests.support.waiting import until

PROMPT = list(range(100, 164))
"""Four blocks of sixteen tokens."""
HASHES = [11, 12, 13, 14]


def build(clock=None, name="precise", **parameters) -> PrecisePrefixCacheProducer:
    registry = Registry({})
    registry.register(PrecisePrefixCacheProducer)
    return registry.build("precise-prefix-cache-producer", parameters, name=name, clock=clock or ManualClock(1000.0))


class Fleet:
    """Three endpoints on 127.0.0.1 to 127.0.0.3, each with a publisher, and a producer that follows them."""

    def __init__(self, port: int, publishers: list[Publisher], count: int, **parameters) -> None:
        self.clock = ManualClock(1000.0)
        self.publishers = publishers
        events = {"podDiscoveryConfig": {"socketPort": port}, **parameters.pop("kvEventsConfig", {})}
        self.producer = build(self.clock, kvEventsConfig=events, **parameters)
        self.scorer = Registry().build(
            "prefix-cache-scorer", {"prefixMatchInfoProducerName": "precise"}, name="scorer", clock=self.clock
        )
        self.store = Datastore(self.clock)
        self.endpoints = [Endpoint(f"p{number}", f"127.0.0.{number + 1}", 8000) for number in range(count)]
        self.store.replace(self.endpoints)
        self.tagging = Tagging(self.store, [self.producer])

    async def tell(self, number: int, *events) -> None:
        """Send events of an endpoint, and wait until they are applied."""
        before = self.received
        self.publishers[number].send(*events)
        await until(lambda: self.received > before, "the events have arrived")
        await asyncio.sleep(0.02)

    async def join(self, number: int, *, name: str, address: str = "", rank: int = 0) -> None:
        """Connect a publisher in place of the engine of that number; of a rank, as vLLM does, to a higher port."""
        port = int((address or self.producer.parameters.kv_events_config.zmq_endpoint).rpartition(":")[2]) + rank
        sockets = f"tcp://127.0.0.{number + 1}:0;127.0.0.1:{port}"
        self.publishers.append(Publisher(sockets, name=name, connects=True, rank=rank))
        await self.publishers[-1].subscribed()

    @property
    def received(self) -> float:
        found = (each for each in self.producer.samples if each.metric.name == "kv_cache_events_messages_received")
        return sum(each.value for each in found)

    def value(self, name: str, *labels: str) -> float:
        found = {(each.metric.name, *each.labels): each.value for each in self.producer.samples}
        return found[name, *labels]

    def request(self, ids=PROMPT, *, model="m", salt="", prompts=None) -> tuple[Request, Candidates]:
        given = prompts or [ids]
        packed = [array("I", each).tobytes() for each in given]
        ends = tuple(np.cumsum([len(each) for each in packed]).tolist()) if len(packed) > 1 else ()
        body = RequestBody(
            prompt=b"".join(packed),
            prompt_tokens=sum(map(len, given)),
            prompt_ends=ends,
            is_token_ids=True,
            cache_salt=salt,
        )
        request = Request("r", body=body, target_model=model)
        return request, Candidates(self.store.snapshot(), self.store.snapshot().available)

    def scores(self, ids=PROMPT, **more) -> list[float]:
        request, candidates = self.request(ids, **more)
        self.producer.produce(request, candidates)
        return np.asarray(self.scorer.score(request, candidates)).round(6).tolist()

    async def admitted_scores(self, ids=PROMPT, **more) -> list[float]:
        """Return the scores after all that holds the request."""
        request, candidates = self.request(ids, **more)
        await self.admit(request, candidates)
        return np.asarray(self.scorer.score(request, candidates)).round(6).tolist()

    async def admit(self, request: Request, candidates: Candidates) -> None:
        self.producer.produce(request, candidates)
        held = self.producer.admit(request, candidates)
        if held is not None:
            await held
            self.producer.produce(request, candidates)


@asynccontextmanager
async def fleet(count=3, **parameters):
    async with AsyncExitStack() as stack:
        first = Publisher("tcp://127.0.0.1:*")
        publishers = [first] + [Publisher(f"tcp://127.0.0.{number + 1}:{first.port}") for number in range(1, count)]
        found = await stack.enter_async_context(running(Fleet(first.port, publishers, count, **parameters)))
        for each in publishers:
            await each.subscribed()
        yield found


@asynccontextmanager
async def running(found):
    """Run the producer of a fleet."""
    tasks = [
        asyncio.create_task(found.tagging.follow()),
        asyncio.create_task(found.producer.follow(lambda _: None)),
    ]
    try:
        yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in found.publishers:
            each.close()
