# SPDX-License-Identifier: Apache-2.0
"""Load in proportion to what the hardware can do."""

from math import inf, nan

import msgspec
import pytest

from epp.framework import ConfigurationError, Request, RequestBody
from epp.framework.accelerators.tag import NO_TAG, AcceleratorTag, Partition, Performance, Sharing
from epp.framework.rates import ENDPOINT_RATES
from epp.framework.snapshot import ACCELERATOR, IN_FLIGHT, WAITING
from epp.framework.testing import candidates, endpoint_rates
from epp_scorers.load import (
    ActiveRequestScorer,
    LoadAwareScorer,
    QueueScorer,
    RunningRequestsSizeScorer,
    TokenLoadScorer,
)

H100, T4 = (AcceleratorTag(count=1, performance=Performance(fp16=tflops)) for tflops in (1950, 65))
"""30 to 1."""
BY_TAG = {"normalizeBy": "relativeCapacity"}
ALL = (QueueScorer, RunningRequestsSizeScorer, ActiveRequestScorer, LoadAwareScorer, TokenLoadScorer)


def learned(*per_second):
    request = Request("r")
    request.put(ENDPOINT_RATES, endpoint_rates(per_second))
    return request


@pytest.mark.parametrize(
    ("plugin", "column"),
    [(QueueScorer, "waiting"), (RunningRequestsSizeScorer, "running"), (ActiveRequestScorer, "in_flight")],
)
def test_ome_9_eight_on_an_h100_are_less_than_two_on_a_t4(scores, plugin, column):
    tags, columns = [H100, T4], {column: [8, 2]}
    plain = scores(plugin, tags, columns=columns)
    # the median is (1950 + 65) / 2 = 1007.5: 8 / 1.9355 = 4.13 against 2 / 0.0645 = 31
    proportional = scores(plugin, tags, columns=columns, **BY_TAG)
    assert plain[0] < plain[1]
    assert proportional[0] > proportional[1]


def test_is_3_slice_has_its_share_of_the_capacity(scores):
    # a 3g slice has 3/7 of an A100: 4 requests there are 9.33 on a whole one, and the median is that of both
    whole = AcceleratorTag(count=1, performance=Performance(fp16=312))
    part = Partition(kind=Sharing.MIG, profile="3g.20gb", compute_fraction=3 / 7, memory_fraction=0.5)
    fleet = [whole, msgspec.structs.replace(whole, partition=part)]
    more, fewer = (scores(QueueScorer, fleet, columns={"waiting": [waiting, 4]}, **BY_TAG) for waiting in (10, 9))
    assert more[0] < more[1]
    assert fewer[0] > fewer[1]


def test_ome_9_active_requests_compare_by_capacity_and_idle_by_count(scores):
    # 4.133 and 31: (31 - 4.133) / 31 and 0; with 2 as idle the T4 is
    columns = {"in_flight": [8, 2]}
    found = scores(ActiveRequestScorer, [H100, T4], columns=columns, **BY_TAG)
    assert found == pytest.approx([1 - 4 / 30, 0.0])
    assert scores(ActiveRequestScorer, [H100, T4], columns=columns, **BY_TAG, idleThreshold=2)[1] == 1.0


def test_ome_9_queue_threshold_is_that_of_a_median_device(scores):
    # capacities 2, 1 and 0.5 of the median's: 64 / 2, 64 and 64 / 0.5 of 128
    tags = [AcceleratorTag(count=1, performance=Performance(fp16=tflops)) for tflops in (200, 100, 50)]
    found = scores(LoadAwareScorer, tags, columns={"waiting": [64, 64, 64]}, **BY_TAG)
    assert found == pytest.approx([0.375, 0.25, 0.0])


def test_ome_9_tokens_of_the_prompt_count_in_proportion_too(scores):
    # (300 + 200) / 2 and (300 + 200) / 0.5 of 1000, where the median is at 1
    tags = [AcceleratorTag(count=1, performance=Performance(fp16=tflops)) for tflops in (200, 100, 50)]
    found = scores(
        TokenLoadScorer,
        tags,
        Request("r", RequestBody(prompt_tokens=200)),
        columns={"in_flight_tokens": [300, 0, 300]},
        queueThresholdTokens=1000,
        **BY_TAG,
    )
    assert found == pytest.approx([0.75, 0.8, 0.0])


def test_unknown_capacity_is_that_of_the_median(scores):
    tags = [H100, NO_TAG, AcceleratorTag(count=1, performance=Performance(fp16=inf))]
    # 2 / 1, 2 / 1 and 1 / 1 where there is one figure alone
    known = msgspec.structs.replace(H100, performance=Performance(fp16=100))
    assert scores(QueueScorer, [known, NO_TAG, NO_TAG], columns={"waiting": [2, 2, 1]}, **BY_TAG) == [0.0, 0.0, 1.0]
    assert scores(QueueScorer, tags[1:2] * 2, columns={"waiting": [2, 1]}, **BY_TAG) == [0.0, 1.0]


def test_het_4_learned_capacity_divides_where_it_is_known(build):
    pool = candidates(waiting=[8, 2, 2])
    plugin = build(QueueScorer, normalizeBy="learnedCapacity")
    # 30,000 over the median of 1,000 is 30: 8 / 30, 2, 2
    assert plugin.score(learned(30_000, 1000, 1000), pool).tolist() == [1.0, 0.0, 0.0]
    # nobody has learned anything, or nothing that can be used of the second
    assert plugin.score(Request("r"), pool).tolist() == [0.0, 1.0, 1.0]
    assert plugin.score(learned(1000, 0, 1000), pool).tolist() == [0.0, 1.0, 1.0]


def test_accelerators_are_read_only_where_asked_for(build):
    assert build(QueueScorer).reads == (WAITING,)
    assert build(QueueScorer, **BY_TAG).reads == (WAITING, ACCELERATOR)
    assert build(ActiveRequestScorer, normalizeBy="learnedCapacity").reads == (IN_FLIGHT, ENDPOINT_RATES)
    assert build(TokenLoadScorer, **BY_TAG).reads[-1] == ACCELERATOR


@pytest.mark.parametrize("plugin", ALL)
def test_default_is_load_as_it_is(scores, plugin):
    columns = {"waiting": [1, 2], "running": [1, 2], "in_flight": [1, 2], "in_flight_tokens": [1, 2]}
    assert scores(plugin, [T4, H100], columns=columns) == scores(plugin, [NO_TAG, NO_TAG], columns=columns)


def test_estimated_load_counts_in_proportion_too(scores):
    # the one without a report holds 8 requests, as the other one does, 4 of which wait; capacities are 1.5 and 0.5
    tags = [AcceleratorTag(count=1, performance=Performance(fp16=tflops)) for tflops in (300, 100)]
    columns = {"waiting": [nan, 4], "running": [nan, 4], "in_flight": [8, 8]}
    found = scores(LoadAwareScorer, tags, columns=columns, threshold=16, **BY_TAG)
    assert found == pytest.approx([0.5 * (1 - 4 / 1.5 / 16), 0.5 * (1 - 4 / 0.5 / 16)])


def test_other_measures_are_refused(build):
    with pytest.raises(ConfigurationError, match="size"):
        build(QueueScorer, normalizeBy="size")
