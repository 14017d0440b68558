# SPDX-License-Identifier: Apache-2.0
"""Free slots on an endpoint's node, and the smallest slice that is large enough."""

import pytest
from msgspec.structs import replace

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
from tests.support.scoring import A100, scores


def on_node(free, total):
    return AcceleratorTag(attributes={SLOTS_FREE: free, SLOTS_TOTAL: total})


def piece(compute, slots, gib):
    shares = {"compute_fraction": compute / 7, "memory_fraction": slots / 8}
    part = Partition(kind=Sharing.MIG, compute_slices=compute, memory_slots=slots, **shares)
    return AcceleratorTag(kind=AcceleratorKind.GPU, count=1, memory_bytes=gib * GIB, partition=part)


SLICES = [piece(1, 1, 5), piece(2, 2, 10), piece(3, 4, 20), piece(4, 4, 20), piece(7, 8, 40)]
UNKNOWN = AcceleratorTag(kind=AcceleratorKind.GPU, count=1)
CPU = AcceleratorTag(kind=AcceleratorKind.CPU, memory_bytes=64 * GIB)


def test_is_7_defect_13_free_share_of_the_nodes_slots_or_of_the_taken_ones():
    # two devices of 8 slots, 4 and 1 of them taken
    assert scores(SliceHeadroomScorer, [on_node(11, 16)]) == [0.6875]
    assert scores(SliceHeadroomScorer, [on_node(11, 16)], mode="pack") == [0.3125]


@pytest.mark.parametrize("mode", ["spread", "pack"])
def test_node_without_numbers_is_neither_full_nor_empty(mode):
    assert scores(SliceHeadroomScorer, [NO_TAG, on_node(0, 0), on_node("x", 8)], mode=mode) == [0.5] * 3


@pytest.mark.parametrize(
    ("tags", "need", "expected"),
    [
        (SLICES, {"minMemory": "10Gi"}, [0.0, 1.0, 0.5, 0.5, 0.25]),  # too small; 10/10; 10/20; 10/20; 10/40
        # 3 of 3, 4, 7; of a whole device 3 of 8
        ([*SLICES, A100], {"minComputeSlices": 3}, [0.0, 0.0, 1.0, 3 / 4, 3 / 7, 3 / 8]),
        # both: 3g.20gb has the memory, not the compute
        (SLICES, {"minMemory": 20, "minComputeSlices": 4}, [0.0, 0.0, 0.0, 1.0, 0.5]),
        ([*SLICES, A100], {}, [1.0, 0.5, 0.25, 0.25, 0.125, 0.125]),
        # a little less than its name says: 19.5 of 20 GiB
        ([replace(SLICES[2], memory_bytes=round(19.5 * GIB))], {"minMemory": 20}, [1.0]),
        ([UNKNOWN, CPU, NO_TAG], {"minMemory": 5}, [0.0, 0.0, 0.0]),
        ([CPU, NO_TAG], {}, [0.0, 0.0]),
    ],
)
def test_is_7_smallest_slice_that_is_large_enough_fits_best(tags, need, expected):
    assert scores(SliceFitScorer, tags, **need) == pytest.approx(expected)
