# SPDX-License-Identifier: Apache-2.0
"""Endpoints by the value of one label, under the former names of the filters that do it."""

import pytest

from epp.framework import Request, Stability
from epp.framework.testing import candidates
from epp.plugins.filters.labels import ByLabelFilter, ByLabelSelectorFilter
from tests.support.plugins import built

POOL = candidates(labels=[{"gpu": "h100"}, {"gpu": "l4"}, {"gpu": ""}, {}])


def kept(cls, parameters):
    plugin = built(cls, parameters)
    return plugin.filter(Request("r"), POOL).tolist()


def test_label_must_have_one_of_the_values():
    parameters = {"label": "gpu", "validValues": ["l4", "t4"]}
    assert kept(ByLabelFilter, parameters) == [False, True, False, False]


def test_endpoint_without_the_label_stays_where_that_is_allowed():
    parameters = {"label": "gpu", "validValues": ["h100"], "allowsNoLabel": True}
    assert kept(ByLabelFilter, parameters) == [True, False, False, True]


def test_no_values_and_no_label_keeps_only_the_unlabelled():
    assert kept(ByLabelFilter, {"label": "gpu", "allowsNoLabel": True}) == [False, False, False, True]


def test_empty_value_is_a_value():
    assert kept(ByLabelFilter, {"label": "gpu", "validValues": [""]}) == [False, False, True, False]


def test_former_name_of_the_label_selector_takes_the_same_parameters():
    assert kept(ByLabelSelectorFilter, {"matchLabels": {"gpu": "h100"}}) == [True, False, False, False]
    expressions = [{"key": "gpu", "operator": "NotIn", "values": ["h100"]}]
    assert kept(ByLabelSelectorFilter, {"matchExpressions": expressions}) == [False, True, True, True]


@pytest.mark.parametrize("cls", [ByLabelFilter, ByLabelSelectorFilter])
def test_use_is_warned_of(cls):
    assert cls.stability is Stability.DEPRECATED
