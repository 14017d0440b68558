# SPDX-License-Identifier: Apache-2.0
"""A flood fills the queues of its priority, and other flows have their places there all the same."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.admission.flow_control.priority_queue import Shares
from epp.admission.flow_control.settings import NO_LIMITS, Limits, Outcome
from epp.framework import Request
from epp.framework.refusals import EvictedError, QueueFullError, QueueFullNoEndpointsError
from epp.plugins.flow_policies import RoundRobinFairness
from tests.support.queued_requests import Front, Heard, Standing, waiting


def fair_front(band: Limits = NO_LIMITS, limits: Limits = NO_LIMITS, places: int = 1, **more) -> Front:
    front = Front(places, band=band, limits=limits, fairness=RoundRobinFairness(), **more)
    if places:
        front.send("first")  # has the only place
    return front


def send_all(front: Front, flow: str, count: int, **more) -> list[Standing]:
    """Return the requests that were not refused as they came."""
    found = []
    for _ in range(count):
        try:
            found.append(front.send(flow, **more))
        except QueueFullError:
            continue
    return found


def test_flood_of_1600_refuses_none_of_20_of_a_calm_tenant():
    front = fair_front(Limits(requests=1000))
    flood, calm = [], []
    for number in range(1600):
        flood += send_all(front, "flood", 1)
        if number % 80 == 79:
            calm += send_all(front, "calm", 1)
    assert len(waiting(*calm)) == 20
    assert waiting(*flood) == flood[:980]  # the last that came gave way


def test_request_that_gives_way_is_told_that_the_queue_is_full_and_when_to_come_back():
    heard = Heard()
    front = fair_front(Limits(requests=3), observer=heard)
    flood = send_all(front, "flood", 3)
    calm = front.send("calm")
    assert waiting(*flood, calm) == [*flood[:2], calm]
    error = flood[2].error
    assert isinstance(error, QueueFullError)
    assert (error.status, error.reason) == (429, "rejected-saturated")
    assert error.retry_after_seconds >= 1
    assert heard.outcomes[-1][:2] == (flood[2].request.id, Outcome.EVICTED_OTHER)


def test_request_that_gives_way_in_front_of_an_empty_pool_is_told_of_that():
    front = fair_front(Limits(requests=3), places=0)
    flood = [front.send("flood") for _ in range(3)]
    front.flow.pool_changed(has_endpoints=False)
    calm = Standing(front.places, Request("calm", fairness_id="calm", received_at=front.clock.now()))
    front.flow.wait(calm, has_endpoints=False)
    assert isinstance(flood[2].error, QueueFullNoEndpointsError)


def test_flow_that_would_have_as_many_as_the_longest_is_refused_itself():
    front = fair_front(Limits(requests=4))
    first, second = send_all(front, "a", 2), send_all(front, "b", 2)
    for flow in "ab":
        with pytest.raises(QueueFullError):
            front.send(flow)
    third = front.send("c")  # 2 + 1 + 1
    with pytest.raises(QueueFullError):
        front.send("c")
    assert len(waiting(*first, *second, third)) == 4


def test_of_flows_as_long_as_each_other_that_with_more_bytes_gives_way():
    front = fair_front(Limits(requests=4))
    light, heavy = send_all(front, "light", 2, size=1), send_all(front, "heavy", 2, size=50)
    front.send("calm", size=1000)
    assert waiting(*light, *heavy) == [*light, heavy[0]]


def test_long_bodies_of_one_flow_give_way_to_a_short_one_of_another():
    front = fair_front(Limits(size_bytes=100))
    flood = send_all(front, "flood", 10, size=10)
    many_small = send_all(front, "small", 10, size=0)
    calm = front.send("calm", size=25)
    assert waiting(*flood, calm) == [*flood[:7], calm]
    assert waiting(*many_small) == many_small
    more = front.send("calm", size=25)
    with pytest.raises(QueueFullError):  # now both have 50 bytes
        front.send("calm", size=10)
    assert waiting(*flood, calm, more) == [*flood[:5], calm, more]


def test_body_that_is_longer_than_the_limit_is_in_nobody_s_place():
    front = fair_front(Limits(size_bytes=100))
    flood = send_all(front, "flood", 10, size=10)
    with pytest.raises(QueueFullError):
        front.send("calm", size=101)
    assert waiting(*flood) == flood


def test_few_requests_give_way_to_a_long_body_at_once():
    front = fair_front(Limits(size_bytes=1000))
    flood = send_all(front, "flood", 1000, size=1)
    with pytest.raises(QueueFullError):
        front.send("calm", size=33)
    calm = front.send("calm", size=32)
    assert waiting(*flood, calm) == [*flood[:968], calm]


def test_flood_of_one_priority_gives_way_to_its_equals_where_all_places_are_taken():
    front = fair_front(limits=Limits(requests=10))
    flood = send_all(front, "flood", 10, priority=1)
    calm = front.send("calm", priority=1)
    assert waiting(*flood, calm) == [*flood[:9], calm]
    with pytest.raises(QueueFullError):  # nothing waits at its priority, and higher ones are not in its way
        front.send("calm", priority=0)


def test_longest_flow_of_the_lowest_priority_goes_first_for_a_higher_one():
    front = fair_front(limits=Limits(requests=7))
    flood = send_all(front, "flood", 4, priority=-1)
    calm = send_all(front, "calm", 2, priority=-1)
    middle = front.send("middle", priority=0)
    high = [front.send("high", priority=5) for _ in range(2)]
    assert waiting(*flood, *calm, middle) == [*flood[:2], *calm, middle]
    assert isinstance(flood[3].error, EvictedError)
    assert len(waiting(*high)) == 2


def test_limit_of_the_priority_and_that_of_all_may_be_reached_at_once():
    front = fair_front(band=Limits(requests=4), limits=Limits(requests=6, size_bytes=100))
    low = send_all(front, "low", 2, priority=-1, size=20)
    flood = send_all(front, "flood", 4, size=10)
    calm = front.send("calm", size=40)  # in place of one of the flood; the bytes are those of lower priority
    assert waiting(*flood, *low, calm) == [*flood[:3], low[0], calm]
    assert isinstance(low[1].error, EvictedError)


def test_strict_order_of_arrival_knows_no_flows():
    front = Front(1, band=Limits(requests=3))
    flood = [front.send("flood") for _ in range(4)]
    with pytest.raises(QueueFullError):
        front.send("calm")
    assert waiting(*flood) == flood[1:]


def test_lower_limits_of_another_configuration_are_reached_as_requests_go():
    front = fair_front(Limits(requests=10))
    flood = send_all(front, "flood", 10)
    band = replace(front.settings.default_band, limits=Limits(requests=4))
    front.flow.use(replace(front.settings, default_band=band))
    calm = front.send("calm")
    assert waiting(*flood, calm) == [*flood[:9], calm]  # one for one


def test_requests_that_were_set_aside_count_and_give_way_too():
    front = Front(1, 1, band=Limits(requests=3), fairness=RoundRobinFairness())
    holders = [front.send("x"), front.send("x")]
    picky = [front.send("flood", only=[0]) for _ in range(3)]
    front.end(holders[1])  # there is room, but not for these: they are set aside
    assert not front.flow.queues.bands[0].first
    other = front.send("y", only=[0])
    assert waiting(*picky, other) == [*picky[:2], other]


@given(changes=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5), st.booleans()), max_size=200))
def test_index_knows_the_longest_and_the_largest_flow_after_any_changes(changes):
    shares = Shares()
    flows: dict[str, dict[int, int]] = {}
    queued = {}
    for number, (flow, size, comes) in enumerate(changes):
        held = flows.setdefault(flow, {})
        if comes or not held:
            held[number] = size
            queued[number] = SimpleNamespace(flow=flow, number=number, size_bytes=size)
            shares.add(queued[number])
        else:
            gone = sorted(held)[size % len(held)]
            del held[gone]
            shares.remove(queued[gone])
        takes = [(len(each), sum(each.values()), max(each)) for each in flows.values() if each]
        if not takes:
            continue
        longest, largest = max(each[:2] for each in takes), max(each[1::-1] for each in takes)
        of_longest, of_largest = shares.last(by_bytes=False).number, shares.last(by_bytes=True).number
        assert of_longest in {newest for *found, newest in takes if tuple(found) == longest}
        assert of_largest in {newest for *found, newest in takes if tuple(found[::-1]) == largest}


def test_thousands_of_short_bodies_give_way_to_a_long_one_some_in_each_look():
    front = Front(0, limits=Limits(requests=0, size_bytes=1000))
    short = [front.send("a", -1, size=1) for _ in range(1000)]
    long = front.send("b", 1, size=500)
    left = len(waiting(*short))
    assert 800 < left < 1000  # the limit is kept soon, not at once
    with pytest.raises(QueueFullError):
        front.send("b", 1, size=500)  # one at a time
    while front.flow.dispatch():
        pass
    assert waiting(*short) == short[:500]
    assert waiting(long) == [long]
    assert front.flow.queues.size_bytes == 1000
    assert waiting(front.send("b", 1, size=30))
    assert front.flow.queues.size_bytes == 1000
