# SPDX-License-Identifier: Apache-2.0
"""Whatever many waiting requests need at once is done a few at a time: other requests have their turns in between."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from epp.admission.flow_control import control
from epp.framework.refusals import QueueTimeoutError, ShuttingDownError
from epp.plugins.flow_policies import RoundRobinFairness
from tests.support.queued_requests import Front, Standing, waiting

MANY = 500
AT_ONCE, QUEUED_ANEW = 32, 128
"""Most that one look at the queues does."""


def full_front(**settings) -> tuple[Front, Standing, list[Standing]]:
    """Return a front with one place, the request that has it, and many that wait in ten flows."""
    front = Front(1, **settings)
    running = front.send("first")
    return front, running, [front.send(f"flow-{number % 10}") for number in range(MANY)]


def changes(front: Front, waits: list[Standing]) -> list[int]:
    """Dispatch until nothing is left to be done at once; return how many waited less after each."""
    counts = [len(waiting(*waits))]
    while front.flow.dispatch():
        counts.append(len(waiting(*waits)))
    counts.append(len(waiting(*waits)))
    return [before - after for before, after in pairwise(counts)]


def test_all_are_refused_as_the_picker_ends():
    front, _, waits = full_front()
    front.flow.stop()
    assert len(waiting(*waits)) == MANY - AT_ONCE
    assert max(changes(front, waits)) <= AT_ONCE
    assert all(isinstance(each.error, ShuttingDownError) for each in waits)
    assert not front.flow.queues.requests


def test_all_that_waited_too_long_are_refused():
    front, _, waits = full_front(ttl=60.0)
    front.clock.advance(61)
    assert max(changes(front, waits)) <= AT_ONCE
    assert all(isinstance(each.error, QueueTimeoutError) for each in waits)


def test_request_that_comes_meanwhile_waits_for_its_turn_and_costs_no_look():
    front, _, waits = full_front(ttl=60.0)
    front.clock.advance(61)
    assert front.flow.dispatch()
    left = len(waiting(*waits))
    newcomer = front.send("new")
    assert len(waiting(*waits)) == left
    while front.flow.dispatch():
        pass
    assert waiting(newcomer) == [newcomer]
    assert not waiting(*waits)


class Moved:
    """A front whose flows get turns, while requests wait that came first come, first served."""

    def __init__(self) -> None:
        self.front, self.running, self.waits = full_front()
        fair = Front(fairness=RoundRobinFairness()).settings.default_band
        self.front.flow.use(replace(self.front.settings, default_band=fair))

    def settle(self) -> int:
        """Dispatch until the other order is in effect; return the number of dispatches."""
        count = 1
        while self.front.flow.dispatch():
            count += 1
        return count

    def order(self) -> list[str]:
        """Let all go, one by one; return their flows."""
        flows = []
        left = waiting(*self.waits)
        while left:
            self.front.end(self.running)
            (self.running,) = [each for each in left if each.place is not None]
            flows.append(self.running.request.fairness_id)
            left = [each for each in left if each is not self.running]
        return flows


def test_other_order_takes_effect_once_all_are_in_it():
    moved = Moved()
    before = moved.waits[0]
    moved.front.end(moved.running)  # in the order before: the flows of the first ten are ten
    assert before.place == 0
    moved.running = before
    assert moved.settle() >= MANY // QUEUED_ANEW
    for each in moved.waits[1:250]:
        if each.request.fairness_id == "flow-1":
            moved.front.flow.leave(each)
            each.error = ShuttingDownError("left")
    flows = moved.order()
    assert len(flows) == MANY - 1 - 25
    assert all(len(set(flows[start : start + 10])) == 10 for start in range(0, 200, 10))  # turns, though one has less


@pytest.mark.parametrize("seed", range(6))
def test_what_comes_goes_and_leaves_meanwhile_is_counted_once(seed, monkeypatch):
    monkeypatch.setattr(control, "_REQUEUED", 7)
    draw, moved = random.Random(seed), Moved()
    front, ended = moved.front, 0
    while front.flow.dispatch():
        left = waiting(*moved.waits)
        action = draw.randrange(4)
        if action == 0:
            moved.waits.append(front.send(f"flow-{draw.randrange(12)}"))
        elif action == 1 and left:
            leaving = draw.choice(left)
            front.flow.leave(leaving)
            leaving.error = ShuttingDownError("left")
        elif action == 2:
            front.end(moved.running)
            (moved.running,) = [each for each in left if each.place is not None]
            ended += 1
        elif action == 3 and draw.random() < 0.05:
            front.flow.use(front.flow.settings)
    left = waiting(*moved.waits)
    queues = front.flow.queues
    assert queues.requests == len(left) == sum(len(band) for band in queues.bands.values())
    assert queues.size_bytes == sum(each.request.size_bytes for each in left)
    assert len(moved.order()) == len(left)
    assert not queues.requests
