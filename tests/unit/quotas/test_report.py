# SPDX-License-Identifier: Apache-2.0
"""What people see of quotas and change at run time: lines of limits, alerts, adjustments."""

import pytest

from epp.admission.quotas import Blocked, Reservation
from epp.admission.quotas.usage import MOST_SET
from epp.framework.errors import ConfigurationError
from tests.support.quotas import Desk, quota, tag

WORKERS = "total.max.workers.limit"


def test_a_line_says_what_is_used_and_left_of_a_limit():
    desk = Desk(requests=4, tokens=100)
    desk.take(prompt=25, output=0)
    workers, tokens = desk.quotas.report()
    assert (workers.tenant, workers.key, workers.used, workers.limit) == ("a", WORKERS, 1, 4)
    assert (tokens.headroom, tokens.is_set) == (75, False)


def test_limits_are_listed_in_the_order_of_the_guide():
    limits = {"tokens": 9, "tokens_per_minute": 9, "device_seconds_per_day": 9, "dollars_per_day": 9}
    desk = Desk(requests=9, **limits, accelerator_bytes=9, tflops=9)
    assert [line.key.removeprefix("total.max.") for line in desk.quotas.report("a")] == [
        "workers.limit",
        "tokens",
        "tokensPerMinute",
        "vram.request",
        "tflops.request",
        "deviceSecondsPerDay",
        "dollarsPerDay",
    ]


def test_a_report_is_of_so_many_tenants_at_most():
    desk = Desk({name: quota(requests=5) for name in "abcdef"})
    for name in "abcdef":
        desk.take(name)
    assert [line.tenant for line in desk.quotas.report(most=2)] == ["a", "b"]
    assert len(desk.quotas.report()) == 6
    assert [line.used for line in desk.quotas.report("f")] == [1]
    assert desk.quotas.report("nobody") == ()


def test_tf_9_alert_begins_at_the_threshold_and_is_told_once():
    desk = Desk({"a": quota(requests=20, alert_percent=90)})
    begun = [desk.take() for _ in range(17)]
    assert desk.told.alerts == []
    begun += [desk.take() for _ in range(3)]
    assert desk.told.alerts == [("a", WORKERS, 18, 20, False)]
    assert desk.quotas.report("a")[0].is_alerting


def test_tf_9_alert_does_not_flap_with_each_request():
    desk = Desk(requests=1)
    for _ in range(30):
        desk.take().release()
        desk.clock.advance(3)
        desk.quotas.sweep()
    assert [is_over for *_, is_over in desk.told.alerts] == [False]
    desk.clock.advance(60)
    desk.quotas.sweep()
    assert [is_over for *_, is_over in desk.told.alerts] == [False, True]
    assert desk.quotas.tenants == 0


def test_tf_9_alert_stays_while_use_is_within_its_margin():
    desk = Desk({"a": quota(requests=10, alert_percent=90)})
    begun = [desk.take() for _ in range(9)]
    begun.pop().release()
    desk.clock.advance(100)
    desk.quotas.sweep()
    assert desk.quotas.report("a")[0].used == 8
    assert not desk.quotas.report("a")[0].is_alerting  # 8 is 10 points below the threshold
    desk.take()
    begun.pop().release()
    assert [is_over for *_, is_over in desk.told.alerts] == [False, True, False]


def test_tf_9_a_budget_of_a_day_that_is_almost_used_up_alerts_while_its_requests_go_on():
    desk = Desk(device_seconds_per_day=100, endpoints=[tag()])
    first = desk.take()
    desk.clock.advance(96)
    desk.quotas.sweep()
    assert [alert[1] for alert in desk.told.alerts] == ["total.max.deviceSecondsPerDay"]
    first.release()


def test_tf_16_dry_run_shows_headroom_and_breaches_and_changes_nothing():
    desk = Desk(requests=4, tokens=100)
    begun = [desk.take(prompt=20, output=0) for _ in range(3)]
    found = desk.quotas.adjust("a", quota(requests=2, tokens=90), dry_run=True)
    assert not found.is_applied
    assert (found.before.total.requests, found.after.total.requests) == (4, 2)
    assert [line.headroom for line in found.lines] == [-1, 30]
    assert [(each.key, each.requested, each.limit) for each in found.breaches] == [(WORKERS, 3, 2)]
    assert isinstance(desk.take(prompt=20, output=0), Reservation)
    assert not begun[0].is_released


def test_tf_16_quota_that_was_set_holds_over_reloads_until_it_is_taken_back():
    desk = Desk(requests=4)
    begun = desk.take()
    assert desk.quotas.adjust("a", quota(requests=1)).is_applied
    desk.quotas.use([desk.source])
    assert isinstance(desk.take(), Blocked)
    assert desk.quotas.report("a")[0].is_set
    desk.came_back.clear()
    back = desk.quotas.adjust("a", None)
    assert (back.before.total.requests, back.after.total.requests) == (1, 4)
    assert desk.came_back == ["a"]  # those that wait are looked at again
    assert not desk.quotas.report("a")[0].is_set
    assert isinstance(desk.take(), Reservation)
    begun.release()


def test_tf_16_a_tenant_with_a_set_quota_is_reported_before_it_sends_anything():
    desk = Desk({})
    desk.quotas.adjust("new", quota(requests=3))
    assert [(line.tenant, line.used, line.is_set) for line in desk.quotas.report()] == [("new", 0, True)]


def test_tf_16_quotas_that_were_set_are_bounded():
    desk = Desk({})
    for number in range(MOST_SET):
        desk.quotas.adjust(f"t{number}", quota(requests=1))
    with pytest.raises(ConfigurationError, match="remove some of them"):
        desk.quotas.adjust("one-more", quota(requests=1))
    desk.quotas.adjust("t7", quota(requests=2))
    desk.quotas.adjust("t8", None)
    desk.quotas.adjust("one-more", quota(requests=1))


@pytest.mark.parametrize("dry_run", [True, False])
def test_tf_16_a_quota_that_cannot_be_is_refused_and_the_last_one_stays(dry_run):
    desk = Desk(requests=4)
    desk.quotas.adjust("a", quota(requests=2))
    with pytest.raises(ConfigurationError, match="'a' has a limit tokens of nan"):
        desk.quotas.adjust("a", quota(tokens=float("nan")), dry_run=dry_run)
    assert desk.quotas.quota_of("a").total.requests == 2


def test_tf_16_a_quota_below_what_is_used_alerts_at_once():
    desk = Desk(requests=10)
    begun = [desk.take() for _ in range(5)]
    desk.quotas.adjust("a", quota(requests=4))
    assert desk.told.alerts == [("a", WORKERS, 5, 4, False)]
    assert begun
