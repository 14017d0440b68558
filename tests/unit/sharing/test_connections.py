# SPDX-License-Identifier: Apache-2.0
"""Which worker gets a connection, and when one of them is told to release one."""

import socket

import pytest

from tests.support.connection_fleet import Fleet, load


@pytest.fixture
def fleet():
    fleet = Fleet(1, 2)
    yield fleet
    fleet.close()


def test_connections_take_turns_before_any_report(fleet):
    assert [fleet.hand_over() for _ in range(4)] == [1, 2, 1, 2]


def test_worker_with_the_fewest_connections_gets_the_next(fleet):
    fleet.report(w1=load(1.0, 1.0), w2=load(1.0))
    assert [fleet.hand_over() for _ in range(3)] == [2, 1, 2]  # 2 and 2 after the first


def test_connections_that_were_passed_count_until_they_are_reported(fleet):
    assert fleet.hand_over() == 1
    fleet.report(w1=load(received=0), w2=load())  # on its way
    assert fleet.hand_over() == 2
    fleet.report(w1=load(received=1), w2=load(1.0, received=1))  # the first has closed
    assert fleet.hand_over() == 1


def test_ties_go_to_the_worker_with_fewer_streams(fleet):
    fleet.report(w1=load(1.0, streams=7), w2=load(1.0, streams=6))
    assert fleet.hand_over() == 2


def test_health_checks_do_not_keep_requests_away(fleet):
    health = load(received=1, young=1)
    assert fleet.hand_over() == 1
    fleet.report(w1=health, w2=load())
    assert fleet.hand_over() == 2  # as long as the first may become a connection of requests
    old = load(received=1)  # no request in a second
    fleet.report(w1=old, w2=load(5.0, received=1))
    assert fleet.hand_over() == 1


def test_full_or_dead_workers_are_passed_over(fleet):
    fleet.ends[1].close()
    del fleet.ends[1]
    assert [fleet.hand_over(), fleet.hand_over()] == [2, 2]
    fleet.connections.remove(2)
    assert fleet.hand_over() is None


def test_full_worker_is_passed_over(fleet):
    with socket.socket() as connection:
        passed = 0
        while fleet.connections.hand_over(connection):
            passed += 1
    assert passed > 10
    fleet.add(3)
    assert fleet.hand_over() is not None


def test_worker_that_hangs_is_the_last_choice(fleet):
    for _ in range(2):
        fleet.report(w1=load(1.0, 1.0))
    assert [fleet.hand_over(), fleet.hand_over()] == [1, 1]
    fleet.connections.remove(1)
    assert fleet.hand_over() == 2


def test_new_worker_gets_its_part(fleet):
    fleet.report(w1=load(1.0, 1.0, 1.0, 1.0), w2=load())
    assert fleet.released == [(1, 1.0)]


def test_worker_without_connections_gets_one_even_if_that_helps_little(fleet):
    fleet.report(w1=load(1000.0, 30.0, 30.0), w2=load())
    assert fleet.released == [(1, 1000.0)]  # 60 and 1000; with another it would be 1030 and 30


def test_idle_connections_move_rather_than_the_busy_one(fleet):
    fleet.report(w1=load(1000.0, 0.0, 0.0), w2=load())
    assert fleet.released == [(1, 0.0)]


def test_one_connection_more_is_no_reason(fleet):
    for _ in range(10):
        fleet.report(w1=load(1.0, 1.0), w2=load(1.0))
    assert not fleet.released


def test_busy_connection_moves_to_the_idle_worker_though_it_has_more_connections(fleet):
    fleet.report(w2=load(5.0, 5.0, 5.0), w1=load(300.0, 200.0))
    assert fleet.released == [(1, 200.0)]  # 300 and 215; with the other it would be 200 and 315
    assert fleet.hand_over() == 2
    assert fleet.hand_over() == 1


def test_worker_that_is_waited_for_in_vain_is_not_preferred_for_long(fleet):
    fleet.report(w2=load(5.0, 5.0, 5.0), w1=load(300.0, 200.0))
    fleet.clock.advance(2)
    assert fleet.hand_over() == 1


@pytest.mark.parametrize(
    ("busy", "idle"),
    [
        ((500.0,), ()),  # the only one
        ((500.0, 0.1), (10.0,)),  # one would move everything, the other nothing
        ((40.0, 9.0), (1.0,)),  # few calls
        ((300.0, 300.0), (430.0,)),  # less than half more
    ],
)
def test_move_that_helps_nobody_is_left_out(fleet, busy, idle):
    for _ in range(10):
        fleet.report(w1=load(*busy), w2=load(*idle))
    assert not fleet.released


def test_numbers_of_connections_are_not_made_even_at_the_cost_of_rates(fleet):
    for _ in range(10):
        fleet.report(w1=load(200.0, 200.0, 200.0), w2=load(600.0))
    assert not fleet.released


def test_releases_have_time_between_them_and_an_end(fleet):
    for _ in range(200):
        fleet.report(w1=load(1.0, 1.0, 1.0), w2=load())  # as if the client came back each time
    assert 100 < len(fleet.released) <= 112  # 32 and one each 5 s of 400 s


def test_worker_that_hangs_is_not_told_again_and_again(fleet):
    fleet.report(w1=load(1.0, 1.0, 1.0), w2=load())
    for _ in range(10):
        fleet.report(w2=load())
    assert len(fleet.released) == 1


async def test_streams_of_all_workers_are_counted(fleet):
    fleet.report(w1=load(1.0, streams=2, begun=2), w2=load(1.0, streams=3, begun=3), w9=load(streams=7))
    assert fleet.connections.streams.count == 5
    fleet.connections.remove(2)
    assert fleet.connections.streams.count == 2
