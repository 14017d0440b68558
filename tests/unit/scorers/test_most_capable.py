# SPDX-License-Identifier: Apache-2.0
"""The largest and fastest accelerators."""

import msgspec
import pytest

from epp.framework import ConfigurationError
from epp.framework.accelerators.tag import NO_TAG, AcceleratorKind, AcceleratorTag, Partition
from epp.framework.quantities import GIB
from epp_scorers.most_capable import MostCapableScorer


def test_ome_4_most_capable_weighs_memory_bandwidth_and_compute(scores, h100, a100, t4):
    # the A100 has 0.5 * 40/80 + 0.3 * 1555/3000 + 0.2 * 312/1979, the T4 0.5 * 16/80 + 0.3 * 320/3000 + 0.2 * 65/1979
    assert scores(MostCapableScorer, [h100, a100, t4]) == pytest.approx([1.0, 0.437031, 0.138569], abs=1e-6)


def test_maxima_are_those_of_the_candidates(scores, a100, t4):
    # 0.5 * 16/40 + 0.3 * 320/1555 + 0.2 * 65/312
    assert scores(MostCapableScorer, [a100, t4]) == pytest.approx([1.0, 0.303403], abs=1e-6)


def test_first_preferred_precision_with_a_figure_counts(scores, h100, a100):
    # int4 on the H100, fp32 on the A100: 19 / 7916
    found = scores(MostCapableScorer, [h100, a100], preferredPrecisions=["int4", "fp32"])
    assert found[1] == pytest.approx(0.25 + 0.1555 + 0.2 * 19 / 7916)


def test_devices_of_an_endpoint_count_together_unless_one_is_asked_for(scores, h100, a100):
    four = msgspec.structs.replace(a100, count=4)
    # 80/160, 3000/6220, 1979/1979 and 1, 1, 1248/1979
    assert scores(MostCapableScorer, [h100, four]) == pytest.approx(
        [0.25 + 0.3 * 3000 / 6220 + 0.2, 0.8 + 0.2 * 1248 / 1979]
    )
    assert scores(MostCapableScorer, [h100, four], basis="device")[1] == pytest.approx(0.437031, abs=1e-6)


def test_slice_counts_as_a_slice(scores, a100):
    half = msgspec.structs.replace(
        a100, memory_bytes=20 * GIB, partition=Partition(memory_fraction=0.5, compute_fraction=3 / 7)
    )
    # 0.5 * 0.5 + 0.3 * 0.5 + 0.2 * 3/7
    assert scores(MostCapableScorer, [a100, half])[1] == pytest.approx(0.25 + 0.15 + 0.6 / 7)


def test_what_nobody_knows_counts_for_nobody(scores, a100):
    unknown = msgspec.structs.replace(a100, bandwidth_gbps=None)
    assert scores(MostCapableScorer, [unknown, NO_TAG]) == pytest.approx([0.7, 0.0])
    assert scores(MostCapableScorer, [NO_TAG, NO_TAG]) == [0.0, 0.0]


def test_ome_8_cpu_is_not_capable_however_much_memory_it_has(scores, t4):
    cpu = AcceleratorTag(kind=AcceleratorKind.CPU, memory_bytes=1024 * GIB)
    assert scores(MostCapableScorer, [cpu, t4]) == pytest.approx([0.0, 1.0])


def test_weights_that_say_nothing_are_refused(build):
    with pytest.raises(ConfigurationError, match="are all 0; set at least one"):
        build(MostCapableScorer, memoryWeight=0, bandwidthWeight=0, computeWeight=0)
    with pytest.raises(ConfigurationError, match="preferredPrecisions is empty"):
        build(MostCapableScorer, preferredPrecisions=[])
