# SPDX-License-Identifier: Apache-2.0
"""KV events of simulated engines: what their caches store and evict, as they would publish it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from epp.framework import Endpoint
from epp.lab.replay.replicas import Replica
from epp.lab.sim import SimRequest
from epp.lab.sim.kv_cache import KVChanges
from epp.pool.kv_events.events import BlockRemoved, BlockStored, Event
from epp.pool.kv_events.index import Message

PUBLISH_SECONDS = 0.005
"""From the end of a step of the engine to the index of the picker."""


class _Submitted(NamedTuple):
    request: SimRequest
    token_ids: Sequence[int]
    """Those of its answer included."""
    model: str


class Publisher:
    """Describes the changes in the cache of one engine by the requests that fill it."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._submitted: dict[int, _Submitted] = {}

    def learn(self, request: SimRequest, token_ids: Sequence[int], model: str) -> None:
        """Remember a request that is submitted to the engine."""
        self._submitted[request.request_id] = _Submitted(request, token_ids, model)

    def forget(self, request_id: int) -> None:
        """Forget a request that the engine has no longer."""
        self._submitted.pop(request_id, None)

    def events(self, changes: KVChanges) -> Sequence[Event]:
        """Return the events of changes; parents are stored before their children.

        Blocks that move to host memory are named only, as by vLLM: the index still has them from the GPU.
        """
        moves = (
            BlockStored(sorted(changes.offloaded), None, [], 0, medium="CPU"),
            BlockRemoved(sorted(changes.evicted)),
            BlockRemoved(sorted(changes.dropped), medium="CPU"),
        )
        return [*(event for event in moves if event.block_hashes), *self._stored(changes)]

    def _stored(self, changes: KVChanges) -> Iterator[Event]:
        size = self._block_size
        places = sorted((place, block, owner) for block, (owner, place) in changes.stored.items())
        for place, block, owner in places:
            request, ids, model = self._submitted[owner]
            parent = request.block_hashes[place - 1] if place else None
            own = list(ids[place * size : (place + 1) * size])
            # the model of the request as an adapter: the engine has one name for a block, whatever its requests ask for
            yield BlockStored([block], parent, own, size, lora_name=model)


def deliver(replica: Replica, endpoint: Endpoint, events: Sequence[Event]) -> None:
    """Write events to the indexes of a picker."""
    for producer in replica.kv_event_readers:
        lane = producer._lanes.get(endpoint.identity)  # noqa: SLF001  as messages of its engine are
        if lane is None:  # it reads the matches of another one
            continue
        left = [Message(lane, "", (event,)) for event in events]
        while left:
            applied = producer._index.apply(left, int(producer.clock.now()) + 1)  # noqa: SLF001  the same
            left = left[applied:]
        producer._forget_expected()  # noqa: SLF001  as its task does
