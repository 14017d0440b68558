# SPDX-License-Identifier: Apache-2.0
"""Filters by labels and by numbers."""

from math import nan

import pytest

from epp.framework import Column, ConfigurationError, Request, Stability
from epp.framework.snapshot import GPU_UTILIZATION, WAITING
from epp.framework.testing import candidates
from epp.plugins.label_filters import ByLabelFilter, ByLabelSelectorFilter, EndpointAttributeFilter, LabelSelectorFilter
from tests.support.plugins import built

POOL = candidates(labels=[{"zone": "a", "tier": "gold"}, {"zone": "b"}, {"zone": ""}, {}])
ZONE_B, GOLD = {"matchLabels": {"zone": "b"}}, [{"key": "tier", "operator": "Exists"}]


def kept(cls, parameters):
    return built(cls, parameters).filter(Request("r"), POOL).tolist()


def zone(operator, *values):
    return {"matchExpressions": [{"key": "zone", "operator": operator, "values": values}]}


@pytest.mark.parametrize("cls", [LabelSelectorFilter, ByLabelSelectorFilter])
@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({}, [True, True, True, True]),
        (ZONE_B, [False, True, False, False]),
        (zone("In", "a", "c"), [True, False, False, False]),
        (zone("NotIn", "a"), [False, True, True, True]),
        (zone("Exists"), [True, True, True, False]),
        (zone("DoesNotExist"), [False, False, False, True]),
        ({"matchLabels": {"zone": "a"}, "matchExpressions": GOLD}, [True, False, False, False]),
        (ZONE_B | {"matchExpressions": GOLD}, [False, False, False, False]),
    ],
)
def test_labels_and_expressions_must_all_match(cls, selector, expected):
    assert kept(cls, selector) == expected


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"validValues": ["b", "c"]}, [False, True, False, False]),
        ({"validValues": ["a"], "allowsNoLabel": True}, [True, False, False, True]),
        ({"allowsNoLabel": True}, [False, False, False, True]),
        ({"validValues": [""]}, [False, False, True, False]),  # an empty value is a value
    ],
)
def test_label_must_have_one_of_the_values(parameters, expected):
    assert kept(ByLabelFilter, {"label": "zone", **parameters}) == expected


@pytest.mark.parametrize("cls", [ByLabelFilter, ByLabelSelectorFilter])
def test_use_is_warned_of(cls):
    assert cls.stability is Stability.DEPRECATED


DEPTHS = candidates(reported={"depth": [1.0, 2.0, 3.0, nan]})


def build(operator="LessThan", value=2, **parameters):
    algorithm = {"type": "threshold", "threshold": {"operator": operator, "value": value}}
    given = {"attribute": "depth", "algorithm": algorithm} | parameters
    return built(EndpointAttributeFilter, given)


def kept_by_number(pool=DEPTHS, **parameters):
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
    assert kept_by_number(operator=operator) == [*expected, True]
    assert kept_by_number(operator=operator, onMissing="Fail") == [*expected, False]


@pytest.mark.parametrize(("on_missing", "is_kept"), [("Pass", True), ("Fail", False)])
def test_attribute_that_no_endpoint_reports_is_missing_for_all(on_missing, is_kept):
    assert kept_by_number(attribute="nothing", onMissing=on_missing) == [is_kept] * 4


def test_core_numbers_are_attributes_too():
    assert kept_by_number(candidates(waiting=[0, 5]), attribute="waiting") == [True, False]


@pytest.mark.parametrize(
    ("parameters", "column"),
    [
        ({"attribute": "GPUUtilization"}, GPU_UTILIZATION),
        ({"attribute": "waiting"}, WAITING),
        ({"attribute": "depth"}, Column("depth", "")),
        ({"attribute": "GPUUtilization/dcgm-extractor"}, GPU_UTILIZATION),
        ({"attribute": "GPUUtilization", "producer": "dcgm-extractor"}, GPU_UTILIZATION),
        ({"attribute": "example.com/depth", "producer": ""}, Column("example.com/depth", "")),
    ],
)
def test_column_of_the_name_with_or_without_its_producer_is_declared(parameters, column):
    assert build(**parameters).reads == (column,)


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"operator": "Below"}, "'Below' is not known; use 'LessThan', "),
        ({"value": nan}, "value is not a number"),
        ({"attribute": ""}, "attribute is empty"),
        ({"onMissing": "Drop"}, "'Drop' is not known; use 'Pass', 'Fail'"),
        ({"algorithm": {"type": "threshold"}}, "threshold is missing"),
        ({"algorithm": {"type": "guess", "threshold": {}}}, "'guess' is not known; use 'threshold'"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(parameters, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        build(**parameters)
