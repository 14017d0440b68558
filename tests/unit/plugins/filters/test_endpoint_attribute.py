# SPDX-License-Identifier: Apache-2.0
"""A threshold on a number that endpoints report."""

from math import nan

import pytest

from epp.framework import Column, ConfigurationError, Request
from epp.framework.snapshot import GPU_UTILIZATION, WAITING
from epp.framework.testing import candidates
from epp.plugins.filters.labels import EndpointAttributeFilter
from tests.support.plugins import built

POOL = candidates(reported={"depth": [1.0, 2.0, 3.0, nan]})


def build(operator="LessThan", value=2, **parameters):
    algorithm = {"type": "threshold", "threshold": {"operator": operator, "value": value}}
    given = {"attribute": "depth", "algorithm": algorithm} | parameters
    return built(EndpointAttributeFilter, given)


def kept(pool=POOL, **parameters):
    return build(**parameters).filter(Request("r"), pool).tolist()


@pytest.mark.parametrize(
    ("operator", "expected"),  # of 1, 2 and 3 against 2
    [
        ("LessThan", [True, False, False]),
        ("LessThanOrEqual", [True, True, False]),
        ("GreaterThan", [False, False, True]),
        ("GreaterThanOrEqual", [False, True, True]),
        ("Equal", [False, True, False]),
        ("NotEqual", [True, False, True]),
    ],
)
def test_number_stands_on_the_left_and_unknown_decides_by_on_missing(operator, expected):
    assert kept(operator=operator) == [*expected, True]
    assert kept(operator=operator, onMissing="Fail") == [*expected, False]


def test_attribute_that_no_endpoint_reports_is_missing_for_all():
    assert kept(attribute="nothing", onMissing="Pass") == [True] * 4
    assert kept(attribute="nothing", onMissing="Fail") == [False] * 4


def test_core_numbers_are_attributes_too():
    assert kept(candidates(waiting=[0, 5]), attribute="waiting") == [True, False]


def test_column_is_declared_so_that_its_absence_can_be_reported():
    assert build(attribute="GPUUtilization").reads == (GPU_UTILIZATION,)
    assert build(attribute="waiting").reads == (WAITING,)
    assert build(attribute="depth").reads == (Column("depth", ""),)


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"operator": "Below"}, "'Below' is not known; use 'LessThan', "),
        ({"value": nan}, "value is not a number"),
        ({"attribute": ""}, "attribute is empty"),
        ({"onMissing": "Drop"}, "'Drop' is not known; use 'Pass', 'Fail'"),
        ({"algorithm": {"type": "threshold"}}, "threshold is missing"),
        (
            {"algorithm": {"type": "guess", "threshold": {"operator": "Equal", "value": 1}}},
            "'guess' is not known; use 'threshold'",
        ),
    ],
)
def test_parameters_that_mean_nothing_are_refused(parameters, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        build(**parameters)


def test_name_may_end_in_its_producer_unless_that_is_given_apart():
    assert build(attribute="GPUUtilization/dcgm-extractor").reads == (GPU_UTILIZATION,)
    assert build(attribute="GPUUtilization", producer="dcgm-extractor").reads == (GPU_UTILIZATION,)
    assert build(attribute="example.com/depth", producer="").reads == (Column("example.com/depth", ""),)
