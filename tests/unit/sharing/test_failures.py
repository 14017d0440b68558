# SPDX-License-Identifier: Apache-2.0
"""Endpoints that fail at one picker are avoided at the other one."""

import pytest

from epp.routing.outliers.outlier_detector import SharedFailures
from epp.routing.outliers.record import Failure, Verdict
from epp.sharing.exchange import Exchange
from tests.support.outlier_world import World


def exchange_of(world: World) -> Exchange:
    shared = SharedFailures(world.memory, world.store)
    return Exchange(f"p{id(world)}", lambda: (shared,), world.store.snapshot, world.clock, 7)


@pytest.fixture
def two():
    return World(4), World(4)


@pytest.fixture
def tell(two):
    """Tell what one picker knows to the other."""
    exchanges = {id(world): exchange_of(world) for world in two}

    def tell(one: World, other: World) -> None:
        for world in two:
            world.clock.advance(0.02)
        if (batch := exchanges[id(one)].collect()) is not None:
            exchanges[id(other)].apply(batch, 0.0)

    return tell


def test_ejected_endpoint_is_ejected_at_the_other_picker_for_the_time_that_is_left(two, tell):
    one, other = two
    one.lose_connections(0, 3)
    tell(one, other)
    assert other.ejected == {"e0"}
    assert other.memory.ejected[0].reason == "another picker ejected it"
    other.clock.advance(10.0)
    other.memory.sweep()
    assert other.used == {"e0", "e1", "e2", "e3"}  # on trial
    other.memory.succeeded(other.pool[0])
    assert other.ejected == set()


def test_endpoint_that_one_picker_uses_again_is_on_trial_at_the_other(two, tell):
    one, other = two
    one.lose_connections(0, 3)
    tell(one, other)
    one.clock.advance(10.0)
    one.memory.sweep()
    one.memory.succeeded(one.pool[0])
    tell(one, other)
    assert other.used == {"e0", "e1", "e2", "e3"}


def test_suspicion_leads_to_a_probe_at_the_other_picker_and_no_further(two, tell):
    one, other = two
    one.fail(0, Failure.CONNECTION)
    tell(one, other)
    assert other.used == {"e1", "e2", "e3"}
    assert other.say(Verdict.ANSWERS) == 1
    assert other.used == {"e0", "e1", "e2", "e3"}
    assert one.say(Verdict.ANSWERS) == 1
    tell(other, one)
    assert one.say(Verdict.ANSWERS) == 0


def test_ejections_of_others_stay_within_the_limit_and_are_not_told_on(two, tell):
    one, other = two
    other.lose_connections(1, 3)
    other.lose_connections(2, 3)
    one.lose_connections(0, 3)
    tell(one, other)
    assert other.ejected == {"e1", "e2"}  # half of four
    third = World(4)
    exchange = exchange_of(third)
    one.clock.advance(5.0)
    tell(other, one)
    exchange.apply(exchange_of(other).collect(), 0.0)
    assert third.ejected == {"e1", "e2"}
