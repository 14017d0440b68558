# SPDX-License-Identifier: Apache-2.0
"""Free slots on an endpoint's node, and the smallest slice that will do."""

import msgspec
import pytest

from epp.framework import ConfigurationError
from epp.framework.accelerators.tag import (
    NO_TAG,
    SLOTS_FREE,
    SLOTS_TOTAL,
    AcceleratorKind,
    AcceleratorTag,
    Partition,
    Sharing,
)
from epp.framework.quantities import GIB
from epp_scorers.capability import SliceFitScorer, SliceHeadroomScorer


def on_node(free, total):
    return AcceleratorTag(attributes={SLOTS_FREE: free, SLOTS_TOTAL: total})


def piece(compute, slots, gib):
    part = Partition(
        kind=Sharing.MIG,
        compute_slices=compute,
        memory_slots=slots,
        compute_fraction=compute / 7,
        memory_fraction=slots / 8,
    )
    return AcceleratorTag(kind=AcceleratorKind.GPU, count=1, memory_bytes=gib * GIB, partition=part)


SLICES = [piece(1, 1, 5), piece(2, 2, 10), piece(3, 4, 20), piece(4, 4, 20), piece(7, 8, 40)]


def test_is_7_defect_13_free_share_of_the_nodes_slots_or_of_the_taken_ones(scores):
    # two devices of 8 slots, 4 and 1 of them taken
    assert scores(SliceHeadroomScorer, [on_node(11, 16)]) == [0.6875]
    assert scores(SliceHeadroomScorer, [on_node(11, 16)], mode="pack") == [0.3125]


@pytest.mark.parametrize("mode", ["spread", "pack"])
def test_node_without_numbers_is_neither_full_nor_empty(scores, mode):
    assert scores(SliceHeadroomScorer, [NO_TAG, on_node(0, 0), on_node("x", 8)], mode=mode) == [0.5] * 3


def test_is_7_smallest_slice_with_enough_memory_fits_best(scores):
    # too small; 10/10; 10/20; 10/20; 10/40
    assert scores(SliceFitScorer, SLICES, minMemory="10Gi") == [0.0, 1.0, 0.5, 0.5, 0.25]


def test_is_7_compute_slices_can_be_what_is_needed(scores, a100):
    # 3 of 3, 4, 7; of a whole device 3 of 8
    found = scores(SliceFitScorer, [*SLICES, a100], minComputeSlices=3)
    assert found == pytest.approx([0.0, 0.0, 1.0, 3 / 4, 3 / 7, 3 / 8])


def test_is_7_both_needs_have_to_be_met(scores):
    # 20 GiB and 4 compute slices: 3g.20gb has the memory, not the compute
    assert scores(SliceFitScorer, SLICES, minMemory=20, minComputeSlices=4) == [0.0, 0.0, 0.0, 1.0, 0.5]


def test_is_7_smallest_slice_fits_best_where_nothing_is_asked_for(scores, a100):
    assert scores(SliceFitScorer, [*SLICES, a100]) == [1.0, 0.5, 0.25, 0.25, 0.125, 0.125]


def test_slice_that_reports_a_little_less_than_its_name_says_is_large_enough(scores):
    # 19.5 of 20 GiB
    reported = msgspec.structs.replace(SLICES[2], memory_bytes=round(19.5 * GIB))
    assert scores(SliceFitScorer, [reported], minMemory=20) == [1.0]


def test_unknown_size_and_cpus_fit_nothing(scores):
    unknown = AcceleratorTag(kind=AcceleratorKind.GPU, count=1)
    cpu = AcceleratorTag(kind=AcceleratorKind.CPU, memory_bytes=64 * GIB)
    assert scores(SliceFitScorer, [unknown, cpu, NO_TAG], minMemory=5) == [0.0, 0.0, 0.0]
    assert scores(SliceFitScorer, [cpu, NO_TAG]) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("plugin", "parameters", "words"),
    [
        (SliceHeadroomScorer, {"mode": "both"}, "both"),
        (SliceFitScorer, {"minComputeSlices": 0}, "minComputeSlices is 0; it must be at least 1"),
        (SliceFitScorer, {"minMemory": "much"}, "not a quantity"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(build, plugin, parameters, words):
    with pytest.raises(ConfigurationError, match=words):
        build(plugin, **parameters)
