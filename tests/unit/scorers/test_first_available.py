# SPDX-License-Identifier: Apache-2.0
"""Classes in order, without those that are saturated."""

from math import nan

import pytest
from msgspec.structs import replace

from epp.framework.accelerators.tag import NO_TAG, AcceleratorTag, Routability
from epp_scorers.preference_order import FirstAvailableScorer
from tests.support.scoring import A100, H100, T4, scores

ORDER = ["nvidia-h100", "nvidia-a100", "nvidia-t4"]


def ordered(*tags, classes=ORDER, **more):
    return scores(FirstAvailableScorer, tags, classes=classes, **more)


def test_ome_4_first_class_in_the_order_gets_one():
    # 1 - 0/3, 1 - 1/3, 1 - 2/3
    assert ordered(T4, H100, A100) == pytest.approx([1 / 3, 1.0, 2 / 3])


def test_defect_8_saturated_class_is_passed_over():
    # two classes are left: 1 - 0/2 and 1 - 1/2
    assert ordered(H100, A100, T4, waiting=[5, 0, 0], kv_usage=[0.1, 0.1, 0.1]) == [0.0, 1.0, 0.5]
    assert ordered(H100, H100, A100, kv_usage=[0.8, 0.79, 0.0]) == [0.0, 1.0, 0.5]  # one free endpoint is enough
    assert ordered(H100, A100, classes=[], waiting=[9, 9]) == [0.0, 0.0]
    assert ordered(H100, A100, waiting=[nan, 0], kv_usage=[nan, 0]) == [1.0, 0.5]  # not reported is not saturated


def test_gie_14_limits_go_by_class():
    limits = {"nvidia-h100": {"queueDepthThreshold": 40}, "NVIDIA-T4": {"queueDepthThreshold": 8}}
    load = {"waiting": [39, 8], "running": [100, 1]}
    assert ordered(H100, T4, limits=limits, **load) == [1.0, 0.0]
    assert ordered(H100, T4, limits=limits, runningThreshold=50, **load) == [0.0, 0.0]


def test_without_an_order_classes_come_as_the_pool_brings_them():
    assert ordered(A100, H100, A100, classes=[]) == [1.0, 0.5, 1.0]
    both = replace(A100, classes=("other", "nvidia-h100"))  # counts for the first
    assert ordered(H100, both, classes=[]) == [1.0, 0.5]


def test_class_of_an_endpoint_is_the_first_of_its_own_in_the_order_or_else_its_model():
    both = replace(A100, classes=("other", "nvidia-h100"))
    assert ordered(A100, both) == [0.5, 1.0]
    assert ordered(H100, replace(A100, classes=()), classes=["A100", "h100"]) == [0.0, 1.0]


def test_draining_blocked_and_unclassed_endpoints_are_not_available():
    states = [replace(H100, state=state) for state in (Routability.DRAINING, Routability.BLOCKED)]
    assert ordered(*states, A100, AcceleratorTag(classes=("other",)), NO_TAG) == [0.0, 0.0, 1.0, 0.0, 0.0]


def test_ome_11_class_that_nobody_has_does_not_disable_the_others():
    assert ordered(H100, A100, classes=["typo", *ORDER]) == [1.0, 0.5]
