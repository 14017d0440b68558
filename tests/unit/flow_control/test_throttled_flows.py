# SPDX-License-Identifier: Apache-2.0
"""Tenants who have taken what their quota allows wait, and delay nobody else."""

import pytest

from epp.framework.refusals import QuotaExceededError, ShuttingDownError
from epp.plugins.flow_policies import RoundRobinFairness
from tests.support.queued_requests import Front, waiting


def front_with(share: int) -> Front:
    """Return a front with ten places, of which tenant `a` may have so many."""
    front = Front(10)
    front.places.shares["a"] = share
    return front


def test_a_tenant_waits_for_its_own_requests_to_end_while_others_go():
    front = front_with(share=2)
    of_a = [front.send("a") for _ in range(4)]
    of_b = [front.send("b") for _ in range(3)]
    assert waiting(*of_a) == of_a[2:]
    assert not waiting(*of_b)
    front.end(of_a[0])
    assert waiting(*of_a) == of_a[3:]


def test_others_go_at_once_past_thousands_that_are_held_back():
    front = front_with(share=0)
    held = [front.send("a") for _ in range(3000)]
    assert not waiting(front.send("b"))
    assert waiting(*held) == held


def test_others_of_lower_priority_go_while_a_tenant_is_held_back():
    front = front_with(share=1)
    first, second = front.send("a", 5), front.send("a", 5)
    assert waiting(first, second) == [second]
    assert not waiting(front.send("b", -1))


def test_what_comes_free_goes_to_the_highest_priority_of_a_tenant():
    front = front_with(share=1)
    first, low, high = front.send("a"), front.send("a", -1), front.send("a", 1)
    front.end(first)
    assert waiting(low, high) == [low]


def test_a_held_flow_goes_on_when_its_time_has_come():
    front = Front(10)
    front.places.shares["a"], front.places.shares_end = 0, 3.0
    held = front.send("a")
    assert front.flow.next_deadline() == 3.0
    front.clock.advance(2.0)
    front.places.shares["a"] = 5
    front.flow.dispatch()
    assert waiting(held)
    front.clock.advance(1.0)
    front.flow.dispatch()
    assert not waiting(held)


def test_who_waits_too_long_for_a_quota_is_told_which():
    front = Front(10, ttl=5.0)
    front.places.shares["a"] = 0
    held = front.send("a")
    front.clock.advance(5.0)
    front.flow.dispatch()
    assert isinstance(held.error, QuotaExceededError)
    assert held.error.retry_after_seconds == 7
    assert "total.max.workers.limit of 'a' is 0" in held.error.message


def test_who_leaves_while_held_back_is_forgotten():
    front = front_with(share=0)
    first, second = front.send("a"), front.send("a")
    front.flow.leave(first)
    front.flow.leave(second)
    assert front.flow.queues.requests == 0
    assert not front.flow.queues.bands


def test_the_end_of_flow_control_refuses_what_is_over_its_quota_and_lets_others_go():
    front = Front(1)
    front.places.shares["a"] = 0
    held, filler = front.send("a"), front.send("b")
    late = front.send("b")
    front.flow.end()
    assert isinstance(held.error, QuotaExceededError)
    assert not waiting(filler, late)


def test_a_stop_refuses_what_is_held_back():
    front = front_with(share=0)
    held = front.send("a")
    front.flow.stop()
    assert isinstance(held.error, ShuttingDownError)


@pytest.mark.parametrize("tenants", [1, 3, 40])
def test_every_tenant_goes_on_in_turn_after_a_hold(tenants):
    front = Front(1, fairness=RoundRobinFairness())
    names = [f"t{number}" for number in range(tenants)]
    front.places.shares = dict.fromkeys(names, 0)
    held = {name: front.send(name) for name in names}
    front.places.shares = dict.fromkeys(names, 1)
    for name in names:
        front.flow.resume(name)
    for name in names:
        for _ in range(4):
            front.flow.dispatch()
        assert held[name].place == 0
        front.end(held[name])


def test_a_reload_keeps_what_is_held_back_in_its_order():
    front = front_with(share=0)
    held = [front.send("a") for _ in range(3)]
    front.flow.use(front.settings)
    assert waiting(*held) == held
    front.places.shares["a"] = 1
    front.flow.resume("a")
    front.flow.dispatch()
    assert waiting(*held) == held[1:]


def test_a_reload_looks_anew_at_what_is_held_back():
    front = front_with(share=0)
    held = [front.send("a") for _ in range(3)]
    front.places.shares["a"] = 2
    front.flow.use(front.settings)
    assert waiting(*held) == held[2:]


def test_thousands_whose_time_has_come_at_once_go_on_in_several_looks():
    front = Front(10)
    flows = [f"tenant-{number}" for number in range(1000)]
    front.places.shares, front.places.shares_end = dict.fromkeys(flows, 0), 3.0
    held = [front.send(flow) for flow in flows]
    while front.flow.dispatch():
        pass
    band = front.flow.queues.bands[0]
    assert len(band.throttled) == 1000
    front.clock.advance(3.0)  # midnight, say
    front.places.shares = {}
    assert front.flow.dispatch()
    assert 800 < len(band.throttled) < 1000
    while front.flow.dispatch():
        pass
    assert len(band.throttled) == 0
    assert len(waiting(*held)) == 990  # ten places
