# SPDX-License-Identifier: Apache-2.0
"""Times of polls on a grid, and intervals of polls that grow while nothing happens."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.pool.collectors.polling.poll_schedule import Cadence, Timetable, slowest_interval

intervals = st.floats(0.001, 60.0)
times = st.floats(0.0, 1e6)


def dues(timetable: Timetable[str], start: float, interval: float, polled: int, count: int) -> list[float]:
    found = [start]
    for _ in range(count):
        found.append(timetable.after(found[-1], interval, found[-1], polled))
    return found[1:]


@given(times, times, intervals, times, st.integers(1, 10_000))
def test_next_time_is_later_than_now_and_at_most_an_interval_away(origin, due, interval, now, polled):
    found = Timetable[str](origin).after(due, interval, now, polled)
    assert found > now
    assert found <= max(due, now) + interval * (1 + 1e-6) + 1e-6


@given(times, times, intervals, st.integers(1, 10_000))
def test_beat_on_the_grid_is_kept(origin, start, interval, polled):
    first, *later = dues(Timetable[str](origin), start, interval, polled, 20)
    for number, due in enumerate(later, 1):
        assert due == pytest.approx(first + number * interval, abs=interval / 100 + 1e-6)


def test_few_polls_are_due_together_at_multiples_of_their_interval():
    timetable = Timetable[str](origin=0.25)
    for start in (100.0, 100.013, 100.049):
        for due in dues(timetable, start, 0.05, 8, 5):
            assert (due - 0.25) / 0.05 == pytest.approx(round((due - 0.25) / 0.05), abs=1e-6)


def test_many_polls_are_due_about_sixteen_at_a_time():
    timetable = Timetable[str](origin=0.0)
    starts = [100.0 + number * 0.0005 for number in range(100)]  # within 50 ms
    due = [round(timetable.after(start, 0.05, start, 100), 6) for start in starts]
    together = [due.count(one) for one in set(due)]
    assert 5 <= len(together) <= 9
    assert max(together) <= 20


def test_missed_times_are_skipped():
    timetable = Timetable[str](origin=0.0)
    assert timetable.after(10.0, 0.5, 11.2, 1) == pytest.approx(11.5)


def test_timer_that_ends_a_little_too_early_finds_what_it_was_set_for():
    timetable = Timetable[str](origin=0.0)
    timetable.put("first", 10.0)
    timetable.put("next", 10.002)
    assert list(timetable.take_due(9.998)) == []
    assert list(timetable.take_due(9.9995)) == ["first"]
    assert timetable.after(10.0, 0.05, 9.9995, 1) == pytest.approx(10.05)


def test_many_that_were_taken_out_are_dropped_a_few_at_a_time():
    timetable = Timetable[int](origin=0.0)
    for entry in range(1000):
        timetable.put(entry, float(entry))
    for entry in range(999):
        timetable.remove(entry)
    assert timetable.next_due < 100.0, "there are more to drop"
    turns = [list(timetable.take_due(1000.0))]
    while timetable.next_due < math.inf:
        turns.append(list(timetable.take_due(1000.0)))
    assert turns.pop() == [999]
    assert 5 < len(turns) < 20
    assert not any(turns)


class Timetables(RuleBasedStateMachine):
    """A timetable beside a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.timetable: Timetable[str] = Timetable(0.0)
        self.model: dict[str, float] = {}
        self.now = 0.0

    @rule(entry=st.sampled_from("abc"), wait=st.integers(0, 20))
    def put(self, entry: str, wait: int) -> None:
        self.timetable.put(entry, self.now + wait)
        self.model[entry] = self.now + wait

    @rule(entry=st.sampled_from("abc"))
    def remove(self, entry: str) -> None:
        self.timetable.remove(entry)
        self.model.pop(entry, None)

    @rule(seconds=st.integers(0, 10))
    def take(self, seconds: int) -> None:
        self.now += seconds
        taken = list(self.timetable.take_due(self.now))
        assert sorted(taken) == sorted(entry for entry, due in self.model.items() if due <= self.now)
        assert [self.model[entry] for entry in taken] == sorted(self.model[entry] for entry in taken)
        for entry in taken:
            del self.model[entry]

    @invariant()
    def tells_what_is_next(self) -> None:
        assert self.timetable.next_due == min(self.model.values(), default=math.inf)
        assert len(self.timetable) == len(self.model)
        assert [self.timetable.due_of(entry) for entry in "abc"] == [self.model.get(entry, math.inf) for entry in "abc"]


TestTimetables = Timetables.TestCase


def test_interval_doubles_with_each_quiet_second_up_to_the_slowest_and_an_event_ends_that():
    cadence = Cadence(0.05, 0.15, now=100.0)
    assert [cadence.interval(now) for now in (100.0, 100.9, 101.0, 101.9, 102.0, 200.0)] == [
        0.05, 0.05, 0.1, 0.1, 0.15, 0.15,
    ]  # fmt: skip
    cadence.event(200.0)
    assert cadence.interval(200.5) == 0.05


@given(st.floats(0.001, 10), st.floats(0.001, 10), st.lists(st.tuples(st.floats(0, 5), st.booleans())))
def test_interval_is_never_below_the_fastest_nor_above_the_slowest(fastest, slowest, steps):
    slowest = max(fastest, slowest)
    cadence, now = Cadence(fastest, slowest, 0.0), 0.0
    for seconds, happens in steps:
        now += seconds
        if happens:
            cadence.event(now)
            assert cadence.interval(now) == fastest
        assert fastest <= cadence.interval(now) <= slowest


@pytest.mark.parametrize(
    ("fastest", "trusted", "slowest"),
    [
        (0.05, float("inf"), 0.15),
        (0.05, 0.2, 0.15),  # utilization-detector by default
        (0.05, 0.1, 0.075),
        (0.05, 0.06, 0.05),  # as asked for, and no slower
        (1.0, 0.2, 1.0),
    ],
)
def test_slowest_interval_leaves_metrics_within_the_age_that_is_trusted(fastest, trusted, slowest):
    assert slowest_interval(fastest, trusted) == pytest.approx(slowest)
