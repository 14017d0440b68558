# SPDX-License-Identifier: Apache-2.0
"""Linear score of a number that endpoints report."""

from math import inf, nan

import pytest

from epp.framework import Column
from epp.framework.snapshot import GPU_UTILIZATION, WAITING
from epp_scorers.load import EndpointAttributeScorer
from tests.support.plugins import built
from tests.support.scoring import scores

LOWER, HIGHER = "linear_lower_is_better", "linear_higher_is_better"
FIXED = {"fixedRange": {"min": 0, "max": 10}}


def scored(values, kind, normalization=None, *, attribute="depth", **columns):
    algorithm = {"type": kind} | ({} if normalization is None else {"normalization": normalization})
    given = {"attributeKey": attribute, "algorithm": algorithm}
    return scores(EndpointAttributeScorer, reported={"depth": values}, **given, **columns)


@pytest.mark.parametrize(
    ("values", "normalization", "higher", "lower"),
    [
        # the candidates' own range is the default: min 2, max 10: (2-2)/8, (4-2)/8, (10-2)/8
        ([2, 4, 10], None, [0.0, 0.25, 1.0], [1.0, 0.75, 0.0]),
        ([2, 4, 10], {}, [0.0, 0.25, 1.0], [1.0, 0.75, 0.0]),
        ([2, 4, 10], {"adaptiveRange": {}}, [0.0, 0.25, 1.0], [1.0, 0.75, 0.0]),
        ([-5, 0, 4, 10, 50], FIXED, [0.0, 0.0, 0.4, 1.0, 1.0], [1.0, 1.0, 0.6, 0.0, 0.0]),
        # an endpoint without the number, or with an infinite one, gets 0 and leaves the range alone
        ([nan, 2, 10], None, [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]),
        ([nan, 2, 10], FIXED, [0.0, 0.2, 1.0], [0.0, 0.8, 0.0]),
        ([inf, 2, 10, -inf], None, [0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0]),
        ([3, nan, 3], None, [1.0, 0.0, 1.0], [1.0, 0.0, 1.0]),
    ],
)
def test_number_is_mapped_to_its_place_in_the_range(values, normalization, higher, lower):
    assert (scored(values, HIGHER, normalization), scored(values, LOWER, normalization)) == (higher, lower)


def test_number_that_nobody_reports_prefers_nobody():
    assert scored([1, 2], HIGHER, attribute="nothing") == [0.0, 0.0]


def test_core_numbers_are_attributes_too():
    assert scored([0, 0, 0], LOWER, attribute="waiting", waiting=[0, 1, 4]) == [1.0, 0.75, 0.0]


@pytest.mark.parametrize(
    ("parameters", "column"),
    [
        ({"attributeKey": "GPUUtilization"}, GPU_UTILIZATION),
        ({"attributeKey": "waiting"}, WAITING),
        ({"attributeKey": "depth"}, Column("depth", "")),
        # a name may end in its producer unless that is given apart
        ({"attributeKey": "GPUUtilization/dcgm-extractor"}, GPU_UTILIZATION),
        ({"attributeKey": "GPUUtilization", "producer": "dcgm-extractor"}, GPU_UTILIZATION),
        ({"attributeKey": "example.com/depth", "producer": ""}, Column("example.com/depth", "")),
    ],
)
def test_column_is_declared_so_that_its_absence_can_be_reported(parameters, column):
    assert built(EndpointAttributeScorer, {"algorithm": {"type": LOWER}} | parameters).reads == (column,)
