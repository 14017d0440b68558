# SPDX-License-Identifier: Apache-2.0
"""A header that asks for a label's value."""

import pytest

from epp.framework import ConfigurationError, Headers, ManualClock, Request
from epp.framework.registry import Registry
from epp.framework.testing import candidates
from epp_scorers.affinity import HeaderLabelAffinityScorer

POOL = candidates(labels=[{"slice": "0"}, {"slice": "1"}, {"slice": ""}, {}])


def build(**parameters):
    registry = Registry({})
    registry.register(HeaderLabelAffinityScorer)
    given = {"headerName": "X-Slice", "labelKey": "slice"} | parameters
    return registry.build("header-label-affinity-scorer", given, name="mine", clock=ManualClock())


def scores(*fields, **parameters):
    return build(**parameters).score(Request("r", headers=Headers(fields)), POOL).tolist()


def test_label_that_equals_the_header_gets_one():
    assert scores(("x-slice", "1")) == [0.0, 1.0, 0.0, 0.0]
    assert scores(("x-slice", "0")) == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("fields", [[], [("x-slice", "2")], [("x-slice", "")], [("x-other", "1")]])
def test_value_that_is_missing_or_unknown_prefers_nobody(fields):
    assert scores(*fields) == [0.0] * 4


def test_scores_follow_the_candidates():
    request = Request("r", headers=Headers([("x-slice", "1")]))
    narrowed = POOL.keep(build().score(request, POOL) > 0)
    assert build().score(request, narrowed).tolist() == [1.0]


def test_two_labels_of_the_same_endpoints_do_not_mix():
    assert scores(("x-slice", "1"), labelKey="zone") == [0.0] * 4
    assert scores(("x-slice", "1"), labelKey="slice") == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("parameters", "sentence"), [({"headerName": ""}, "headerName is empty"), ({"labelKey": ""}, "labelKey is empty")]
)
def test_parameters_that_name_nothing_are_refused(parameters, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        build(**parameters)
