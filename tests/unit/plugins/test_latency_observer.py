# SPDX-License-Identifier: Apache-2.0
"""Times to the first token at endpoints without metrics, measured from responses."""

import pytest

from epp.framework import OBSERVED_LATENCY, Candidates, Headers, ManualClock, Request, RequestBody, Response
from epp.framework.testing import candidates
from epp.plugins.latency_observer import LatencyObserver
from tests.support.plugins import built

FIELDS = ("floor", "low", "typical", "low_in_flight", "typical_in_flight", "has_recent")


class World:
    def __init__(self, sent_to, **parameters):
        self.clock, self.sent_to = ManualClock(), sent_to
        self.plugin = built(LatencyObserver, parameters, name=LatencyObserver.plugin_type, clock=self.clock)

    def measure(self, milliseconds, *, in_flight=0, slot=0, waited=0.0, status=200, streaming=True, served=None):
        pool = candidates(in_flight=[in_flight] * 2)
        request = Request("r", RequestBody(streaming=streaming), received_at=self.clock.now() - waited)
        now = Candidates(pool.snapshot, pool.slots, now=self.clock.now())
        self.plugin.pre_request(request, self.sent_to(now, slot))
        response = Response(pool[slot if served is None else served], "", status, Headers())
        self.plugin.first_token(request, response, milliseconds / 1e3 + waited)

    def observed(self, slot=0, *, later=1.0, dry_run=False):
        self.clock.advance(later)
        request = Request("r", dry_run=dry_run)
        self.plugin.produce(request, candidates(in_flight=[0, 0]))
        found = request.get(OBSERVED_LATENCY)
        return [round(getattr(found, name).item(slot), 6) for name in FIELDS]


@pytest.fixture
def world(sent_to):
    return lambda **parameters: World(sent_to, **parameters)


def test_percentiles_are_those_of_the_latest_requests_with_the_load_around_them(world):
    world = world(maxRequests=11, minRequests=11)
    world.measure(5000)  # pushed out by the following
    for number in range(11):
        world.measure(100 + 10 * number, in_flight=number)
    # of 100, 110 .. 200 ms; in flight 2 .. 4 at the 15th to the 35th, and 4 .. 6
    assert world.observed() == [0.11, 0.125, 0.15, 3.0, 5.0, 1.0]
    assert world.observed(1) == [0.0] * 6


def test_few_requests_give_no_floor_and_few_recent_ones_only_a_floor(world):
    world = world(minRequests=3)
    for _ in range(2):
        world.measure(100)
    assert world.observed() == [0.0] * 6
    world.measure(100)
    assert world.observed()[0] == 0.1
    assert world.observed(later=200)[-1] == 0.0  # the times are older than three minutes, but the bucket has a floor
    assert world.observed()[0] == 0.1


def test_floor_is_that_of_former_buckets_without_the_slowest(world):
    world = world(minRequests=1, bucketHistorySize=2)
    for milliseconds in (900, 100, 300):
        world.measure(milliseconds)
        world.observed(later=60)
    world.measure(50)
    assert world.observed()[0] == 0.12  # the 10th percentile of 100 and 300 ms


def test_computation_waits_for_the_interval(world):
    world = world(minRequests=1)
    world.measure(100)
    assert world.observed()[0] == 0.1
    world.measure(10)
    assert world.observed(later=0.5)[0] == 0.1
    assert world.observed(later=0.5)[0] == pytest.approx(0.019)


def test_time_before_the_pick_does_not_count(world):
    world = world(minRequests=1)
    world.measure(100, waited=3.0)
    assert world.observed()[0] == 0.1


@pytest.mark.parametrize("ignored", [{"status": 500}, {"streaming": False}, {"served": 1}])
def test_response_that_tells_no_time_to_the_first_token_is_not_counted(world, ignored):
    world = world(minRequests=1)
    world.measure(100, **ignored)
    assert world.observed()[0] == 0.0


def test_simulated_request_computes_nothing_and_an_endpoint_that_left_is_forgotten(world):
    world = world(minRequests=1)
    world.measure(100)
    assert world.observed(dry_run=True)[0] == 0.0
    assert world.observed()[0] == 0.1
    world.plugin.slots_removed([0, 1])
    assert world.observed()[0] == 0.0
