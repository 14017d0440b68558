# SPDX-License-Identifier: Apache-2.0
"""Limits on all requests of a tenant together: who begins, who waits for how long, and what comes back."""

import asyncio

import pytest
from msgspec.structs import replace

from epp.admission.quotas import Blocked, Reservation
from epp.framework.plugin import Guard
from epp.framework.quotas import SharedLimit
from tests.support.quotas import GIB, Desk, Failing, Listed, quota, tag, usage


async def test_tf_10_two_hundred_requests_on_a_quota_of_fifty_leave_exactly_fifty():
    desk = Desk(requests=50)

    async def one():
        await asyncio.sleep(0)
        if desk.quotas.breach(desk.request()) is not None:
            return None
        await asyncio.sleep(0)  # filters and scorers of others run in between
        return desk.take()

    found = await asyncio.gather(*(one() for _ in range(200)))
    begun = [each for each in found if isinstance(each, Reservation)]
    assert len(begun) == 50
    assert desk.used("total.max.workers.limit") == 50
    for each in begun:
        each.release()
    assert desk.used("total.max.workers.limit") == 0


def test_tf_10_check_alone_charges_nothing():
    desk = Desk(requests=1)
    for _ in range(3):
        assert desk.quotas.breach(desk.request()) is None
    assert isinstance(desk.take(), Reservation)
    assert desk.quotas.breach(desk.request()).breach.key == "total.max.workers.limit"


def test_tf_9_no_quota_allows_everything():
    desk = Desk({})
    assert all(isinstance(desk.take(prompt=10**9), Reservation) for _ in range(100))
    assert desk.quotas.breach(desk.request()) is None
    assert desk.quotas.fitting(desk.request(), desk.pool) is None


def test_without_sources_nothing_is_active_until_a_quota_is_set():
    desk = Desk(sources=[])
    assert not desk.quotas.is_active
    desk.quotas.adjust("a", quota(requests=1))
    assert desk.quotas.is_active
    desk.quotas.adjust("a", None)
    assert not desk.quotas.is_active


def test_tf_9_vector_of_tensorfusion_ninety_more_tflops_fit_and_ninety_two_do_not():
    # of 500 TFLOPS 310 are used and 100 assumed; 45 x 2 make 500, 46 x 2 would make 502
    endpoints = [tag(tflops=310), tag(tflops=100), tag(tflops=45, devices=2), tag(tflops=46, devices=2)]
    desk = Desk(tflops=500, endpoints=endpoints)
    desk.take(slot=0)
    desk.take(slot=1)
    assert list(desk.quotas.fitting(desk.request(), desk.pool)) == [False, False, True, False]
    blocked = desk.take(slot=3)
    assert isinstance(blocked, Blocked)
    assert blocked.breach.key == "total.max.tflops.request"
    assert (blocked.breach.requested, blocked.breach.limit) == (502, 500)
    assert isinstance(desk.take(slot=2), Reservation)
    assert desk.used("total.max.tflops.request") == 500


def test_tf_9_limit_that_is_lowered_below_its_use_refuses_new_requests_and_lets_the_others_end():
    desk = Desk(requests=3)
    begun = [desk.take() for _ in range(3)]
    desk.source.quotas = {"a": quota(requests=1)}
    for each in begun[:2]:
        assert isinstance(desk.take(), Blocked)
        each.release()
    assert isinstance(desk.take(), Blocked)  # one is left, and one is the most
    begun[2].release()
    assert isinstance(desk.take(), Reservation)


def test_tenants_do_not_share_a_quota():
    desk = Desk({"a": quota(requests=1), "b": quota(requests=1)})
    assert isinstance(desk.take("a"), Reservation)
    assert isinstance(desk.take("b"), Reservation)
    assert desk.take("a").breach.tenant == "a"


def test_the_first_source_that_knows_a_tenant_counts_and_one_that_fails_does_not():
    sources = [Failing(), Listed({"a": quota(requests=1)}), Listed({"a": quota(requests=9), "b": quota(requests=2)})]
    desk = Desk(sources=sources)
    assert [desk.quotas.quota_of(each).total.requests for each in "ab"] == [1, 2]
    assert desk.quotas.quota_of("c") is None
    assert "no idea" in desk.told.failed[0]


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ({"requests": 1}, "is dict instead of a Quota"),
        (quota(requests=float("nan")), "has a limit requests of nan"),
        (quota(tokens=-1), "has a limit tokens of -1"),
        (quota(tflops="many"), "has a limit tflops of 'many'"),
        (quota(single={"dollars": float("inf")}), "has a limit dollars of inf"),
    ],
)
def test_what_a_source_returns_instead_of_a_quota_is_reported_and_limits_nothing(returned, problem):
    desk = Desk({"a": returned})
    assert isinstance(desk.take(), Reservation)
    assert desk.quotas.quota_of("a") is None
    assert f"returned a quota that {problem}" in desk.told.failed[0]


def test_a_source_that_cannot_say_how_many_requests_share_an_endpoint_limits_nothing():
    desk = Desk(requests=1)
    desk.source.requests_per_endpoint = "a few"
    desk.quotas.use([desk.source])
    assert all(isinstance(desk.take(), Reservation) for _ in range(3))
    assert "invalid literal" in desk.told.failed[0]


def test_tokens_in_flight_are_those_of_prompts_and_of_the_longest_answers():
    desk = Desk(tokens=1000)
    first = desk.take(prompt=300, output=500)
    blocked = desk.take(prompt=100, output=101)
    assert (blocked.breach.key, blocked.breach.requested) == ("total.max.tokens", 1001)
    assert isinstance(desk.take(prompt=100, output=100), Reservation)
    first.release(usage(300, 7))
    assert desk.used("total.max.tokens") == 200


def test_an_answer_without_a_limit_counts_as_long_as_the_mean_one_of_the_tenant():
    desk = Desk(tokens=10_000)
    desk.take(prompt=10, output=None).release(usage(10, 40))
    desk.take(prompt=10, output=None).release(usage(10, 60))
    desk.take(prompt=10, output=None)
    desk.take("b")
    # of the first answers the mean is 50; without an account it would be 200
    assert desk.used("total.max.tokens") == 60


def test_the_mean_answer_of_an_idle_tenant_is_forgotten_after_a_while():
    desk = Desk(tokens=10_000)
    desk.take(prompt=10, output=None).release(usage(10, 40))
    desk.clock.advance(601)
    desk.quotas.sweep()
    assert desk.quotas.tenants == 0
    desk.take(prompt=10, output=None)
    assert desk.used("total.max.tokens") == 210


def test_an_expected_answer_never_makes_a_request_impossible():
    desk = Desk(tokens=150, tokens_per_minute=150)  # 200 tokens are expected of an answer
    request = desk.request(prompt=100, output=None)
    desk.quotas.check_single(request)
    assert isinstance(desk.quotas.assume(request, desk.pool.snapshot, 0), Reservation)
    assert desk.used("total.max.tokens") == 150


def test_retry_after_follows_the_rate_at_which_the_tenants_requests_end():
    desk = Desk(requests=4)
    under_way = [desk.take() for _ in range(4)]
    assert desk.take().retry_after_seconds == 1  # nothing is known yet
    for _ in range(4):
        desk.clock.advance(10)
        under_way.pop(0).release()
        under_way.append(desk.take())
    blocked = desk.take()
    assert blocked.retry_after_seconds == 10
    assert blocked.until is None  # one has to end
    desk.clock.advance(10**9)
    assert desk.take().retry_after_seconds == 300


@pytest.mark.parametrize("waits", [True, False])
def test_a_blocked_request_waits_where_its_quota_says_so(waits):
    desk = Desk({"a": quota(requests=1, waits=waits)})
    desk.take()
    assert desk.take().waits is waits


def test_of_several_limits_the_one_that_lasts_longest_is_named():
    desk = Desk(requests=1, tokens_per_minute=60)
    desk.take(prompt=30, output=0)
    blocked = desk.take(prompt=60, output=0)
    assert blocked.breach.key == "total.max.tokensPerMinute"
    assert blocked.retry_after_seconds == 30
    assert blocked.until is None  # the other request has to end too


def test_sums_of_fractions_are_zero_again_to_the_last_bit():
    # 0.1 + 0.2 + 0.3 - 0.3 - 0.2 - 0.1 is 2.8e-17
    endpoints = [tag(tflops=0.1), tag(tflops=0.2), tag(tflops=0.3)]
    desk = Desk(tflops=10, tokens_per_minute=100, endpoints=endpoints)
    begun = [desk.take(slot=slot, prompt=1) for slot in range(3)]
    for each in reversed(begun):
        each.release()
    assert desk.quotas.tenants == 1  # it is kept for its tokens
    assert desk.used("total.max.tflops.request") == 0
    assert desk.quotas.requests == desk.quotas.endpoints == 0


def test_tenant_is_told_when_something_comes_back():
    desk = Desk(requests=1)
    first = desk.take()
    assert desk.came_back == []
    first.release()
    first.release()
    assert desk.came_back == ["a"]


def test_a_listener_may_begin_the_next_request_at_once():
    desk = Desk(requests=1)
    begun = []
    desk.quotas.on_release = lambda _tenant: begun.append(desk.take())
    desk.take().release()
    assert isinstance(begun[0], Reservation)
    assert desk.used("total.max.workers.limit") == 1


def sharing(own: float, together: float, tenants="ab"):
    """Return quotas of tenants that share `together` GiB, of which each may use `own`."""
    shared = SharedLimit(frozenset(tenants), together * GIB)
    return {each: replace(quota(accelerator_bytes=own * GIB), shared=(shared,)) for each in tenants}


def test_is_16_tenants_with_a_shared_limit_do_not_exceed_it_together():
    desk = Desk(sharing(20, 20), endpoints=[tag(gib=10)])
    first, second = desk.take("a"), desk.take("b")
    refused = desk.take("a")
    assert isinstance(refused, Blocked)
    assert (refused.breach.requested, refused.breach.limit) == (30 * GIB, 20 * GIB)
    assert not desk.quotas.fitting(desk.request("b"), desk.pool).any()
    second.release()
    assert sorted(desk.came_back) == ["a", "b"]  # both may wait for it
    third = desk.take("a")
    assert isinstance(third, Reservation)
    assert isinstance(desk.take("b"), Blocked)
    desk.quotas.sweep()
    assert isinstance(desk.take("b"), Blocked)
    for each in (first, third):
        each.release()
    assert isinstance(desk.take("b"), Reservation)


def test_is_16_own_limit_below_the_shared_one_counts_too_and_others_are_not_touched():
    quotas = sharing(10, 30, "abc") | {"d": quota(accelerator_bytes=20 * GIB)}
    desk = Desk(quotas, endpoints=[tag(gib=10), tag(gib=5)])
    assert isinstance(desk.take("a"), Reservation)
    assert isinstance(desk.take("a", slot=1), Blocked)
    assert isinstance(desk.take("d"), Reservation)
    assert isinstance(desk.take("b"), Reservation)
    taken = desk.take("c", slot=1)
    assert isinstance(taken, Reservation)
    taken.move(desk.pool.snapshot, 0)  # 10 GiB in place of 5: the limit is used up
    desk.quotas.adjust("a", None)
    assert isinstance(desk.take("c", slot=1), Blocked)


def test_is_16_dry_run_with_ended_requests_counts_those_of_other_tenants():
    desk = Desk(sharing(20, 20), endpoints=[tag(gib=10)])
    own, _ = desk.take("a"), desk.take("b")
    twin = desk.quotas.twin([desk.source], guard=Guard(desk.told), ended=[own])
    assert twin.breach(desk.request("a")) is None
    assert twin.refusal(desk.request("a"), desk.pool.snapshot, [0]) is None
    assert desk.quotas.refusal(desk.request("a"), desk.pool.snapshot, [0]) is not None
