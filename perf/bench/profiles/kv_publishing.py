# SPDX-License-Identifier: Apache-2.0
"""KV events of simulated engines: what their caches store and evict, as they would publish it."""

from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from epp.framework import Endpoint
from epp.lab.sim import SimRequest
from epp.pool.kv_events.events import BlockRemoved, BlockStored, Event
from epp.pool.kv_events.index import Message
from epp.pool.kv_events.producer import PrecisePrefixCacheProducer
from perf.bench.profiles.replicas import Replica
from perf.bench.profiles.workloads import MODEL

PUBLISH_SECONDS = 0.005
"""From the end of a step of the engine to the index of the picker."""


class _Block(NamedTuple):
    parent: bytes | None
    depth: int
    token_ids: Sequence[int]


class Publisher:
    """The changes in the cache of one engine."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._blocks: dict[bytes, _Block] = {}
        self._told: AbstractSet[bytes] = frozenset()

    def learn(self, request: SimRequest, prompt_ids: Sequence[int]) -> None:
        """Remember the tokens of the blocks of a request; those of its answer, which no prompt has, are made up."""
        size, parent = self._block_size, None
        ids = [*prompt_ids, *range(request.output_tokens)]
        for depth, block in enumerate(request.block_hashes):
            if block not in self._blocks:
                self._blocks[block] = _Block(parent, depth, ids[depth * size : (depth + 1) * size])
            parent = block

    def changes(self, cached: AbstractSet[bytes]) -> Sequence[Event]:
        """Return the events since the last call; parents are stored before their children."""
        gone, new = self._told - cached, cached - self._told
        self._told = frozenset(cached)
        events: list[Event] = [BlockRemoved(list(gone))] if gone else []
        return [*events, *self._stored(new)]

    def _stored(self, new: Collection[bytes]) -> Iterator[Event]:
        for block in sorted(new, key=lambda each: self._blocks[each].depth):
            parent, _, ids = self._blocks[block]
            yield BlockStored([block], parent, list(ids), self._block_size)


def deliver(replica: Replica, endpoint: Endpoint, events: Sequence[Event]) -> None:
    """Write events to the indexes of a picker."""
    for producer in replica.assembly.plugins:
        if isinstance(producer, PrecisePrefixCacheProducer):
            lane = producer._lanes[endpoint.identity]  # noqa: SLF001  as messages of its engine are
            left = [Message(lane, MODEL, (event,)) for event in events]
            while left:
                applied = producer._index.apply(left, int(producer.clock.now()) + 1)  # noqa: SLF001  the same
                left = left[applied:]
            producer._forget_expected()  # noqa: SLF001  as its task does
