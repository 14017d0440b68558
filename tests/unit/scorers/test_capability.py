# SPDX-License-Identifier: Apache-2.0
"""Memory and speed of accelerators."""

import msgspec
import pytest

from epp.framework import ConfigurationError, Request
from epp.framework.accelerators.tag import NO_TAG, AcceleratorKind, AcceleratorTag, Partition, Performance
from epp.framework.quantities import GIB
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates
from epp_scorers.capability import BestFitScorer, MostCapableScorer


def test_ome_4_best_fit_without_a_bound_on_compute(scores, h100, a100, t4):
    # 0.7 * 40/80 + 0.3; 0.7 * 40/40 + 0.3; too small
    assert scores(BestFitScorer, [h100, a100, t4], minMemory="40Gi", preferredPrecisions=["fp16"]) == pytest.approx(
        [0.65, 1.0, 0.0]
    )


def test_ome_4_best_fit_with_compute_that_all_but_the_smallest_have(scores, h100, a100, t4):
    # 0.7 * 16/80 + 0.3; 0.7 * 16/40 + 0.3; 0.7 + 0.3 * 65/300
    found = scores(BestFitScorer, [h100, a100, t4], minMemory=16, minComputeTFLOPS=300, preferredPrecisions=["fp16"])
    assert found == pytest.approx([0.44, 0.58, 0.765])


def test_ome_4_best_fit_prefers_half_the_compute_to_twice_the_memory(scores, h100, a100, t4):
    # 0.7 * 40/80 + 0.3; 0.7 + 0.3 * 312/600; too small
    found = scores(BestFitScorer, [h100, a100, t4], minMemory=40, minComputeTFLOPS=600, preferredPrecisions=["fp16"])
    assert found == pytest.approx([0.65, 0.856, 0.0])


def test_ome_4_best_fit_halves_compute_in_the_second_precision(scores, h100, a100, t4):
    # int4 on the H100 alone; the others have fp16 in the second place: 0.7 + 0.3 * 0.5
    found = scores(BestFitScorer, [h100, a100, t4], preferredPrecisions=["int4", "fp16"])
    assert found == pytest.approx([1.0, 0.85, 0.85])


def test_ome_4_best_fit_of_the_only_one_left_is_one(scores, t4):
    assert scores(BestFitScorer, [t4], minMemory=16) == [1.0]


def test_ome_4_best_fit_takes_the_smaller_one_of_two_with_the_feature(scores, h100, a100):
    # of those with NVLink: 0.7 * 16/80 + 0.3 and 0.7 * 16/40 + 0.3
    assert scores(BestFitScorer, [h100, a100], minMemory=16) == pytest.approx([0.44, 0.58])


def test_defect_2_no_constraints_at_all_are_valid(scores, h100, a100):
    assert scores(BestFitScorer, [h100, a100]) == [1.0, 1.0]


def test_fp16_comes_after_all_preferred_precisions(scores, a100):
    # neither int4 nor fp8 nor int8: fp16 in the third place, 0.7 + 0.3 * 0.25
    tag = msgspec.structs.replace(a100, performance=Performance(fp16=312))
    assert scores(BestFitScorer, [tag], preferredPrecisions=["int4", "fp8"]) == pytest.approx([0.775])


def test_fp8_goes_by_the_int8_figure(scores, a100):
    # 0.7 + 0.3 * 624/1248
    assert scores(BestFitScorer, [a100], preferredPrecisions=["fp8"], minComputeTFLOPS=1248) == pytest.approx([0.85])


def test_figures_are_those_of_one_device_or_slice(scores, a100):
    four = msgspec.structs.replace(a100, count=4)
    half = msgspec.structs.replace(a100, partition=Partition(compute_fraction=0.5), memory_bytes=20 * GIB)
    # a device of four is as large as one alone; half a device has 156 TFLOPS: 0.7 + 0.3 * 156/312
    parameters = {"minMemory": 20, "minComputeTFLOPS": 312, "preferredPrecisions": ["fp16"]}
    assert scores(BestFitScorer, [a100, four, half], **parameters) == pytest.approx([0.65, 0.65, 0.85])


def test_nominal_size_is_met_by_what_the_device_reports(scores, h100):
    # sold as 80 GiB, reports 79.6, which is 99.5 %; 76 is 95 %
    reported = [msgspec.structs.replace(h100, memory_bytes=round(size * GIB)) for size in (79.6, 76)]
    assert scores(BestFitScorer, reported, minMemory="80Gi") == [1.0, 0.0]


def test_weights_can_be_set_and_need_not_sum_to_one(scores, h100):
    # the mean of 0.5 and 1
    assert scores(BestFitScorer, [h100], minMemory=40, memoryWeight=1, computeWeight=1) == [0.75]


def test_unknown_memory_leaves_compute_and_unknown_hardware_and_cpus_leave_nothing(scores, h100):
    no_memory = msgspec.structs.replace(h100, memory_bytes=None)
    cpu = AcceleratorTag(kind=AcceleratorKind.CPU, memory_bytes=64 * GIB, performance=Performance(fp32=3))
    assert scores(BestFitScorer, [no_memory, NO_TAG, cpu], minMemory=16) == pytest.approx([0.3, 0.0, 0.0])
    assert scores(BestFitScorer, [NO_TAG, cpu]) == [0.0, 0.0]


def test_two_scorers_with_other_parameters_do_not_share_results(build, h100):
    pool = candidates(records={ACCELERATOR: [h100]})
    strict, lax = build(BestFitScorer, minMemory=40), build(BestFitScorer, minMemory=80)
    assert strict.score(Request("r"), pool).tolist() == pytest.approx([0.65])
    assert lax.score(Request("r"), pool).tolist() == [1.0]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"memoryWeight": 0, "computeWeight": 0}, "memoryWeight and computeWeight are all 0"),
        ({"memoryWeight": -1}, "memoryWeight is -1; it must be between 0"),
        ({"minMemory": "lots"}, "minMemory: 'lots' is not a quantity"),
        ({"minMemory": 0}, "no memory size"),
        ({"minComputeTFLOPS": -1}, "minComputeTFLOPS is -1; it must be 0 or more"),
        ({"preferredPrecisions": ["fp12"]}, "fp12"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(build, parameters, words):
    with pytest.raises(ConfigurationError, match=words):
        build(BestFitScorer, **parameters)


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
