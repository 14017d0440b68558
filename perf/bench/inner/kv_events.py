# SPDX-License-Identifier: Apache-2.0
"""CPU time of the index of KV events: a match of 1,000 blocks over 100 endpoints, and one block of an event."""

import functools
from collections.abc import Iterator, Sequence

import numpy as np
from timing import SAMPLES, microseconds, quick, tell

from epp.pool.kv_events.events import BlockRemoved, BlockStored, Event
from epp.pool.kv_events.holders import Lane
from epp.pool.kv_events.index import BlockIndex, Message
from epp.pool.kv_events.prompt_blocks import XxHash

ENDPOINTS = 100
BLOCKS = 1_000
"""Blocks of the prompt, and of a batch of events as the producer applies them."""
BLOCK_TOKENS = 16
EVENT_BLOCKS = (1, 32)
"""Blocks per event: of an answer, and of a prompt."""
WEIGHTS = {"gpu": 1.0, "cpu": 0.8}


def main() -> None:
    """Print the figures."""
    rounds = 20 if quick() else 300
    index = BlockIndex(XxHash(), capacity=2_000_000, secret=0x6C62272E07BB0142)
    lanes = [index.add() for _ in range(ENDPOINTS)]
    generator = np.random.default_rng(1)
    tokens = generator.integers(0, 128_000, BLOCKS * BLOCK_TOKENS, dtype=np.uint32)
    for lane in lanes:
        held = int(generator.integers(1, BLOCKS + 1))
        for tier, blocks in (("gpu", held), ("cpu", held // 2)):
            ids = tokens[: blocks * BLOCK_TOKENS].tolist()
            index.apply([Message(lane, "m", (stored(range(1, blocks + 1), ids, medium=tier),))], 1)
    keys = np.array(XxHash().chain(XxHash().first("m"), tokens.tobytes(), BLOCK_TOKENS), dtype=np.uint64)
    ids_of_lanes = np.array([lane.id for lane in lanes], dtype=np.intp)
    figures = {"kv-match": microseconds(lambda: index.match(keys, WEIGHTS, ids_of_lanes, 2), rounds)}
    for blocks in EVENT_BLOCKS:
        count, batches = BLOCKS // blocks * blocks, SAMPLES * (rounds // 10) + 1
        added = [list(prompt(generator, number, blocks)) for number in range(batches)]
        gone: list[list[Event]] = [[BlockRemoved(each.block_hashes) for each in batch] for batch in added]
        for name, events in (("stored", added), ("removed", gone)):
            left = applied(index, lanes, events)
            figures[f"kv-{name}-{blocks}"] = microseconds(functools.partial(next, left), rounds // 10) / count
    tell(figures)


def stored(hashes: range, tokens: list[int], parent: int | None = None, medium: str | None = None) -> BlockStored:
    return BlockStored(list(hashes), parent, tokens, BLOCK_TOKENS, medium=medium)


def prompt(generator: np.random.Generator, number: int, blocks: int) -> Iterator[BlockStored]:
    """Yield events that store a prompt, each with this number of blocks."""
    parent = None
    for start in range((number + blocks) * 10_000, (number + blocks) * 10_000 + BLOCKS - blocks + 1, blocks):
        yield stored(
            range(start, start + blocks),
            generator.integers(0, 128_000, blocks * BLOCK_TOKENS).tolist(),
            parent,
        )
        parent = start + blocks - 1


def applied(index: BlockIndex, lanes: Sequence[Lane], batches: Sequence[Sequence[Event]]) -> Iterator[None]:
    """Apply one batch per step, each of another engine."""
    for number, batch in enumerate(batches):
        index.apply([Message(lanes[number % len(lanes)], "m", (each,)) for each in batch], 3)
        yield


if __name__ == "__main__":
    main()
