# SPDX-License-Identifier: Apache-2.0
"""Tokens of a minute, device seconds and dollars of a day."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.admission.quotas import Blocked, Reservation
from epp.admission.quotas.reservation import SharedTime
from tests.support.quotas import MIDNIGHT, Desk, quota, tag, usage

MINUTE = "total.max.tokensPerMinute"
SECONDS = "total.max.deviceSecondsPerDay"
DOLLARS = "total.max.dollarsPerDay"


def spend_all(desk: Desk, seconds: float = 100) -> None:
    begun = desk.take()
    desk.clock.advance(seconds)
    begun.release()
    assert isinstance(desk.take(), Blocked)


def test_tf_9_tokens_of_a_minute_come_back_as_it_passes():
    desk = Desk(tokens_per_minute=600)  # 10 a second
    desk.take(prompt=500, output=100).release()
    blocked = desk.take(prompt=50, output=0)
    assert (blocked.breach.key, blocked.breach.requested, blocked.retry_after_seconds) == (MINUTE, 650, 5)
    assert blocked.until == desk.clock.now() + 5
    desk.clock.advance(4.9)
    assert isinstance(desk.take(prompt=50, output=0), Blocked)
    desk.clock.advance(0.1)
    assert isinstance(desk.take(prompt=50, output=0), Reservation)


def test_a_request_fits_at_the_moment_that_it_was_told():
    desk = Desk(tokens_per_minute=700)
    for prompt in (333, 101, 207):
        desk.take(prompt=prompt, output=0)
    for _ in range(50):
        blocked = desk.take(prompt=97, output=0)
        if isinstance(blocked, Blocked):
            desk.clock.seconds = blocked.until
            assert isinstance(desk.take(prompt=97, output=0), Reservation)


@pytest.mark.parametrize(
    ("end", "charged"),
    [({"used": usage(90, 10)}, 100), ({}, 300), ({"unserved": True}, 0)],
    ids=["usage", "no usage", "no server has seen it"],
)
def test_the_charge_is_corrected_by_what_the_model_server_counted(end, charged):
    desk = Desk(tokens_per_minute=600)
    desk.take(prompt=100, output=400).release(end.pop("used", None), **end)  # 200 are expected of the answer
    assert desk.used(MINUTE) == charged


def test_an_answer_that_is_longer_than_expected_makes_a_debt_of_five_minutes_at_most():
    desk = Desk(tokens_per_minute=600)
    desk.take(prompt=10, output=None).release(usage(10, 1590))
    assert desk.used(MINUTE) == 1600
    assert desk.take(prompt=100, output=0).retry_after_seconds == 110  # 1100 tokens at 10 a second
    desk.clock.advance(10)
    assert desk.used(MINUTE) == 1500
    desk.clock.advance(100)
    desk.take(prompt=100, output=0).release(usage(10**30, -5))
    assert desk.take(prompt=600, output=0).retry_after_seconds == 300
    desk.clock.advance(300)
    assert isinstance(desk.take(prompt=600, output=0), Reservation)


def test_a_minutes_use_stays_under_another_limit_and_drains_at_the_new_one():
    desk = Desk(tokens_per_minute=600)
    desk.take(prompt=600, output=0)
    desk.quotas.adjust("a", quota(tokens_per_minute=1200))
    assert desk.used(MINUTE) == 600
    desk.clock.advance(10)
    assert desk.used(MINUTE) == 400
    desk.quotas.adjust("a", quota(tokens_per_minute=60))
    assert desk.used(MINUTE) == 300  # five minutes' worth, the most that it holds


def test_tf_9_device_seconds_are_the_devices_times_the_share_of_the_endpoints_time():
    desk = Desk(device_seconds_per_day=1000, endpoints=[tag(devices=8)] * 2)
    first = desk.take()
    desk.clock.advance(10)  # alone: 10 seconds
    second = desk.take("b")  # without a quota, it still has its share
    desk.clock.advance(10)  # together: 5 seconds each
    first.release()
    assert first.spent.device_seconds == 8 * 15
    assert desk.used(SECONDS) == 8 * 15
    desk.clock.advance(10)
    second.release()
    assert second.spent.seconds == 15
    assert desk.quotas.endpoints == 0


def test_tf_9_dollars_are_the_price_of_the_endpoint_for_that_time():
    desk = Desk(dollars_per_day=1, endpoints=[tag(devices=2, dollars_per_hour=3.6)])
    begun = desk.take()
    desk.clock.advance(100)
    begun.release()
    assert desk.used(DOLLARS) == pytest.approx(0.2)


def test_a_budget_that_is_used_up_is_there_again_at_midnight():
    desk = Desk(device_seconds_per_day=100, endpoints=[tag()])
    spend_all(desk)
    blocked = desk.take()
    assert (blocked.breach.key, blocked.retry_after_seconds) == (SECONDS, 86_300)
    assert blocked.until == desk.clock.now() + 86_300
    desk.clock.advance(86_299)
    assert isinstance(desk.take(), Blocked)
    desk.clock.advance(1)
    assert isinstance(desk.take(), Reservation)


def test_requests_under_way_are_expected_to_take_what_the_mean_one_does():
    desk = Desk(device_seconds_per_day=100, endpoints=[tag()])
    begun = desk.take()
    desk.clock.advance(40)
    begun.release()
    desk.take()  # 40 are used, and 40 expected
    assert desk.take().breach.requested == 120
    desk.clock.advance(30)
    desk.quotas.sweep()  # 30 of the 40 expected are used now
    assert desk.used(SECONDS) == 70
    assert desk.take().breach.requested == 120


def test_what_was_expected_of_a_request_counts_no_more_once_it_has_ended():
    desk = Desk(device_seconds_per_day=125, endpoints=[tag()])
    first = desk.take()
    desk.clock.advance(40)
    first.release()
    short = desk.take()
    desk.take()
    assert desk.take().breach.requested == 160  # 40 are used, and 40 expected of each
    short.release()  # it took nothing, so that the mean is 20
    assert all(isinstance(desk.take(), Reservation) for _ in range(2))
    assert desk.take().breach.requested == 140  # 40 + 40 + 20 + 20, and 20 of this one


def test_a_tenant_whose_mean_request_takes_more_than_a_budget_has_one_a_day():
    desk = Desk(device_seconds_per_day=100, endpoints=[tag()])
    for _ in range(3):
        spend_all(desk, 150)
        desk.clock.advance(86_400)


def test_a_request_that_lasts_past_midnight_is_charged_to_both_days():
    desk = Desk(device_seconds_per_day=100, endpoints=[tag()])
    desk.clock.wall = MIDNIGHT + 86_400 - 30
    begun = desk.take()
    desk.clock.advance(29)
    desk.quotas.sweep()
    assert desk.used(SECONDS) == 29
    desk.clock.advance(11)
    begun.release()
    assert desk.used(SECONDS) == 11
    assert begun.spent.device_seconds == 40


def test_a_clock_that_is_set_back_gives_no_budget_anew():
    desk = Desk(device_seconds_per_day=100, endpoints=[tag()])
    spend_all(desk)
    for seconds in (3600, 86_400, 10**8):
        desk.clock.wall -= seconds
        assert isinstance(desk.take(), Blocked)
        assert desk.take().retry_after_seconds <= 86_400


def test_a_clock_that_was_a_year_ahead_for_a_moment_stops_no_budget_for_good():
    desk = Desk(device_seconds_per_day=100, endpoints=[tag()])
    desk.clock.wall += 365 * 86_400
    spend_all(desk)
    desk.clock.wall -= 365 * 86_400
    assert isinstance(desk.take(), Blocked)
    desk.clock.advance(25 * 3600)
    assert isinstance(desk.take(), Reservation)


EVENTS = st.lists(st.tuples(st.sampled_from(["enter", "leave", "settle", "wait"]), st.integers(0, 9)), max_size=60)


@given(EVENTS)
def test_shares_of_all_requests_add_up_to_the_time_in_which_the_endpoint_had_any(events):
    desk = Desk(device_seconds_per_day=10**9, endpoints=[tag(devices=4)])
    begun, all_of_them, busy = [], [], 0.0
    for event, number in events:
        if event == "enter":
            begun.append(desk.take("a" if number % 2 else "b"))
            all_of_them.append(begun[-1])
        elif event == "leave" and begun:
            begun.pop(number % len(begun)).release()
        elif event == "settle":
            desk.quotas.sweep()
        else:
            busy += number / 7 if begun else 0.0
            desk.clock.advance(number / 7)
    while begun:
        begun.pop().release()
    assert sum(each.spent.device_seconds for each in all_of_them) == pytest.approx(4 * busy)


@given(EVENTS)
def test_time_of_an_endpoint_is_divided_without_a_rest(events):
    times, now, busy, shares, inside = {}, 0.0, 0.0, 0.0, []
    for event, number in events:
        if event == "enter":
            clock = times.get("e") or SharedTime("e", times)
            inside.append((clock, clock.enter(now)))
        elif event == "leave" and inside:
            clock, since = inside.pop(number % len(inside))
            shares += clock.leave(now) - since
        else:
            busy += number / 7 if inside else 0.0
            now += number / 7
    shares += sum(clock.leave(now) - since for clock, since in inside)
    assert shares == pytest.approx(busy)
    assert not times
