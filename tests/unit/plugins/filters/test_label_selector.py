# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' label selector semantics."""

import pytest

from epp.framework import Request
from epp.framework.input_errors import read_parameters
from epp.framework.testing import candidates
from epp.plugins.filters.labels import LabelSelectorFilter, LabelSelectorParameters

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
