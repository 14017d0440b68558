# SPDX-License-Identifier: Apache-2.0
"""Entries by key, which move and go anywhere: the first is always the least, and a change makes few comparisons."""

import sys

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from epp.framework.flow_control import SortedEntries

KEYS = st.sampled_from([0.0, 0.0, 1.0, 2.0, 3.0, 9.0])
NAMES = st.integers(0, 40)


class SortedEntriesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.entries: SortedEntries[str] = SortedEntries()
        self.model: dict[int, float] = {}

    @rule(key=KEYS, name=NAMES)
    def push(self, key, name):
        self.entries.push(key, name, f"{name}@{key}")
        self.model[name] = key

    @rule(name=NAMES)
    def discard(self, name):
        self.entries.discard(name)
        self.model.pop(name, None)

    @precondition(lambda self: self.model)
    @rule()
    def discard_the_first(self):
        (_, name), _ = self.least()
        self.discard(name)

    def least(self) -> tuple[tuple[float, int], str]:
        key, name = min((key, name) for name, key in self.model.items())
        return (key, name), f"{name}@{key}"

    @invariant()
    def first_is_the_least(self):
        found = self.entries.first()
        assert (None if found is None else (found[0], found[1])) == (
            (self.least()[0][0], self.least()[1]) if self.model else None
        )

    @invariant()
    def entries_are_those_of_the_model(self):
        assert len(self.entries) == len(self.model)
        assert sorted(self.entries) == sorted(f"{name}@{key}" for name, key in self.model.items())
        assert all(name in self.entries for name in self.model)


TestSortedEntries = SortedEntriesMachine.TestCase


class Counted(float):
    """A key that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: float) -> bool:
        Counted.compared += 1
        return float.__lt__(self, other)

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return float.__eq__(self, other)

    __hash__ = float.__hash__


def comparisons_of_each_change(names: range) -> int:
    """Return the most comparisons of a change, as entries of keys that grow go in this order, with looks between."""
    entries: SortedEntries[None] = SortedEntries()
    for name in range(len(names)):
        entries.push(Counted(name), name, None)
    most = 0
    for name in names:
        Counted.compared = 0
        entries.discard(name)
        entries.first()
        most = max(most, Counted.compared)
    assert not len(entries)
    return most


def test_change_among_5000_entries_makes_as_many_comparisons_as_a_binary_search():
    count = 5000  # 13 steps, each with `==` and `<`
    assert comparisons_of_each_change(range(count)) <= 13 * 2 + 2
    assert comparisons_of_each_change(range(count - 1, -1, -1)) <= 13 * 2 + 2


def test_nothing_is_left_of_what_is_taken_out():
    entries: SortedEntries[list[int]] = SortedEntries()
    entry = [1]
    for number in range(3):
        entries.push(float(number), number, entry)
    held = sys.getrefcount(entry)
    entries.discard(2)
    entries.discard(0)
    assert sys.getrefcount(entry) == held - 2
