# SPDX-License-Identifier: Apache-2.0
"""Endpoints by labels and by numbers."""

from math import nan

import pytest

from epp.framework import Column, ConfigurationError, Request, Stability
from epp.framework.input_errors import read_parameters
from epp.framework.snapshot import GPU_UTILIZATION, WAITING
from epp.framework.testing import candidates
from epp.plugins.label_filters import (
    ByLabelFilter,
    ByLabelSelectorFilter,
    EndpointAttributeFilter,
    LabelSelectorFilter,
    LabelSelectorParameters,
)
from tests.support.plugins import built

POOL = candidates(labels=[{"zone": "a", "tier": "gold"}, {"zone": "b"}, {}])


def kept(parameters, pool=POOL):
    selector = LabelSelectorFilter(read_parameters(LabelSelectorParameters, parameters))
    return selector.filter(Request("r"), pool).tolist()


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ({"key": "zone", "operator": "In", "values": ["a", "c"]}, [True, False, False]),
        ({"key": "zone", "operator": "NotIn", "values": ["a"]}, [False, True, True]),
        ({"key": "zone", "operator": "Exists"}, [True, True, False]),
        ({"key": "zone", "operator": "DoesNotExist"}, [False, False, True]),
    ],
)
def test_operator(expression, expected):
    assert kept({"matchExpressions": [expression]}) == expected


def test_match_labels_wants_the_exact_value():
    assert kept({"matchLabels": {"zone": "b"}}) == [False, True, False]


def test_everything_must_match():
    expressions = [{"key": "tier", "operator": "Exists"}]
    assert kept({"matchLabels": {"zone": "a"}, "matchExpressions": expressions}) == [True, False, False]
    assert kept({"matchLabels": {"zone": "b"}, "matchExpressions": expressions}) == [False, False, False]


def test_empty_selector_keeps_all():
    assert kept({}) == [True, True, True]


def test_two_selectors_over_the_same_endpoints_do_not_mix():
    assert kept({"matchLabels": {"zone": "a"}}) == [True, False, False]
    assert kept({"matchLabels": {"zone": "b"}}) == [False, True, False]


GPUS = candidates(labels=[{"gpu": "h100"}, {"gpu": "l4"}, {"gpu": ""}, {}])


def kept_by_label(cls, parameters):
    plugin = built(cls, parameters)
    return plugin.filter(Request("r"), GPUS).tolist()


def test_label_must_have_one_of_the_values():
    parameters = {"label": "gpu", "validValues": ["l4", "t4"]}
    assert kept_by_label(ByLabelFilter, parameters) == [False, True, False, False]


def test_endpoint_without_the_label_stays_where_that_is_allowed():
    parameters = {"label": "gpu", "validValues": ["h100"], "allowsNoLabel": True}
    assert kept_by_label(ByLabelFilter, parameters) == [True, False, False, True]


def test_no_values_and_no_label_keeps_only_the_unlabelled():
    assert kept_by_label(ByLabelFilter, {"label": "gpu", "allowsNoLabel": True}) == [False, False, False, True]


def test_empty_value_is_a_value():
    assert kept_by_label(ByLabelFilter, {"label": "gpu", "validValues": [""]}) == [False, False, True, False]


def test_former_name_of_the_label_selector_takes_the_same_parameters():
    assert kept_by_label(ByLabelSelectorFilter, {"matchLabels": {"gpu": "h100"}}) == [True, False, False, False]
    expressions = [{"key": "gpu", "operator": "NotIn", "values": ["h100"]}]
    assert kept_by_label(ByLabelSelectorFilter, {"matchExpressions": expressions}) == [False, True, True, True]


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


def test_attribute_that_no_endpoint_reports_is_missing_for_all():
    assert kept_by_number(attribute="nothing", onMissing="Pass") == [True] * 4
    assert kept_by_number(attribute="nothing", onMissing="Fail") == [False] * 4


def test_core_numbers_are_attributes_too():
    assert kept_by_number(candidates(waiting=[0, 5]), attribute="waiting") == [True, False]


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
