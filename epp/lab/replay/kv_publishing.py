# SPDX-License-Identifier: Apache-2.0
"""KV events of simulated engines: what their caches store and evict, as they would publish it."""

from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from epp.framework import Endpoint
from epp.lab.replay.replicas import Replica
from epp.lab.sim import SimRequest
from epp.lab.sim.kv_cache import BlockHash
from epp.pool.kv_events.events import BlockRemoved, BlockStored, Event
from epp.pool.kv_events.index import Message

PUBLISH_SECONDS = 0.005
"""From the end of a step of the engine to the index of the picker."""


class Published(NamedTuple):
    """An event, and the model of the block."""

    model: str
    event: Event


class _Block(NamedTuple):
    parent: BlockHash | None
    depth: int
    token_ids: Sequence[int]
    model: str


class Publisher:
    """The changes in the cache of one engine."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._blocks: dict[BlockHash, _Block] = {}
        self._told: AbstractSet[BlockHash] = frozenset()

    def learn(self, request: SimRequest, token_ids: Sequence[int], model: str) -> None:
        """Remember the token ids of the blocks of a request, those of its answer included."""
        parent: BlockHash | None = None
        size, ids = self._block_size, token_ids
        for depth, block in enumerate(request.block_hashes):
            if block not in self._blocks:
                self._blocks[block] = _Block(parent, depth, ids[depth * size : (depth + 1) * size], model)
            parent = block

    def changes(self, cached: AbstractSet[BlockHash]) -> Sequence[Published]:
        """Return the events since the last call; parents are stored before their children."""
        gone, new = self._told - cached, cached - self._told
        self._told = frozenset(cached)
        events = [Published("", BlockRemoved(sorted(gone)))] if gone else []
        return [*events, *self._stored(new)]

    def _stored(self, new: Collection[BlockHash]) -> Iterator[Published]:
        for block in sorted(new, key=lambda each: (self._blocks[each].depth, each)):
            parent, _, ids, model = self._blocks[block]
            yield Published(model, BlockStored([block], parent, list(ids), self._block_size))


def deliver(replica: Replica, endpoint: Endpoint, events: Sequence[Published]) -> None:
    """Write events to the indexes of a picker."""
    for producer in replica.kv_event_readers:
        lane = producer._lanes.get(endpoint.identity)  # noqa: SLF001  as messages of its engine are
        if lane is None:  # it reads the matches of another one
            continue
        left = [Message(lane, model, (event,)) for model, event in events]
        while left:
            applied = producer._index.apply(left, int(producer.clock.now()) + 1)  # noqa: SLF001  the same
            left = left[applied:]
        producer._forget_expected()  # noqa: SLF001  as its task does
