# SPDX-License-Identifier: Apache-2.0
"""Connections on which much comes take turns, and what is small does not wait for them."""

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.extproc.http2 import fair_scheduler
from epp.extproc.http2.fair_scheduler import FEW_BYTES, FairScheduler


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
