# SPDX-License-Identifier: Apache-2.0
"""A linear score of a number that endpoints report."""

from math import inf, nan

import pytest

from epp.framework import Column, ConfigurationError, ManualClock, Request
from epp.framework.registry import Registry
from epp.framework.snapshot import GPU_UTILIZATION, WAITING
from epp.framework.testing import candidates
from epp_scorers.load import EndpointAttributeScorer

LOWER, HIGHER = "linear_lower_is_better", "linear_higher_is_better"


def build(algorithm, **parameters):
    registry = Registry({})
    registry.register(EndpointAttributeScorer)
    given = {"attributeKey": "depth", "algorithm": algorithm} | parameters
    return registry.build("endpoint-attribute-scorer", given, name="mine", clock=ManualClock())


def scores(values, algorithm_type, normalization=None, **parameters):
    algorithm = {"type": algorithm_type} | ({} if normalization is None else {"normalization": normalization})
    plugin = build(algorithm, **parameters)
    return plugin.score(Request("r"), candidates(reported={"depth": values})).tolist()


@pytest.mark.parametrize("normalization", [None, {}, {"adaptiveRange": {}}])
def test_candidates_own_range_is_the_default(normalization):
    # min 2, max 10: (2-2)/8, (4-2)/8, (10-2)/8
    assert scores([2, 4, 10], HIGHER, normalization) == [0.0, 0.25, 1.0]
    assert scores([2, 4, 10], LOWER, normalization) == [1.0, 0.75, 0.0]


def test_fixed_range_clamps_what_lies_outside():
    fixed = {"fixedRange": {"min": 0, "max": 10}}
    assert scores([-5, 0, 4, 10, 50], HIGHER, fixed) == [0.0, 0.0, 0.4, 1.0, 1.0]
    assert scores([-5, 0, 4, 10, 50], LOWER, fixed) == [1.0, 1.0, 0.6, 0.0, 0.0]


def test_endpoint_without_the_number_gets_zero_and_leaves_the_range_alone():
    assert scores([nan, 2, 10], HIGHER) == [0.0, 0.0, 1.0]
    assert scores([nan, 2, 10], LOWER) == [0.0, 1.0, 0.0]
    assert scores([nan, 2, 10], LOWER, {"fixedRange": {"min": 0, "max": 10}}) == [0.0, 0.8, 0.0]


def test_infinite_number_counts_as_none():
    assert scores([inf, 2, 10, -inf], LOWER) == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("algorithm_type", [LOWER, HIGHER])
def test_equal_numbers_all_get_one(algorithm_type):
    assert scores([3, nan, 3], algorithm_type) == [1.0, 0.0, 1.0]


def test_number_that_nobody_reports_prefers_nobody():
    assert scores([1, 2], HIGHER, attributeKey="nothing") == [0.0, 0.0]


def test_core_numbers_are_attributes_too():
    plugin = build({"type": LOWER}, attributeKey="waiting")
    assert plugin.score(Request("r"), candidates(waiting=[0, 1, 4])).tolist() == [1.0, 0.75, 0.0]


def test_column_is_declared_so_that_its_absence_can_be_reported():
    assert build({"type": LOWER}, attributeKey="GPUUtilization").reads == (GPU_UTILIZATION,)
    assert build({"type": LOWER}, attributeKey="waiting").reads == (WAITING,)
    assert build({"type": LOWER}).reads == (Column("depth", ""),)


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        ({}, "type is missing"),
        ({"type": "softmax"}, "'softmax' is not known; use 'linear_lower_is_better', 'linear_higher_is_better'"),
        ({"type": LOWER, "normalization": {"fixedRange": {"min": 1, "max": 1}}}, "min must be below max"),
        ({"type": LOWER, "normalization": {"fixedRange": {"min": 0, "max": inf}}}, "min must be below max, and both"),
        (
            {"type": LOWER, "normalization": {"fixedRange": {"min": 0, "max": 1}, "adaptiveRange": {}}},
            "normalization has fixedRange and adaptiveRange; keep one",
        ),
    ],
)
def test_algorithms_that_mean_nothing_are_refused(algorithm, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        build(algorithm)


def test_attribute_without_a_name_is_refused():
    with pytest.raises(ConfigurationError, match="attributeKey is empty"):
        build({"type": LOWER}, attributeKey="")


def test_name_may_end_in_its_producer_unless_that_is_given_apart():
    lower = {"type": LOWER}
    assert build(lower, attributeKey="GPUUtilization/dcgm-extractor").reads == (GPU_UTILIZATION,)
    assert build(lower, attributeKey="GPUUtilization", producer="dcgm-extractor").reads == (GPU_UTILIZATION,)
    assert build(lower, attributeKey="example.com/depth", producer="").reads == (Column("example.com/depth", ""),)
