# SPDX-License-Identifier: Apache-2.0
"""Answers of scorers, and the endpoints that they are for."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework.accelerators.tag import NO_TAG, AcceleratorTag, Device, Partition
from epp.framework.endpoint import Endpoint
from epp.framework.scoring import DYNAMIC_SCORES, NO_DYNAMIC_SCORES, DynamicScoreColumn, DynamicScores
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates
from epp.pool.collectors.dynamic_scores.results import (
    JoinedScores,
    Result,
    ResultError,
    dimensions_in,
    read_page,
    read_results,
)

ALL = dimensions_in("")
VLLM = Endpoint("vllm-a", "10.0.0.1", 8000, namespace="ml", node="n1", labels={"app": "llm"})


def read(*results, score_format=""):
    return read_results(json.dumps({"results": results}).encode(), dimensions_in(score_format))


@pytest.mark.parametrize(
    ("score_format", "expected", "level"),
    [
        ("", Result(42.7, pod="vllm-a", device="nvidia0", node="n1"), "pod"),
        ("${node};${device}", Result(42.7, device="nvidia0", node="n1"), "device"),
    ],
)
def test_ocm_8_documented_answer_is_read_and_ocm_7_only_dimensions_of_the_format_count(score_format, expected, level):
    found, left_out = read(
        {"metric": {"node": "n1", "device": "nvidia0", "pod": "vllm-a"}, "score": 42.7}, score_format=score_format
    )
    assert (found, left_out, found[0].level) == ([expected], 0, level)


@pytest.mark.parametrize(
    "bad",
    [
        {"metric": {}, "score": "42"},
        {"metric": {}, "score": True},
        {"metric": {}},
        {"metric": [], "score": 1},
        7,
        None,
        {"metric": {}, "score": 10**400},
    ],
)
def test_ocm_8_what_is_no_score_is_left_out_and_the_others_stay(bad):
    results, left_out = read(bad, {"score": 5})
    assert (results, left_out) == ([Result(5.0)], 1)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "is not valid JSON"),
        (b"nope", "is not valid JSON"),
        (b"\xff", "is not valid JSON"),
        (b"[]", "has no list `results`"),
        (b'{"results":{}}', "has no list `results`"),
        (b'{"results":[' + b"1," * 400_000 + b"1]}", "more values than 20000 results have"),
        (b'{"results":[' + b"1," * 20_000 + b"1]}", "20001 results, more than 20000"),
        (b"[" * 1_000_000, "has no list `results`"),
        (b'{"results":[' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"]}", "is not valid JSON"),
    ],
    ids=["empty", "text", "bytes", "list", "no list", "values", "results", "depth", "depth of a result"],
)
def test_ocm_8_answer_that_is_none_or_takes_long_to_read_is_refused(body, why):
    with pytest.raises(ResultError, match=why):
        read_results(body, ALL)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body):
    try:
        results, left_out = read_results(body, ALL)
    except ResultError:
        return
    assert isinstance(results, list)
    assert left_out >= 0


def test_ocm_7_page_with_dynamic_scores_is_read():
    page = (
        b"# TYPE dynamic_score gauge\n"
        b'dynamic_score{ds_cluster="east",ds_node="n1",ds_device="",ds_pod="vllm-a",ds_score_name="power"} 61.5\n'
        b'dynamic_score{ds_cluster="west",ds_score_name="power"} -20\n'
        b'dynamic_score{ds_cluster="west",ds_score_name="power"} NaN\n'
        b'dynamic_score{ds_cluster="west",ds_score_name="speed"} 3\n'
    )
    assert read_page(page) == {
        "power": [Result(61.5, pod="vllm-a", node="n1", cluster="east"), Result(-20.0, cluster="west")],
        "speed": [Result(3.0, cluster="west")],
    }


def test_ocm_8_page_of_too_many_scores_is_refused_and_a_series_without_end_left_out():
    series = b'dynamic_score{ds_score_name="s%d",pod="p%d"} 1\n'
    with pytest.raises(ResultError, match="more than 64 names"):
        read_page(b"".join(series % (number, 0) for number in range(65)))
    with pytest.raises(ResultError, match="more than 20000 series"):
        read_page(b"".join(series % (0, number) for number in range(20_001)))
    long = b'dynamic_score{ds_score_name="s0",pod="%b"} 2\n' % (b"x" * 4_000_000)
    assert [each.value for each in read_page(series % (0, 1) + long + series % (0, 2))["s0"]] == [1.0, 1.0]


LEVELS = [
    Result(1, cluster="east"),
    Result(2, app="llm"),
    Result(3, node="n1"),
    Result(5, pod="vllm-a", namespace="ml"),
]


def test_ocm_7_most_specific_dimension_counts():
    for count, value in ((4, 5.0), (3, 3.0), (2, 2.0), (1, 1.0)):
        found = JoinedScores(LEVELS[:count]).of(VLLM, "east")
        assert (found.value, found.per_pod) == (value, count == 4)


def test_ocm_7_ranks_of_a_pod_have_its_score():
    rank = Endpoint("vllm-a-rank-1", "10.0.0.1", 8001)
    assert JoinedScores([Result(7, pod="vllm-a")]).of(rank, "").value == 7.0


@pytest.mark.parametrize(("rule", "value"), [("mean", 4.5), ("max", 8.0), ("min", 1.5), ("last", 4.0)])
def test_section_8_row_18_duplicates_are_aggregated_by_rule_and_floats_kept(rule, value):
    duplicates = [Result(1.5, pod="vllm-a"), Result(8.0, pod="vllm-a"), Result(4.0, pod="vllm-a")]
    assert JoinedScores(duplicates, rule).of(VLLM, "").value == value


def column(joined, tag, endpoint=VLLM, cluster=""):
    score = joined.of(endpoint, cluster)
    record = NO_DYNAMIC_SCORES if score is None else DynamicScores(by_name={"power": score})
    pool = candidates(records={DYNAMIC_SCORES: [record], ACCELERATOR: [tag]})
    return DynamicScoreColumn("power").of(pool.snapshot).item()


GPUS = AcceleratorTag(model="h100", devices=(Device(id="GPU-1"), Device(id="gpu.nvidia.com/pool/gpu-2")))


def test_ocm_7_devices_of_an_endpoint_count_before_its_node():
    results = [Result(10, node="n1"), Result(40, device="gpu-1", node="n1"), Result(60, device="gpu-2", node="n1")]
    assert column(JoinedScores(results), GPUS) == 50.0  # the mean of its two devices
    assert column(JoinedScores(results), NO_TAG) == 10.0
    assert column(JoinedScores([*results, Result(5, pod="vllm-a")]), GPUS) == 5.0
    elsewhere = Endpoint("b", "10.0.0.2", 1, node="n2")
    assert np.isnan(column(JoinedScores(results), GPUS, elsewhere))
    joined = JoinedScores([Result(10, device="gpu-1"), Result(20, device="gpu-1", node="n1")])
    assert (column(joined, GPUS), column(joined, GPUS, elsewhere)) == (20.0, 10.0)


def test_ocm_7_kind_of_device_counts_as_the_samples_have_it():
    kinds = JoinedScores([Result(80, device="all"), Result(60, device="3g.48gb"), Result(10, device="2g.24gb")])
    small = AcceleratorTag(model="h100", partition=Partition(profile="2g.24gb"))
    assert column(kinds, small) == 10.0
    assert column(kinds, AcceleratorTag(model="h100")) == 80.0
    assert np.isnan(column(kinds, NO_TAG))


@given(
    st.lists(
        st.builds(
            Result,
            value=st.floats(-100, 100),
            pod=st.sampled_from(["", "vllm-a", "b"]),
            device=st.just(""),
            node=st.sampled_from(["", "n1", "n2"]),
            app=st.sampled_from(["", "llm"]),
            namespace=st.sampled_from(["", "ml", "other"]),
            cluster=st.sampled_from(["", "east", "west"]),
        ),
        max_size=12,
    ),
    st.sampled_from(["mean", "max", "min", "last"]),
)
def test_ocm_7_join_is_that_of_a_search_through_all_results(results, rule):
    def fits(each):
        own = {"pod": "vllm-a", "node": "n1", "app": "llm", "namespace": "ml", "cluster": "east"}
        level = each.level
        relevant = {level, "namespace", "cluster", "node"}
        return all(getattr(each, name) in {"", own[name]} for name in relevant)

    rules = {"mean": np.mean, "max": max, "min": min, "last": lambda values: values[-1]}
    expected = None
    for level in ("pod", "node", "app", "cluster"):
        values = [each.value for each in results if each.level == level and fits(each)]
        if values:
            expected = float(rules[rule](values))
            break
    found = JoinedScores(results, rule).of(VLLM, "east")
    assert (None if found is None else found.value) == (None if expected is None else pytest.approx(expected))
