# SPDX-License-Identifier: Apache-2.0
"""How full prefill and decode are, each by its own endpoints."""

from math import inf

import pytest

from epp.framework.flow_control import ROLE_LABEL, Saturation, SaturationDetector, saturation_of
from epp.framework.snapshot import WAITING
from epp.framework.testing import candidates


class Waiting(SaturationDetector):
    """Full with ten requests in the queue of the engine."""

    plugin_type = "waiting"

    def fullness(self, candidates):
        return candidates.values(WAITING) / 10


def pool(**endpoints):
    """Return endpoints by role, `decode=[1, 5]` for two of them with so many requests waiting; `none` for no role."""
    labels, waiting = [], []
    for role, numbers in endpoints.items():
        labels += [{} if role == "none" else {ROLE_LABEL: role.replace("_", "-")}] * len(numbers)
        waiting += numbers
    return candidates(labels=labels, waiting=waiting)


@pytest.mark.parametrize(
    ("endpoints", "expected"),
    [
        ({"none": [4, 8]}, Saturation(0.6, None, 0.6)),
        ({"prefill": [20], "decode": [5]}, Saturation(2.0, 2.0, 0.5)),
        ({"prefill": [5], "decode": [20]}, Saturation(2.0, 0.5, 2.0)),
        ({"prefill": [5], "none": [20]}, Saturation(2.0, 0.5, 2.0)),
        ({"prefill": [0], "both": [10]}, Saturation(1.0, 0.5, 1.0)),
        ({"prefill": [2], "prefill_decode": [4], "decode": [6]}, Saturation(0.5, 0.3, 0.5)),
        ({"encode": [90], "prefill": [1], "decode": [2]}, Saturation(0.2, 0.1, 0.2)),  # encoding is no stage of these
        ({"encode": [9]}, Saturation(0.9)),
        ({}, Saturation(1.0)),
    ],
)
def test_saturation_is_that_of_the_fuller_stage(endpoints, expected):
    found = saturation_of(Waiting(), pool(**endpoints))
    assert found == pytest.approx(expected)


def test_stage_counts_by_the_candidates_that_are_left():
    both = pool(prefill=[20], decode=[5])
    assert saturation_of(Waiting(), both.keep([False, True])) == Saturation(0.5, None, 0.5)


def test_detector_trusts_metrics_of_any_age_unless_it_says_otherwise():
    assert Waiting().oldest_metrics_seconds == inf
