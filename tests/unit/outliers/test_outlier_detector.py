# SPDX-License-Identifier: Apache-2.0
"""Endpoints at which requests fail: avoided at once, asked, and ejected if they go on failing."""

import pytest

from epp.framework import Endpoint
from epp.framework.snapshot import SILENT
from epp.routing.outliers.record import Failure, Verdict, failure_of
from epp.routing.settings import OutlierSettings
from tests.support.outlier_world import SETTINGS, World


def test_endpoint_without_a_connection_is_avoided_until_its_port_has_answered():
    world = World(3)
    world.fail(0, Failure.CONNECTION)
    assert world.used == {"e1", "e2"}
    assert world.say(Verdict.ANSWERS) == 1
    assert world.used == {"e0", "e1", "e2"}
    assert world.counts == {Verdict.ANSWERS: 1}


def test_many_requests_that_fail_at_one_moment_are_one_question():
    world = World(3)
    world.fail(0, Failure.CONNECTION, times=50)
    assert world.say(Verdict.ANSWERS) == 1
    assert world.ejected == set()


def test_refusal_leaves_the_endpoint_to_the_polls():
    world = World(2)
    for _ in range(10):
        world.fail(0, Failure.CONNECTION)
        world.say(Verdict.REFUSES)
    assert world.ejected == set()
    assert world.memory.is_clean
    assert world.used == {"e0", "e1"}  # the poll that was refused marks it, which is not part of this test


def test_endpoint_whose_port_answers_and_that_takes_no_requests_is_ejected():
    world = World(3)
    world.lose_connections(0, 2)
    assert world.ejected == set()
    world.lose_connections(0, 1)
    assert world.ejected == {"e0"}
    assert world.used == {"e1", "e2"}
    (ejected,) = world.memory.ejected
    assert ejected.why(world.clock.now()) == "ejected: 3 failed connections in a row, again in 10 s"


def test_response_in_between_begins_the_row_anew():
    world = World(3)
    for _ in range(5):
        world.lose_connections(0, 2)
        world.memory.succeeded(world.pool[0])
    assert world.ejected == set()
    assert world.memory.is_clean


def test_end_of_a_connection_of_our_own_is_no_failure():
    world = World(3)
    for _ in range(10):
        world.memory.suspect(world.pool[0])
        assert world.used == {"e1", "e2"}
        world.say(Verdict.ANSWERS)
    assert world.ejected == set()
    assert world.memory.is_clean


def test_after_its_time_one_request_is_the_trial():
    world = World(3)
    world.lose_connections(0, 3)
    world.pass_time(9.9)
    assert world.used == {"e1", "e2"}
    world.pass_time(0.2)
    assert world.used == {"e0", "e1", "e2"}
    assert world.memory.ejected[0].why(world.clock.now()) == (
        "ejected: 3 failed connections in a row, on trial: the next request decides"
    )
    world.memory.picked(0)
    assert world.used == {"e1", "e2"}
    world.memory.succeeded(world.pool[0])
    assert world.used == {"e0", "e1", "e2"}
    assert world.ejected == set()


def test_failed_trial_ejects_for_longer():
    world = World(3)
    world.lose_connections(0, 3)
    for seconds in (10, 20, 30):
        world.pass_time(seconds - 0.1)
        assert world.used == {"e1", "e2"}
        world.pass_time(0.2)
        world.memory.picked(0)
        world.fail(0, Failure.GATEWAY)
        assert world.ejected == {"e0"}


def test_trial_without_an_answer_is_followed_by_another():
    world = World(3)
    world.lose_connections(0, 3)
    world.pass_time(10)
    world.memory.picked(0)
    world.pass_time(10)
    assert world.used == {"e0", "e1", "e2"}


def test_ejections_are_forgotten_one_by_one():
    world = World(3)
    world.lose_connections(0, 3)
    world.pass_time(10)
    world.memory.picked(0)
    world.fail(0, Failure.CONNECTION)
    world.pass_time(20)
    world.memory.picked(0)
    world.memory.succeeded(world.pool[0])
    world.pass_time(10)  # one of two
    assert not world.memory.is_clean
    world.pass_time(10)
    assert world.memory.is_clean


def test_never_more_than_the_limit_are_ejected():
    world = World(4)
    for number in range(4):
        world.lose_connections(number, 3)
    assert world.ejected == {"e0", "e1"}  # 50 % of four
    assert world.used == {"e2", "e3"}
    assert world.counts["spared", Failure.CONNECTION] == 2


def test_where_all_are_avoided_none_is():
    world = World(3)
    for number in range(3):
        world.fail(number, Failure.CONNECTION)
    assert world.used == {"e0", "e1", "e2"}


def test_endpoint_that_is_silent_is_preferred_by_none():
    world = World(2)
    world.store.mark(world.pool[0], SILENT)
    world.fail(1, Failure.CONNECTION)
    assert world.used == {"e1"}  # avoided, and yet the only one that answers


def test_limit_holds_when_the_pool_shrinks():
    world = World(4)
    world.lose_connections(0, 3)
    world.lose_connections(1, 3)
    world.store.replace(world.pool[:2])
    assert len(world.ejected) == 1
    world.store.replace(world.pool[:1])
    assert world.ejected == set()


def test_requests_that_fail_everywhere_eject_no_endpoint():
    world = World(4)
    for _ in range(50):
        for number in range(4):
            world.fail(number, Failure.SERVER)
    assert world.ejected == set()


def test_errors_in_a_row_eject_an_endpoint_while_any_other_answers():
    world = World(2)
    world.fail(0, Failure.SERVER)
    world.fail(1, Failure.SERVER)
    world.fail(0, Failure.SERVER, times=7)
    assert world.ejected == set()  # the other one has failed as well, and nobody has succeeded
    world.memory.succeeded(world.pool[1])
    world.fail(0, Failure.SERVER)
    assert world.ejected == {"e0"}
    assert world.memory.ejected[0].why(world.clock.now()) == (
        "ejected: 9 responses with an error of the server in a row, again in 10 s"
    )


def test_last_endpoint_of_a_failing_pool_to_respond_is_not_ejected():
    """Its failures come after those of all others: it is no worse than they are."""
    world = World(3)
    for number in (0, 1):
        world.fail(number, Failure.SERVER, times=40)
    world.fail(2, Failure.SERVER, times=40)
    assert world.ejected == set()
    world.pass_time(60)  # the others have not failed for a while
    world.fail(2, Failure.SERVER, times=5)
    assert world.ejected == {"e2"}


def test_errors_in_a_row_eject_an_endpoint_before_any_other_was_asked():
    world = World(2)
    world.fail(0, Failure.SERVER, times=5)
    assert world.ejected == {"e0"}
    world.memory.succeeded(world.pool[1])
    world.fail(1, Failure.SERVER, times=50)
    assert world.ejected == {"e0"}  # never both


def test_endpoint_returns_that_was_ejected_before_another_one_failed_as_well():
    world = World(2)
    world.fail(0, Failure.SERVER, times=5)
    world.fail(1, Failure.SERVER)
    assert world.ejected == set()
    world.fail(0, Failure.SERVER, times=50)
    world.fail(1, Failure.SERVER, times=50)
    assert world.ejected == set()


def test_only_endpoint_that_fails_is_used_and_told_of():
    world = World(1)
    world.lose_connections(0, 10)
    assert (world.ejected, world.used) == (set(), {"e0"})
    world.memory.succeeded(world.pool[0])
    world.fail(0, Failure.SERVER, times=5)
    assert world.ejected == set()
    assert world.memory.failing == {
        "default/e0": "5 responses with an error of the server in a row; used, as no other endpoint takes its place"
    }
    world.memory.succeeded(world.pool[0])
    assert world.memory.failing == {}


def test_429_of_all_endpoints_ejects_none():
    world = World(2)
    for _ in range(50):
        world.fail(0, Failure.OVERLOAD)
        world.fail(1, Failure.OVERLOAD)
    assert world.ejected == set()
    world.memory.succeeded(world.pool[1])
    world.fail(0, Failure.OVERLOAD)
    assert world.ejected == {"e0"}


def test_429_of_an_endpoint_that_is_busy_does_not_count():
    world = World(2)
    for _ in range(20):
        world.memory.succeeded(world.pool[0])
        world.memory.succeeded(world.pool[1])
        world.fail(0, Failure.OVERLOAD, times=20)
        world.pass_time(1)
    assert world.memory.is_clean
    world.pass_time(3)
    world.fail(0, Failure.OVERLOAD, times=5)
    assert world.ejected == {"e0"}


def test_404_ejects_only_where_another_endpoint_answers_for_the_model():
    world = World(2)
    for model in ("served", "unknown"):
        for _ in range(50):
            world.memory.failed(world.pool[0], Failure.MODEL, model=model)
    assert world.memory.is_clean
    world.memory.succeeded(world.pool[1], "served")
    for _ in range(5):
        world.memory.failed(world.pool[0], Failure.MODEL, model="unknown")
    assert world.memory.is_clean
    for _ in range(5):
        world.memory.failed(world.pool[0], Failure.MODEL, model="served")
    assert world.ejected == {"e0"}


def test_success_rate_far_below_that_of_the_others_ejects():
    world = World(2)
    for _ in range(30):
        world.fail(0, Failure.SERVER)
        world.memory.succeeded(world.pool[0])
        world.memory.succeeded(world.pool[1])
    assert world.ejected == {"e0"}
    assert "requests failed" in world.memory.ejected[0].reason


def test_success_rate_like_that_of_the_others_ejects_none():
    world = World(2)
    for _ in range(100):
        for number in (0, 1):
            world.fail(number, Failure.SERVER)
            world.memory.succeeded(world.pool[number])
            world.memory.succeeded(world.pool[number])
    assert world.ejected == set()


def test_success_rate_counts_only_the_last_half_minute():
    world = World(2)
    for _ in range(30):
        world.fail(0, Failure.SERVER)
        world.memory.succeeded(world.pool[0])
        world.memory.succeeded(world.pool[1])
        world.pass_time(4)
    assert world.ejected == set()
    world.pass_time(100)
    assert world.memory.is_clean


def test_request_that_is_sent_again_and_again_ejects_no_endpoint():
    world = World(4)
    for failure in Failure:
        for _ in range(50):
            world.memory.failed(world.pool[0], failure, content_hash=7)
            world.say(Verdict.ANSWERS)
        assert world.ejected == set()


def test_other_endpoint_on_a_slot_begins_clean():
    world = World(3)
    world.lose_connections(0, 3)
    world.store.replace([*world.pool[1:], Endpoint("new", "10.0.0.9", 8000)])
    assert world.ejected == set()
    assert world.memory.is_clean
    assert world.used == {"e1", "e2", "new"}
    world.memory.failed(world.pool[0], Failure.CONNECTION)  # a request that was under way
    assert world.memory.is_clean


def test_answer_after_the_endpoint_has_left_changes_nothing():
    world = World(3)
    world.fail(0, Failure.CONNECTION)
    world.store.replace(world.pool[1:])
    world.say(Verdict.ANSWERS)
    assert world.memory.is_clean


def test_silent_port_does_not_keep_an_endpoint_out_for_ever():
    world = World(3)
    world.fail(0, Failure.CONNECTION)
    world.say(Verdict.SILENT)
    assert world.used == {"e1", "e2"}
    world.pass_time(3)
    assert world.used == {"e0", "e1", "e2"}


def test_switched_off_it_holds_nothing_against_any_endpoint():
    world = World(3, OutlierSettings(enabled=False))
    world.fail(0, Failure.CONNECTION, times=20)
    world.memory.suspect(world.pool[0])
    assert world.used == {"e0", "e1", "e2"}
    assert world.questions == []


def test_counts_of_zero_eject_none():
    world = World(3, OutlierSettings(consecutive_gateway_failure=0, consecutive_5xx=0))
    world.lose_connections(0, 50)
    world.fail(1, Failure.SERVER, times=50)
    assert world.ejected == set()


@pytest.mark.parametrize(("endpoints", "most"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (10, 5)])
def test_half_of_the_pool_at_most(endpoints, most):
    assert SETTINGS.most_ejected(endpoints) == most


@pytest.mark.parametrize(
    ("status", "by_gateway", "overloaded", "failure"),
    [
        (200, False, False, None),
        (400, False, False, None),
        (404, False, False, Failure.MODEL),
        (404, True, False, None),
        (429, False, True, Failure.OVERLOAD),
        (429, True, False, None),  # a rate limit of the gateway
        (500, False, False, Failure.SERVER),
        (501, False, False, None),
        (502, False, False, Failure.GATEWAY),
        (503, False, False, Failure.GATEWAY),
        (503, False, True, None),  # it says when to come again
        (503, True, False, Failure.CONNECTION),
        (504, False, False, Failure.GATEWAY),
        (504, True, False, Failure.SERVER),  # a time limit of the route
        (500, True, False, None),  # the gateway's own
    ],
)
def test_what_a_response_says_about_its_endpoint(status, by_gateway, overloaded, failure):
    assert failure_of(status, by_gateway=by_gateway, overloaded=overloaded) is failure
