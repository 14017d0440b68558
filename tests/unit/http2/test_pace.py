# SPDX-License-Identifier: Apache-2.0
"""Calls of clients that leave all at once end some in each turn of the event loop, in the order in which they left."""

import asyncio
from functools import partial

from epp.extproc.http2.fair_scheduler import MOST_ENDINGS, Pace


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
