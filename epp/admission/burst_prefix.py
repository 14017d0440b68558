# SPDX-License-Identifier: Apache-2.0
"""The plugin `burst-prefix-cache-producer`, which places simultaneous requests with equal prompts together."""

import asyncio
from array import array
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from secrets import token_bytes
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from epp.framework import (
    PREFIX_MATCH,
    PROMPT_TOKENS,
    Admitter,
    Candidates,
    Count,
    DataKey,
    Natural,
    Parameters,
    PrefixMatch,
    Producer,
    Request,
    Snapshot,
    Stability,
    Tunable,
)
from epp.framework.plugin_status import PluginMetric, Sample
from epp.framework.snapshot import RUNNING
from epp.plugins.prefix_cache.joint_placement import Balance, Placement
from epp.plugins.prefix_cache.producer import block_hashes, chain_seed

_MOST_BLOCKS_BY_DEFAULT = 2048
_MOST_REQUESTS = 10_000
"""Largest batch without a configured limit, in requests."""
_MOST_BLOCKS = 4 * 1024 * 1024
"""Most prompt blocks of one batch (32 MiB)."""
_BLOCKS_AT_A_TIME = 20_000
"""Blocks placed in one iteration of the event loop, which takes five milliseconds."""
_RELEASED_AT_A_TIME = 16
"""Requests released in one iteration of the event loop."""
_Limit = Annotated[int, Meta(ge=-1)]
_REQUESTS = PluginMetric(
    "burst_prefix_requests",
    "Requests by result: placed with others, alone in its group, or not held because the batch was full.",
    ("result",),
    is_counter=True,
)


class BurstPrefixCacheParameters(Parameters, frozen=True):
    """Window of a batch, and placement of its requests."""

    window_duration_ms: Annotated[int, Meta(ge=1, le=10_000), Tunable(5, 1_000, log=True)] = 100
    """Time for which the first request of a batch waits for others, in ms."""
    max_per_replica: _Limit = -1
    """Largest number of requests with equal prompts on one endpoint, as long as others have fewer; -1 for no limit."""
    block_size_tokens: Count = 64
    """Tokens in one block."""
    max_prefix_tokens_to_match: Natural = 0
    """Tokens of a prompt that are compared, at least one block; 0 for 2,048 blocks."""
    min_colocate_blocks: Natural = 0
    """Smallest number of equal leading blocks for which different prompts share an endpoint; 0 for never."""
    max_batch_size: _Limit = 1000
    """Largest number of requests in a batch; -1 for 10,000. Further requests are not held."""
    balance_by: Literal["requests", "tokens"] = "requests"
    """Load of an endpoint in a batch: its requests, or the blocks that it must compute."""

    def __post_init__(self) -> None:
        for name, value in (("maxPerReplica", self.max_per_replica), ("maxBatchSize", self.max_batch_size)):
            if not value:
                raise ValueError(f"{name} is 0; it must be -1, or at least 1")
        if 0 < self.max_prefix_tokens_to_match < self.block_size_tokens:
            raise ValueError(
                f"maxPrefixTokensToMatch is {self.max_prefix_tokens_to_match}, less than blockSizeTokens, which is "
                f"{self.block_size_tokens}; set it to 0, or to at least one block"
            )


@dataclass(slots=True, eq=False)
class _Held:
    """A request of a batch."""

    chain: "array[int]"
    released: asyncio.Future[None]
    place: int | None = None
    """Position of its endpoint among the candidates of the batch."""


@dataclass(slots=True, eq=False)
class _Batch:
    candidates: Candidates
    """Candidates of the first request in the batch."""
    requests: list[_Held] = field(default_factory=list)
    blocks: int = 0


class BurstPrefixCacheProducer(Producer[BurstPrefixCacheParameters], Admitter[BurstPrefixCacheParameters]):
    """Holds requests for `windowDurationMs`, and publishes for each a match of the whole prompt at one endpoint.

    Equal prompts form a group, and the largest prompts are placed first. A group is placed on the endpoint with the
    least load of the batch, then with the fewest running requests. With `minColocateBlocks`, endpoints with prompts of
    the batch that have this number of equal leading blocks take precedence, if they are below their fair share. Beyond
    `maxPerReplica` requests, the rest of a group is placed on the next endpoint. A prompt that is alone has no match.
    Earlier batches do not count.
    """

    plugin_type = "burst-prefix-cache-producer"
    stability = Stability.ALPHA
    metrics = (_REQUESTS,)

    def setup(self) -> None:
        given = self.parameters
        self._match_key = PREFIX_MATCH.produced_by(self.name)
        self._chain_key: DataKey[array[int]] = DataKey("burst-block-hashes", self.plugin_type, self.name)
        self._place_key: DataKey[tuple[int, str]] = DataKey("burst-place", self.plugin_type, self.name)
        self._secret = int.from_bytes(token_bytes(8))  # prevents clients from making hashes collide
        self._most_blocks = given.max_prefix_tokens_to_match // given.block_size_tokens or _MOST_BLOCKS_BY_DEFAULT
        self._most_requests = given.max_batch_size if given.max_batch_size > 0 else _MOST_REQUESTS
        self._balance = Balance(given.max_per_replica, given.min_colocate_blocks, given.balance_by)
        self._batch: _Batch | None = None
        self._placing: set[asyncio.Task[None]] = set()
        self._results: Counter[str] = Counter()
        self.writes = (self._match_key,)
        self.may_read = (PROMPT_TOKENS, RUNNING)

    @property
    def samples(self) -> Sequence[Sample]:
        return [Sample(_REQUESTS, count, (result,)) for result, count in list(self._results.items())]

    def dump_state(self, snapshot: Snapshot) -> object | None:  # noqa: ARG002  an argument of the role
        return {"waiting": 0 if self._batch is None else len(self._batch.requests)}

    def produce(self, request: Request, candidates: Candidates) -> None:
        """Publish the match, which is the whole prompt at the endpoint where a request was placed."""
        chain = request.get(self._chain_key)
        if chain is None:
            chain = self._chain(request)
            request.put(self._chain_key, chain)
        blocks = np.zeros(candidates.snapshot.capacity, dtype=np.int32)
        slot, name = request.get(self._place_key) or (-1, "")
        if 0 <= slot < len(blocks):
            endpoint = candidates.snapshot.endpoints.values[slot]
            if endpoint is not None and endpoint.id == name:
                blocks[slot] = len(chain)
        request.put(self._match_key, PrefixMatch(blocks, len(chain), self.parameters.block_size_tokens))

    def admit(self, request: Request, candidates: Candidates) -> Awaitable[None] | None:
        chain = request.get(self._chain_key)
        if request.dry_run or not chain or not len(candidates):
            return None
        return self._hold(request, chain, candidates)

    async def _hold(self, request: Request, chain: "array[int]", candidates: Candidates) -> None:
        loop = asyncio.get_running_loop()
        batch = self._batch
        if batch is None:
            batch = self._batch = _Batch(candidates)
            task = loop.create_task(self._place(batch))
            self._placing.add(task)
            task.add_done_callback(self._placing.discard)
        if len(batch.requests) >= self._most_requests or batch.blocks + len(chain) > _MOST_BLOCKS:
            self._results["batch full"] += 1
            return
        held = _Held(chain, loop.create_future())
        batch.requests.append(held)
        batch.blocks += len(chain)
        await held.released
        self._results["alone" if held.place is None else "placed"] += 1
        if held.place is not None:
            slot, endpoint = batch.candidates.slots.item(held.place), batch.candidates[held.place]
            request.put(self._place_key, (slot, endpoint.id))

    async def _place(self, batch: _Batch) -> None:
        """Place the requests that are still held at the end of the window, and release all."""
        try:
            await asyncio.sleep(self.parameters.window_duration_ms / 1000)
            self._batch = None
            present = [held for held in batch.requests if not held.released.done()]
            places: list[int | None] = [None] * len(present)
            blocks = 0
            for count in Placement(batch.candidates, self._balance).place([held.chain for held in present], places):
                blocks += count
                if blocks >= _BLOCKS_AT_A_TIME:
                    blocks = 0
                    await asyncio.sleep(0)
            for held, place in zip(present, places, strict=True):
                held.place = place
        finally:
            if self._batch is batch:
                self._batch = None
            for number, held in enumerate(batch.requests):
                if not held.released.done():
                    held.released.set_result(None)
                if number % _RELEASED_AT_A_TIME == 0:
                    await asyncio.sleep(0)

    def _chain(self, request: Request) -> "array[int]":
        counted = request.get(PROMPT_TOKENS)
        sized = None if counted is None else counted.prompt
        return block_hashes(
            request.body.prompt if sized is None else sized,
            seed=chain_seed(request.model, request.body.cache_salt) ^ self._secret,
            block_tokens=self.parameters.block_size_tokens,
            max_blocks=self._most_blocks,
        )
