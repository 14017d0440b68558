# SPDX-License-Identifier: Apache-2.0
"""Tokens of a request in the caches of endpoints: by the index of this picker, and by a shared one."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epp.pool.kv_events.events import DEFAULT_TIER
from epp.pool.kv_events.holders import HOST_TIER, SPECULATIVE

FAST_TIERS = frozenset({DEFAULT_TIER, SPECULATIVE})


class Matched(NamedTuple):
    """Leading tokens of all prompts of a request, by slot."""

    tokens: NDArray[np.int64]
    """Tokens in any tier."""
    weighted: NDArray[np.float64]
    """The same, where a token counts with the weight of its best tier."""
    offloaded: NDArray[np.int64]
    """Tokens in the tier `cpu`."""
    tiers: Mapping[str, NDArray[np.int64]]
    """By best tier, except the fast ones."""

    def replaced(self, where: NDArray[np.bool_], other: "Matched") -> "Matched":
        """Return those of another match in some slots."""
        none = np.zeros_like(self.tokens)
        tiers = {
            tier: np.where(where, other.tiers.get(tier, none), self.tiers.get(tier, none))
            for tier in self.tiers.keys() | other.tiers.keys()
        }
        return Matched(
            np.where(where, other.tokens, self.tokens),
            np.where(where, other.weighted, self.weighted),
            np.where(where, other.offloaded, self.offloaded),
            tiers,
        )


class SharedMatch:
    """Leading blocks of the prompts of a request, by endpoint; it grows with each answer."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.blocks: Counter[tuple[str, str]] = Counter()
        """By endpoint and best tier."""
        self.offloaded: Counter[str] = Counter()
        """By endpoint: blocks in the tier `cpu`."""
        self._weights = weights
        self._whole: set[str] | None = None
        self._offloaded_whole: set[str] | None = None
        """Endpoints that hold all blocks of the prompt so far, in any tier and in `cpu`; None at its beginning."""

    def begin(self) -> None:
        """Begin with another prompt."""
        self._whole = self._offloaded_whole = None

    def add(self, count: int, runs: Sequence[tuple[str, str, list[int]]]) -> bool:
        """Add the next blocks of a prompt, as runs by endpoint and tier; return whether an endpoint has them all.

        Raises ValueError or IndexError for numbers that are no blocks.
        """
        found = [each for each in runs if self._whole is None or each[0] in self._whole]
        endpoints = list(dict.fromkeys(endpoint for endpoint, *_ in found))
        tiers = sorted({tier for _, tier, _ in found}, key=lambda tier: -self._weights.get(tier, 1.0))
        held = np.zeros((len(tiers), len(endpoints), count), dtype=np.bool_)
        rows = {endpoint: row for row, endpoint in enumerate(endpoints)}
        for endpoint, tier, numbers in found:
            for first, last in zip(numbers[::2], numbers[1::2], strict=True):
                held[tiers.index(tier), rows[endpoint], first - 1 : last] = True
        in_host = held[tiers.index(HOST_TIER)] if HOST_TIER in tiers else np.zeros((len(endpoints), count), np.bool_)
        before, self._offloaded_whole = self._offloaded_whole, set()
        for endpoint, blocks in zip(endpoints, _leading(in_host).sum(axis=1).tolist(), strict=True):
            if before is None or endpoint in before:
                self.offloaded[endpoint] += blocks
                if blocks == count:
                    self._offloaded_whole.add(endpoint)
        left = _leading(np.logical_or.reduce(held, axis=0))
        self._whole = {endpoint for endpoint, row in zip(endpoints, left, strict=True) if row.all()}
        for tier, in_tier in zip(tiers, held, strict=True):
            for endpoint, blocks in zip(endpoints, (in_tier & left).sum(axis=1).tolist(), strict=True):
                self.blocks[endpoint, tier] += blocks
            left &= ~in_tier
        return bool(self._whole)

    def matched(self, slots: Mapping[str, int], count: int, block_tokens: int) -> Matched:
        """Return the tokens in blocks of this size, by slot, of endpoints in so many slots."""
        tokens, weighted = np.zeros(count, dtype=np.int64), np.zeros(count)
        offloaded = tokens.copy()
        tiers: dict[str, NDArray[np.int64]] = {}
        for (endpoint, tier), blocks in self.blocks.items():
            if (slot := slots.get(endpoint)) is not None:
                tokens[slot] += blocks * block_tokens
                weighted[slot] += blocks * block_tokens * self._weights.get(tier, 1.0)
                if tier not in FAST_TIERS:
                    tiers.setdefault(tier, np.zeros(count, dtype=np.int64))[slot] = blocks * block_tokens
        for endpoint, blocks in self.offloaded.items():
            if (slot := slots.get(endpoint)) is not None:
                offloaded[slot] = blocks * block_tokens
        return Matched(tokens, weighted, offloaded, tiers)


def _leading(held: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the blocks that are held together with all before them."""
    leading: NDArray[np.bool_] = np.logical_and.accumulate(held, axis=1)
    return leading
