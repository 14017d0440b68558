# SPDX-License-Identifier: Apache-2.0
"""Joint placement of the requests of a batch."""

import sys
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from epp.framework import Candidates, Floats
from epp.framework.snapshot import RUNNING
from epp.plugins.prefix_cache.index import PrefixIndex

_TIE = 1e-6
"""Weight of requests relative to load; breaks ties between equal loads."""


@dataclass(frozen=True, slots=True)
class Balance:
    """Limits for the placement of a batch."""

    max_per_replica: int = -1
    """Maximum requests of a group on one endpoint; -1 for no limit."""
    min_colocate_blocks: int = 0
    """Minimum number of equal leading blocks for which different prompts share an endpoint; 0 for never."""
    by: Literal["requests", "tokens"] = "requests"
    """Measure of load: requests, or blocks that an endpoint does not hold yet."""


@dataclass(slots=True, eq=False)
class Placement:
    """Placement of one batch on endpoints, with the load from this batch; earlier batches do not count."""

    candidates: Candidates
    balance: Balance
    _order: Sequence[int] = field(init=False)
    """Positions of the candidates: fewest running requests first, then by name."""
    _load: Floats = field(init=False)
    """Load by index in `_order`."""
    _requests: Floats = field(init=False)
    _index: PrefixIndex = field(default_factory=PrefixIndex, init=False)
    """Prompts by index in `_order`."""

    def __post_init__(self) -> None:
        running = np.nan_to_num(self.candidates.values(RUNNING)).tolist()
        names = [endpoint.name for endpoint in self.candidates.endpoints]
        self._order = sorted(range(len(names)), key=lambda at: (running[at], names[at]))
        self._load, self._requests = np.zeros(len(names)), np.zeros(len(names))

    def place(self, chains: Sequence["array[int]"], places: list[int | None]) -> Iterator[int]:
        """Write the position of the endpoint of each chain of block hashes; it stays None if any endpoint will do.

        Yields the work of each step: blocks, requests and endpoints. Equal chains are a group. Groups are placed first,
        longest chain first; then single prompts that share enough blocks with others.
        """
        if not self._order:
            return
        least = self.balance.min_colocate_blocks
        groups: dict[tuple[int, int], list[int]] = {}
        shared: Counter[int] = Counter()
        for index, chain in enumerate(chains):
            if chain:
                groups.setdefault((len(chain), chain[-1]), []).append(index)  # the last hash covers the whole prompt
                if 0 < least <= len(chain):
                    shared[chain[least - 1]] += 1
        blocks = sum(map(len, chains))
        total = blocks if self.balance.by == "tokens" else len(chains)
        fair_share = -(-total // len(self._order))
        ordered = sorted(groups.values(), key=lambda members: (len(members) == 1, -len(chains[members[0]])))
        for members in ordered:
            chain = chains[members[0]]
            if len(members) > 1 or (0 < least <= len(chain) and shared[chain[least - 1]] > 1):
                yield from self._place_group(chain, members, fair_share, places)

    def _place_group(
        self, chain: "array[int]", members: Sequence[int], fair_share: int, places: list[int | None]
    ) -> Iterator[int]:
        most, count = self.balance.max_per_replica, len(self._order)
        held = self._index.match(chain, count)
        at = self._primary(held, fair_share)
        size = len(members) if most < 0 else most
        taken = np.zeros(count, dtype=np.bool_)
        placed = 0
        while placed < len(members):
            part = members[placed : placed + size]
            for member in part:
                places[member] = self._order[at]
            placed += len(part)
            self._requests[at] += len(part)
            if self.balance.by == "requests":
                self._load[at] += len(part)
            elif not taken[at]:
                self._load[at] += len(chain) - held.item(at)
            if not taken[at]:
                self._index.record(at, chain, sys.maxsize)
            taken[at] = True
            if size > 1 and taken.all():  # every endpoint has its part
                size = 1
            at = int(np.where(taken & (size > 1), np.inf, self._load + _TIE * self._requests).argmin())
            yield len(chain) + len(part) + count

    def _primary(self, held: NDArray[np.int32], fair_share: int) -> int:
        """Return the endpoint with the longest equal prefix, if one has room, or else the one with the least load."""
        least, most = self.balance.min_colocate_blocks, self.balance.max_per_replica
        if least:
            room = (held >= least) & (self._load < fair_share) & ((self._requests < most) | (most < 0))
            if room.any():
                longest = room & (held == held[room].max())
                return int(np.where(longest, self._load, np.inf).argmin())
        return int(self._load.argmin())
