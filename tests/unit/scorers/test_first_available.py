# SPDX-License-Identifier: Apache-2.0
"""Classes in order, without those that are saturated."""

from math import nan

import msgspec
import pytest

from epp.framework import ConfigurationError
from epp.framework.accelerators.tag import NO_TAG, AcceleratorTag, Routability
from epp_scorers.preference_order import FirstAvailableScorer

ORDER = ["nvidia-h100", "nvidia-a100", "nvidia-t4"]


def test_ome_4_first_class_in_the_order_gets_one(scores, h100, a100, t4):
    # 1 - 0/3, 1 - 1/3, 1 - 2/3
    found = scores(FirstAvailableScorer, [t4, h100, a100], classes=ORDER)
    assert found == pytest.approx([1 / 3, 1.0, 2 / 3])


def test_defect_8_saturated_class_is_passed_over(scores, h100, a100, t4):
    # two classes are left: 1 - 0/2 and 1 - 1/2
    columns = {"waiting": [5, 0, 0], "kv_usage": [0.1, 0.1, 0.1]}
    found = scores(FirstAvailableScorer, [h100, a100, t4], columns=columns, classes=ORDER)
    assert found == [0.0, 1.0, 0.5]


def test_class_with_one_free_endpoint_is_available_there_alone(scores, h100, a100):
    columns = {"kv_usage": [0.8, 0.79, 0.0]}
    found = scores(FirstAvailableScorer, [h100, h100, a100], columns=columns, classes=ORDER)
    assert found == [0.0, 1.0, 0.5]


def test_gie_14_limits_go_by_class(scores, h100, t4):
    columns = {"waiting": [39, 8], "running": [100, 1]}
    limits = {"nvidia-h100": {"queueDepthThreshold": 40}, "NVIDIA-T4": {"queueDepthThreshold": 8}}
    parameters = {"classes": ORDER, "limits": limits}
    assert scores(FirstAvailableScorer, [h100, t4], columns=columns, **parameters) == [1.0, 0.0]
    assert scores(FirstAvailableScorer, [h100, t4], columns=columns, **parameters, runningThreshold=50) == [0.0, 0.0]


def test_without_an_order_classes_come_as_the_pool_brings_them(scores, h100, a100):
    assert scores(FirstAvailableScorer, [a100, h100, a100]) == [1.0, 0.5, 1.0]


def test_model_stands_in_where_no_class_matches(scores, h100, a100):
    bare = msgspec.structs.replace(a100, classes=())
    assert scores(FirstAvailableScorer, [h100, bare], classes=["A100", "h100"]) == [0.0, 1.0]


def test_endpoint_of_two_classes_counts_for_the_first_in_the_order(scores, a100):
    both = msgspec.structs.replace(a100, classes=("other", "nvidia-h100"))
    assert scores(FirstAvailableScorer, [a100, both], classes=ORDER) == [0.5, 1.0]


def test_draining_blocked_and_unclassed_endpoints_are_not_available(scores, h100, a100):
    states = [msgspec.structs.replace(h100, state=state) for state in (Routability.DRAINING, Routability.BLOCKED)]
    unlisted = AcceleratorTag(classes=("other",))
    found = scores(FirstAvailableScorer, [*states, a100, unlisted, NO_TAG], classes=ORDER)
    assert found == [0.0, 0.0, 1.0, 0.0, 0.0]


def test_ome_11_class_that_nobody_has_does_not_disable_the_others(scores, h100, a100):
    assert scores(FirstAvailableScorer, [h100, a100], classes=["typo", *ORDER]) == [1.0, 0.5]


def test_endpoint_that_has_not_reported_is_not_saturated(scores, h100, a100):
    columns = {"waiting": [nan, 0], "kv_usage": [nan, 0]}
    assert scores(FirstAvailableScorer, [h100, a100], columns=columns, classes=ORDER) == [1.0, 0.5]


def test_nobody_available_leaves_the_choice_to_the_next_scorer(scores, h100, a100):
    assert scores(FirstAvailableScorer, [h100, a100], columns={"waiting": [9, 9]}) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"classes": ["a", "A"]}, "classes names 'a' twice"),
        ({"classes": [""]}, "classes holds an empty name"),
        ({"limits": {"a": {}, "A": {}}}, "limits names 'a' twice"),
        ({"queueDepthThreshold": 0}, "queueDepthThreshold is 0; it must be above 0"),
        ({"limits": {"a": {"kvCacheUtilThreshold": -1}}}, "kvCacheUtilThreshold is .*; it must be above 0"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(build, parameters, words):
    with pytest.raises(ConfigurationError, match=words):
        build(FirstAvailableScorer, **parameters)
