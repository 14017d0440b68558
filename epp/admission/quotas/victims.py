# SPDX-License-Identifier: Apache-2.0
"""Choice of the fewest requests to evict for another one."""

from bisect import insort
from collections.abc import Sequence
from itertools import accumulate

from epp.admission.quotas.reservation import Amounts, Reservation

MOST_ASKED = 4_096
"""Requests of one tenant that are checked for whether they may be evicted."""
MOST_CONSIDERED = 256
"""Requests of one tenant among which victims are chosen."""
MOST_EXACT = 8
"""Largest number of victims for which the set is the smallest; a larger set only has no superfluous victim."""
_MOST_STEPS = 1024
_ROUNDING = 1e-9


def fewest(deficit: Amounts, found: Sequence[Reservation]) -> list[Reservation] | None:
    """Return the smallest set of requests that frees at least the deficit; None if all together do not.

    Of several smallest sets, the one with the earliest members of `found` is returned. Amounts of the deficit that are
    0 or less are ignored.
    """
    wanted = [position for position, amount in enumerate(deficit) if amount > 0]
    need = tuple(deficit[position] * (1 - _ROUNDING) for position in wanted)
    gains = [tuple(each.amounts[position] for position in wanted) for each in found]
    if not wanted:
        return []
    if any(sum(gain[part] for gain in gains) < amount for part, amount in enumerate(need)):
        return None
    search = _Search(gains, need)
    for size in range(search.least_size(), min(MOST_EXACT, len(gains)) + 1):
        chosen = search.of_size(size)
        if chosen is not None:
            return [found[position] for position in chosen]
        if search.is_exhausted:
            break
    return [found[position] for position in _enough(gains, need)]


class _Search:
    """Depth-first search, in the order of the requests, for a set of a given size; bounded by the best amounts left."""

    def __init__(self, gains: Sequence[tuple[float, ...]], need: tuple[float, ...]) -> None:
        self._gains = gains
        self._need = need
        self._steps = 0
        self._best: list[list[tuple[float, ...]]] = []
        """By position, and by number: the most of each amount that so many requests from there on free."""

    @property
    def is_exhausted(self) -> bool:
        """Whether the limit of steps is reached."""
        return self._steps >= _MOST_STEPS

    def least_size(self) -> int:
        """Return the least number of requests that frees each amount separately."""
        least = 1
        for part, amount in enumerate(self._need):
            total = 0.0
            for count, gain in enumerate(sorted((each[part] for each in self._gains), reverse=True), 1):
                total += gain
                if total >= amount:
                    least = max(least, count)
                    break
        return least

    def of_size(self, size: int) -> list[int] | None:
        """Return the positions of so many requests that free enough; None if none is found."""
        self._best = _best_from(self._gains, len(self._need), size)
        return self._from(0, size, self._need)

    def _from(self, start: int, size: int, need: tuple[float, ...]) -> list[int] | None:
        if all(amount <= 0 for amount in need):
            return []
        if not size:
            return None
        for position in range(start, len(self._gains) - size + 1):
            self._steps += 1
            if self.is_exhausted or any(
                most < amount for most, amount in zip(self._best[position][size], need, strict=True)
            ):
                return None
            left = tuple(amount - gain for amount, gain in zip(need, self._gains[position], strict=True))
            rest = self._from(position + 1, size - 1, left)
            if rest is not None:
                return [position, *rest]
        return None


def _best_from(gains: Sequence[tuple[float, ...]], parts: int, size: int) -> list[list[tuple[float, ...]]]:
    largest: list[list[float]] = [[] for _ in range(parts)]
    found: list[list[tuple[float, ...]]] = []
    for gain in reversed(gains):
        for part, amounts in enumerate(largest):
            insort(amounts, -gain[part])
            del amounts[size:]
        sums = [[0.0, *accumulate(amounts)] for amounts in largest]
        found.append([tuple(-each[min(count, len(each) - 1)] for each in sums) for count in range(size + 1)])
    found.reverse()
    return found


def _enough(gains: Sequence[tuple[float, ...]], need: tuple[float, ...]) -> list[int]:
    """Return positions of requests that free enough, none of them superfluous."""
    left = list(need)
    chosen: list[int] = []
    order = sorted(range(len(gains)), key=lambda position: -_worth(gains[position], need))
    for position in order:
        if all(amount <= 0 for amount in left):
            break
        chosen.append(position)
        left = [amount - gain for amount, gain in zip(left, gains[position], strict=True)]
    for position in sorted(chosen, reverse=True):
        without = [amount + gain for amount, gain in zip(left, gains[position], strict=True)]
        if all(amount <= 0 for amount in without):
            chosen.remove(position)
            left = without
    return sorted(chosen)


def _worth(gain: tuple[float, ...], need: tuple[float, ...]) -> float:
    return sum(min(1.0, each / amount) for each, amount in zip(gain, need, strict=True))
