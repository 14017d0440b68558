# SPDX-License-Identifier: Apache-2.0
"""The latest records: never more, nor more bytes, than is allowed."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.explain.storage import Kept, Ring

MOST, MOST_BYTES = 5, 100


def kept(number: int, size: int = 10, request: str = "r") -> Kept:
    return Kept(f"d-{number}", request, float(number), str(number).encode().ljust(size))


class RingMachine(RuleBasedStateMachine):
    """A ring beside a plain list of all that was ever added."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = Ring(MOST, MOST_BYTES)
        self.all: list[Kept] = []

    @rule(size=st.integers(1, MOST_BYTES + 10))
    def add(self, size: int) -> None:
        one = kept(len(self.all), size)
        self.ring.add(one)
        self.all.append(one)

    @rule(back=st.integers(0, 9), size=st.integers(1, MOST_BYTES + 10))
    def update(self, back: int, size: int) -> None:
        if back < len(self.all):
            self.ring.update(self.all[-1 - back].id, b"x" * size)

    @invariant()
    def is_bounded(self) -> None:
        found = self.ring.latest(1000)
        assert len(found) == len(self.ring) <= MOST
        assert sum(map(len, found)) == self.ring.size_bytes <= MOST_BYTES

    @invariant()
    def is_newest_first(self) -> None:
        there = [one.id for one in reversed(self.all) if self.ring.get(one.id) is not None]
        assert [self.ring.get(found) for found in there] == self.ring.latest(1000)


TestRing = RingMachine.TestCase


def test_only_those_after_a_time_or_a_record_and_of_one_request_and_so_many_bytes():
    ring = Ring(100, 10_000)
    for number in range(6):
        ring.add(kept(number, request="even" if number % 2 == 0 else "odd"))

    def numbers(limit: int = 100, **options) -> list[int]:
        return [int(data) for data in ring.latest(limit, **options)]

    assert numbers() == [5, 4, 3, 2, 1, 0]
    assert numbers(2) == [5, 4]
    assert numbers(since=3.0) == [5, 4]
    assert numbers(after="d-2") == [5, 4, 3]
    assert numbers(after="gone") == [5, 4, 3, 2, 1, 0]
    assert numbers(request_id="odd") == [5, 3, 1]
    assert numbers(1, request_id="even") == [4]
    assert len(ring.latest(100, most_bytes=35)) == 3
    assert len(ring.latest(100, most_bytes=1)) == 1


def test_record_that_is_too_large_for_the_ring_is_not_kept_and_pushes_none_out():
    ring = Ring(MOST, MOST_BYTES)
    ring.add(kept(1))
    ring.add(kept(2, MOST_BYTES + 1))
    assert ring.latest(9) == [kept(1).data]
    ring = Ring(0, MOST_BYTES)
    ring.add(kept(1))
    assert (len(ring), ring.size_bytes, ring.latest(9)) == (0, 0, [])
