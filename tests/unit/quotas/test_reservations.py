# SPDX-License-Identifier: Apache-2.0
"""What was taken is given back exactly once, however a request ends."""

from itertools import permutations

import pytest

from epp.admission.quotas import Reservation
from tests.support.quotas import GIB, Desk, tag, usage

VERBS = {
    "first_token": lambda each, _desk: each.first_token(),
    "move": lambda each, desk: each.move(desk.pool.snapshot, 1),
    "release": lambda each, _desk: each.release(usage(10, 10)),
    "release again": lambda each, _desk: each.release(unserved=True),
}


def test_tf_8_verbs_may_come_in_any_order_and_any_number_of_times():
    endpoints = [tag(gib=80, tflops=300, dollars_per_hour=1)] * 3
    limits = {"requests": 9, "tokens": 900, "accelerator_bytes": 900 * GIB, "tflops": 9000, "dollars_per_day": 9}
    for order in permutations(VERBS):
        desk = Desk(**limits, endpoints=endpoints)
        each = desk.take(prompt=10, output=10, legs=(2,))
        for verb in (*order, *order):
            VERBS[verb](each, desk)
        assert each.is_released
        assert {line.used for line in desk.quotas.report("a")} == {0}
        assert desk.quotas.requests == desk.quotas.endpoints == 0


def test_a_request_that_goes_elsewhere_takes_the_hardware_there():
    endpoints = [tag(gib=80, dollars_per_hour=3.6), tag(gib=40, dollars_per_hour=36)]
    desk = Desk(accelerator_bytes=80 * GIB, dollars_per_day=1, endpoints=endpoints)
    each = desk.take()
    desk.clock.advance(10)
    each.move(desk.pool.snapshot, 1)
    assert desk.used("total.max.vram.request") == 40 * GIB
    assert desk.came_back == ["a"]
    desk.clock.advance(10)
    each.release()
    assert each.spent.dollars == pytest.approx(0.01 + 0.1)


def test_other_legs_of_a_request_are_given_back_at_the_first_token():
    desk = Desk(accelerator_bytes=120 * GIB, endpoints=[tag(gib=80), tag(gib=40)])
    each = desk.take(slot=0, legs=(1,))
    assert desk.used("total.max.vram.request") == 120 * GIB
    assert desk.quotas.endpoints == 2
    each.first_token()
    assert desk.used("total.max.vram.request") == 80 * GIB
    assert desk.quotas.endpoints == 1


def test_an_endpoint_that_leaves_the_pool_leaves_nothing_behind():
    desk = Desk(requests=9, device_seconds_per_day=900, endpoints=[tag()] * 2)
    before = desk.take(slot=0)
    desk.pool = Desk(endpoints=[tag()]).pool
    desk.clock.advance(5)
    before.release()
    assert before.spent.device_seconds == 5
    assert desk.quotas.requests == desk.quotas.endpoints == 0


def test_a_quota_that_is_gone_still_gets_back_what_was_charged_to_it():
    desk = Desk(requests=9)
    first = desk.take()
    desk.source.quotas = {}
    second = desk.take()
    assert isinstance(second, Reservation)
    assert not second.is_limited
    first.release()
    second.release()
    assert desk.quotas.requests == desk.quotas.tenants == 0
