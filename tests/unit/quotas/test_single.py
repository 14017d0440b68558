# SPDX-License-Identifier: Apache-2.0
"""Limits on one request: what is beyond them never fits."""

from functools import partial

import pytest

from epp.admission.quotas import Blocked
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.refusals import OverQuotaError
from tests.support.quotas import GIB, Desk, quota, tag, usage


def refusal(desk, request, pool=None):
    check = desk.quotas.check_single if pool is None else partial(desk.quotas.fits_single, candidates=pool)
    with pytest.raises(OverQuotaError) as refused:
        check(request)
    return refused.value


def test_tf_9_prompt_that_is_too_long_is_413_and_too_long_an_answer_400():
    desk = Desk({"a": quota(single={"prompt_tokens": 100, "output_tokens": 50})})
    desk.quotas.check_single(desk.request(prompt=100, output=50))
    error = refusal(desk, desk.request(prompt=101))
    assert (error.status, error.reason, error.breach.key) == (413, "rejected-quota", "single.max.promptTokens")
    error = refusal(desk, desk.request(output=51))
    assert (error.status, error.breach.key, error.breach.limit) == (400, "single.max.outputTokens", 50)
    assert [breach.requested for breach in desk.told.over] == [101, 51]


def test_tf_9_single_limits_come_before_totals():
    desk = Desk({"a": quota(requests=1, single={"prompt_tokens": 100})})
    desk.take()
    assert desk.quotas.breach(desk.request(prompt=101)) is not None
    assert refusal(desk, desk.request(prompt=101)).breach.key == "single.max.promptTokens"


def test_a_request_that_names_no_most_is_not_refused_for_its_answer():
    desk = Desk({"a": quota(single={"output_tokens": 50})})
    desk.quotas.check_single(desk.request(output=None))


@pytest.mark.parametrize(
    ("limits", "prompt", "output", "key"),
    [
        ({"tokens": 100}, 60, 41, "total.max.tokens"),
        ({"tokens": 100}, 101, None, "total.max.tokens"),
        ({"tokens_per_minute": 100}, 101, 0, "total.max.tokensPerMinute"),
    ],
)
def test_a_request_above_a_whole_total_is_413(limits, prompt, output, key):
    error = refusal(Desk(**limits), (desk := Desk(**limits)).request(prompt=prompt, output=output))
    assert (error.status, error.breach.key) == (413, key)
    desk.quotas.check_single(desk.request(prompt=60, output=40))


def test_tf_9_request_for_five_gpus_is_refused_where_four_are_the_most():
    desk = Desk({"a": quota(single={"devices": 4})}, endpoints=[tag(devices=5), tag(devices=8)])
    error = refusal(desk, desk.request(), desk.pool)
    assert (error.status, error.breach.key) == (400, "single.max.gpuCount.limit")
    assert (error.breach.requested, error.breach.limit) == (5, 4)


def test_endpoints_that_are_too_large_for_a_tenant_are_left_out():
    endpoints = [tag(gib=40), tag(gib=80), AcceleratorTag()]
    desk = Desk({"a": quota(single={"accelerator_bytes": 40 * GIB})}, endpoints=endpoints)
    assert list(desk.quotas.fits_single(desk.request(), desk.pool)) == [True, False, True]  # unknown ones fit
    assert list(desk.quotas.fitting(desk.request(), desk.pool)) == [True, False, True]
    assert desk.quotas.fits_single(desk.request("b"), desk.pool) is None


def test_an_endpoint_on_which_one_request_is_more_than_the_total_never_fits():
    desk = Desk(tflops=100, endpoints=[tag(tflops=101)])
    assert refusal(desk, desk.request(), desk.pool).breach.key == "total.max.tflops.request"


def test_no_candidates_at_all_are_not_the_tenants_fault():
    desk = Desk({"a": quota(single={"devices": 1})})
    none = desk.pool.keep(desk.pool.slots < 0)
    assert list(desk.quotas.fits_single(desk.request(), none)) == []


def test_price_of_a_request_is_that_of_the_mean_time_of_its_tenants_requests():
    endpoints = [tag(dollars_per_hour=3.6), tag(dollars_per_hour=7.2)]  # 0.001 and 0.002 dollars a second
    desk = Desk({"a": quota(requests=9, dollars_per_day=100, single={"dollars": 0.015})}, endpoints=endpoints)
    assert desk.quotas.fits_single(desk.request(), desk.pool) is None  # no time is known yet
    other = desk.take()
    begun = desk.take()
    desk.clock.advance(20)  # 10 seconds each
    begun.release(usage(1, 1))
    assert list(desk.quotas.fits_single(desk.request(), desk.pool)) == [True, False]
    other.release()


def test_hardware_that_is_used_up_blocks_with_the_least_that_a_request_would_take():
    endpoints = [tag(gib=10), tag(gib=60), tag(gib=30)]
    desk = Desk(accelerator_bytes=65 * GIB, endpoints=endpoints)
    desk.take(slot=1)
    assert list(desk.quotas.fitting(desk.request(), desk.pool)) == [False, False, False]
    blocked = desk.quotas.shortage(desk.request(), desk.pool)
    assert isinstance(blocked, Blocked)
    assert (blocked.breach.key, blocked.breach.requested) == ("total.max.vram.request", 70 * GIB)
    assert desk.quotas.shortage(desk.request("b"), desk.pool) is None


def test_is_12_memory_of_a_tenant_is_that_of_slices_by_the_share_of_their_requests():
    # a 3g.20gb slice and a whole 80 GiB device, each of which serves 10 requests at once: 2 GiB and 8 GiB a request
    desk = Desk(accelerator_bytes=13 * GIB, endpoints=[tag(gib=20), tag(gib=80)], requests_per_endpoint=10)
    on_slice, on_device = desk.take(slot=0), desk.take(slot=1)
    assert desk.used("total.max.vram.request") == 10 * GIB
    assert list(desk.quotas.fitting(desk.request(), desk.pool)) == [True, False]
    assert isinstance(desk.take(slot=1), Blocked)
    on_device.release()
    assert desk.used("total.max.vram.request") == 2 * GIB
    assert list(desk.quotas.fitting(desk.request(), desk.pool)) == [True, True]
    on_slice.release()


def test_endpoints_of_unknown_hardware_fit_even_where_more_than_the_limit_is_used():
    desk = Desk(accelerator_bytes=80 * GIB, endpoints=[tag(gib=80), AcceleratorTag()])
    desk.take()
    desk.source.quotas = {"a": quota(accelerator_bytes=40 * GIB)}
    assert list(desk.quotas.fitting(desk.request(), desk.pool)) == [False, True]
    assert not isinstance(desk.take(slot=1), Blocked)


def test_unknown_hardware_takes_nothing_and_the_report_counts_it():
    desk = Desk(accelerator_bytes=GIB, tflops=1, device_seconds_per_day=1, dollars_per_day=1)
    for _ in range(3):
        assert not isinstance(desk.take(), Blocked)
    assert {line.uncounted for line in desk.quotas.report("a")} == {3}
    assert {line.used for line in desk.quotas.report("a")} == {0}
