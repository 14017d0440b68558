# SPDX-License-Identifier: Apache-2.0
"""Fair scheduling: busy connections alternate, short reads bypass the queue, and ends of calls are spread."""

import asyncio
import time
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.extproc.http2 import fair_scheduler
from epp.extproc.http2.fair_scheduler import FEW_BYTES, MOST_ENDINGS, FairScheduler, Pace


async def until_empty(scheduler: FairScheduler) -> None:
    while scheduler.must_wait(FEW_BYTES + 1, time.monotonic()):  # noqa: ASYNC110  counts iterations
        await asyncio.sleep(0)


async def test_much_waits_while_others_do_and_little_never_does():
    turns = FairScheduler()
    assert not turns.must_wait(2**20, 0.0)
    turns.wait(lambda: None)
    assert turns.must_wait(FEW_BYTES + 1, 0.0)
    assert not turns.must_wait(FEW_BYTES, 0.0)
    await until_empty(turns)


async def test_much_waits_once_this_turn_has_no_time_left():
    turns = FairScheduler()
    ends = turns.ends(100.0)
    assert not turns.must_wait(2**20, 100.0)
    assert turns.must_wait(2**20, ends)
    await asyncio.sleep(0)  # another turn
    assert not turns.must_wait(2**20, ends)


@pytest.mark.parametrize("seconds", [0.0, 3600.0], ids=["one in each turn", "all in one turn"])
@given(st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_each_goes_on_as_often_as_it_asks_and_nobody_twice_before_another_who_waits(seconds, wanted):
    went: list[int] = []

    async def all_of_them() -> None:
        turns, left = FairScheduler(), list(wanted)

        def go_on(who: int) -> None:
            went.append(who)
            left[who] -= 1
            if left[who]:
                turns.wait(lambda: go_on(who))

        for who in range(len(wanted)):
            turns.wait(lambda who=who: go_on(who))
        await until_empty(turns)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fair_scheduler, "_TURN_SECONDS", seconds)
        asyncio.run(all_of_them())
    rounds = [[who for who, count in enumerate(wanted) if count > number] for number in range(max(wanted))]
    assert went == [who for each in rounds for who in each]


async def test_turn_of_one_that_has_no_time_left_is_the_next_ones(monkeypatch):
    monkeypatch.setattr(fair_scheduler, "_TURN_SECONDS", 0.0)
    turns, went = FairScheduler(), []
    for who in "abc":
        turns.wait(lambda who=who: went.append(who))
    seen = []
    for _ in range(3):
        await asyncio.sleep(0)
        seen.append(len(went))
    assert seen == [1, 2, 3]


async def test_fault_of_one_stops_no_other():
    errors, turns, went = [], FairScheduler(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
    turns.wait(lambda: 1 / 0)
    turns.wait(lambda: went.append("b"))
    await until_empty(turns)
    assert went == ["b"]
    assert [type(error) for error in errors] == [ZeroDivisionError]


async def test_turns_go_on_after_one_that_could_not_be_asked_for(monkeypatch):
    loop, turns, went = asyncio.get_running_loop(), FairScheduler(), []
    monkeypatch.setattr(fair_scheduler.asyncio, "get_running_loop", Exhausted)
    with pytest.raises(MemoryError):
        turns.ends(loop.time())
    with pytest.raises(MemoryError):
        turns.wait(lambda: went.append("a"))
    monkeypatch.undo()
    assert turns.ends(0.0) < loop.time()
    turns.wait(lambda: went.append("b"))
    await until_empty(turns)
    assert went == ["a", "b"]


class Exhausted:
    """A loop without memory for one more callback."""

    def call_soon(self, *_: object) -> None:
        raise MemoryError


async def test_more_than_fit_in_a_turn_end_in_later_ones_in_order():
    pace, ended, in_turns = Pace(), [], []
    for number in range(3 * MOST_ENDINGS + 1):
        pace.do(partial(ended.append, number))
    in_turns.append(len(ended))
    while len(ended) < 3 * MOST_ENDINGS + 1:
        await asyncio.sleep(0)
        in_turns.append(len(ended) - sum(in_turns))
    assert in_turns == [MOST_ENDINGS, MOST_ENDINGS, MOST_ENDINGS, 1]
    assert ended == sorted(ended)


async def test_one_that_ends_many_has_a_turn_for_itself():
    pace, ended = Pace(), []
    pace.do(partial(ended.append, "one"))
    pace.do(partial(ended.append, "many"), MOST_ENDINGS)
    pace.do(partial(ended.append, "last"))  # which does not overtake
    assert ended == ["one"]
    await asyncio.sleep(0)
    assert ended == ["one", "many"]
    await asyncio.sleep(0)
    assert ended == ["one", "many", "last"]


async def test_each_turn_begins_anew():
    pace, ended = Pace(), []
    for _ in range(3):
        pace.do(partial(ended.append, "many"), MOST_ENDINGS)
        await asyncio.sleep(0)
    assert len(ended) == 3


async def test_one_that_raises_keeps_no_other_from_its_end():
    pace, ended, problems = Pace(), [], []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context["exception"]))

    def fail() -> None:
        raise ValueError("broken")

    pace.do(partial(ended.append, 1), MOST_ENDINGS)
    pace.do(fail)
    pace.do(partial(ended.append, 2))
    for _ in range(3):
        await asyncio.sleep(0)
    assert ended == [1, 2]
    assert [str(problem) for problem in problems] == ["broken"]
