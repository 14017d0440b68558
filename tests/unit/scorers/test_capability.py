# SPDX-License-Identifier: Apache-2.0
"""Memory and speed of accelerators."""

import pytest
from msgspec.structs import replace

from epp.framework import Request
from epp.framework.accelerators.tag import NO_TAG, AcceleratorKind, AcceleratorTag, Partition, Performance
from epp.framework.quantities import GIB
from epp.framework.testing import candidates
from epp_scorers.capability import BestFitScorer, MostCapableScorer
from tests.support.plugins import built
from tests.support.scoring import A100, H100, T4, scores

FLEET = [H100, A100, T4]
FP16 = {"preferredPrecisions": ["fp16"]}
FOUR = replace(A100, count=4)
HALF = replace(A100, partition=Partition(memory_fraction=0.5, compute_fraction=3 / 7), memory_bytes=20 * GIB)
CPU = AcceleratorTag(kind=AcceleratorKind.CPU, memory_bytes=64 * GIB, performance=Performance(fp32=3))


@pytest.mark.parametrize(
    ("tags", "parameters", "expected"),
    [
        # no bound on compute: 0.7 * 40/80 + 0.3; 0.7 * 40/40 + 0.3; too small
        (FLEET, {"minMemory": "40Gi", **FP16}, [0.65, 1.0, 0.0]),
        # all but the smallest have enough: 0.7 * 16/80 + 0.3; 0.7 * 16/40 + 0.3; 0.7 + 0.3 * 65/300
        (FLEET, {"minMemory": 16, "minComputeTFLOPS": 300, **FP16}, [0.44, 0.58, 0.765]),
        # half the compute rather than twice the memory: 0.7 * 40/80 + 0.3; 0.7 + 0.3 * 312/600; too small
        (FLEET, {"minMemory": 40, "minComputeTFLOPS": 600, **FP16}, [0.65, 0.856, 0.0]),
        # int4 on the H100 alone; the others have fp16 in the second place: 0.7 + 0.3 * 0.5
        (FLEET, {"preferredPrecisions": ["int4", "fp16"]}, [1.0, 0.85, 0.85]),
        # the only one left
        ([T4], {"minMemory": 16}, [1.0]),
        # of those with NVLink: 0.7 * 16/80 + 0.3 and 0.7 * 16/40 + 0.3
        ([H100, A100], {"minMemory": 16}, [0.44, 0.58]),
    ],
)
def test_ome_4_best_fit(tags, parameters, expected):
    assert scores(BestFitScorer, tags, **parameters) == pytest.approx(expected)


def test_defect_2_no_constraints_at_all_are_valid():
    assert scores(BestFitScorer, [H100, A100]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("tags", "parameters", "expected"),
    [
        # neither int4 nor fp8 nor int8: fp16 in the third place, 0.7 + 0.3 * 0.25
        ([replace(A100, performance=Performance(fp16=312))], {"preferredPrecisions": ["int4", "fp8"]}, [0.775]),
        # fp8 goes by the int8 figure: 0.7 + 0.3 * 624/1248
        ([A100], {"preferredPrecisions": ["fp8"], "minComputeTFLOPS": 1248}, [0.85]),
        # a device of four is as large as one alone; 3/7 of a device: 0.7 + 0.3 * 3/7
        ([A100, FOUR, HALF], {"minMemory": 20, "minComputeTFLOPS": 312, **FP16}, [0.65, 0.65, 0.7 + 0.9 / 7]),
        # sold as 80 GiB, reports 79.6, which is 99.5 %; 76 is 95 %
        ([replace(H100, memory_bytes=round(size * GIB)) for size in (79.6, 76)], {"minMemory": "80Gi"}, [1.0, 0.0]),
        # the mean of 0.5 and 1
        ([H100], {"minMemory": 40, "memoryWeight": 1, "computeWeight": 1}, [0.75]),
        # unknown memory leaves compute; unknown hardware and CPUs leave nothing
        ([replace(H100, memory_bytes=None), NO_TAG, CPU], {"minMemory": 16}, [0.3, 0.0, 0.0]),
        ([NO_TAG, CPU], {}, [0.0, 0.0]),
    ],
)
def test_best_fit_by_what_is_known_of_one_device_or_slice(tags, parameters, expected):
    assert scores(BestFitScorer, tags, **parameters) == pytest.approx(expected)


def test_two_scorers_with_other_parameters_do_not_share_results():
    pool = candidates(accelerators=[H100])
    strict, lax = (built(BestFitScorer, {"minMemory": size}).score(Request("r"), pool).tolist() for size in (40, 80))
    assert (strict, lax) == ([pytest.approx(0.65)], [1.0])


def test_ome_4_most_capable_weighs_memory_bandwidth_and_compute():
    # the A100 has 0.5 * 40/80 + 0.3 * 1555/3000 + 0.2 * 312/1979, the T4 0.5 * 16/80 + 0.3 * 320/3000 + 0.2 * 65/1979
    assert scores(MostCapableScorer, FLEET) == pytest.approx([1.0, 0.437031, 0.138569], abs=1e-6)


@pytest.mark.parametrize(
    ("tags", "parameters", "expected"),
    [
        # maxima are those of the candidates: 0.5 * 16/40 + 0.3 * 320/1555 + 0.2 * 65/312
        ([A100, T4], {}, [1.0, 0.303403]),
        # int4 on the H100, fp32 on the A100
        ([H100, A100], {"preferredPrecisions": ["int4", "fp32"]}, [1.0, 0.25 + 0.1555 + 0.2 * 19 / 7916]),
        # 80/160, 3000/6220, 1979/1979 and 1, 1, 1248/1979
        ([H100, FOUR], {}, [0.25 + 0.3 * 3000 / 6220 + 0.2, 0.8 + 0.2 * 1248 / 1979]),
        ([H100, FOUR], {"basis": "device"}, [1.0, 0.437031]),
        # 0.5 * 0.5 + 0.3 * 0.5 + 0.2 * 3/7
        ([A100, HALF], {}, [1.0, 0.25 + 0.15 + 0.6 / 7]),
        # what is known of none counts for none
        ([replace(A100, bandwidth_gbps=None), NO_TAG], {}, [0.7, 0.0]),
        ([NO_TAG, NO_TAG], {}, [0.0, 0.0]),
    ],
)
def test_most_capable_by_candidates_and_what_is_known_of_them(tags, parameters, expected):
    assert scores(MostCapableScorer, tags, **parameters) == pytest.approx(expected, abs=1e-6)


def test_ome_8_cpu_is_not_capable_however_much_memory_it_has():
    assert scores(MostCapableScorer, [replace(CPU, memory_bytes=1024 * GIB), T4]) == pytest.approx([0.0, 1.0])
