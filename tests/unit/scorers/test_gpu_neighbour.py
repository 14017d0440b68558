# SPDX-License-Identifier: Apache-2.0
"""Neighbours on the same physical device."""

from math import nan

import numpy as np
import pytest

from epp.framework import ConfigurationError, Request
from epp.framework.accelerators.tag import NO_TAG, AcceleratorTag, Device, Partition, Sharing
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates
from epp_scorers.gpu_packing import GpuNeighbourScorer


def part_of(gpu, kind=Sharing.MIG, cluster=""):
    return AcceleratorTag(partition=Partition(kind=kind, parent_id=gpu), cluster=cluster)


def test_is_8_endpoint_alone_on_its_device_is_chosen_on_equal_load(scores):
    # the first two have 3 requests beside them, which is the most: 1 - 0.25; the third has none
    columns = {"running": [3, 3, 3], "waiting": [0, 0, 0]}
    found = scores(GpuNeighbourScorer, [part_of("GPU-a"), part_of("GPU-a"), part_of("GPU-b")], columns=columns)
    assert found == [0.75, 0.75, 1.0]


def test_is_8_neighbours_weigh_by_how_the_device_is_divided(scores):
    tags = [part_of(f"GPU-{kind}", kind) for kind in Sharing for _ in range(2)]
    columns = {"running": [2] * len(tags), "waiting": [2] * len(tags)}
    found = dict(zip(Sharing, scores(GpuNeighbourScorer, tags, columns=columns)[::2], strict=True))
    assert found[Sharing.MIG] == found[Sharing.AMD] == found[Sharing.CORES] == 0.75
    assert found[Sharing.MPS] == 0.25
    assert found[Sharing.TIME_SLICING] == found[Sharing.VGPU] == found[Sharing.NONE] == 0.0


def test_less_busy_neighbours_cost_less(scores):
    # beside the first 2 + 2 requests, beside the second 1: 1 - 4/4 and 1 - 1/4
    tags = [part_of("GPU-a", Sharing.TIME_SLICING), part_of("GPU-a", Sharing.TIME_SLICING)]
    columns = {"running": [1, 2], "waiting": [0, 2]}
    assert scores(GpuNeighbourScorer, tags, columns=columns) == [0.0, 0.75]


def test_requests_in_flight_stand_in_for_an_engine_that_has_not_reported(scores):
    tags = [part_of("GPU-a", Sharing.MPS)] * 2
    columns = {"running": [nan, 0], "waiting": [0, 0], "in_flight": [5, 7]}
    assert scores(GpuNeighbourScorer, tags, columns=columns) == [1.0, 0.25]


def test_neighbour_counts_even_where_it_is_no_candidate(build):
    tags = [part_of("GPU-a"), part_of("GPU-a"), part_of("GPU-b")]
    pool = candidates(records={ACCELERATOR: tags}, running=[4, 0, 0], waiting=[0, 0, 0])
    narrowed = pool.keep(np.array([False, True, True]))
    assert build(GpuNeighbourScorer).score(Request("r"), narrowed).tolist() == [0.75, 1.0]


def test_endpoint_on_several_devices_feels_the_busiest_one(scores):
    two = AcceleratorTag(devices=(Device(id="GPU-a"), Device(id="GPU-b")))
    slices = (Device(id="MIG-1", parent_id="GPU-a"), Device(id="MIG-2", parent_id="GPU-a"))
    on_a, on_b = AcceleratorTag(devices=slices), AcceleratorTag(devices=(Device(id="GPU-b"),))
    # beside the first: 1 on GPU-a, 4 on GPU-b; beside the others: 2
    columns = {"running": [2, 1, 4], "waiting": [0, 0, 0]}
    assert scores(GpuNeighbourScorer, [two, on_a, on_b], columns=columns) == [0.0, 0.5, 0.5]


def test_same_id_in_another_cluster_is_another_device(scores):
    columns = {"running": [4, 4], "waiting": [0, 0]}
    assert scores(GpuNeighbourScorer, [part_of("0"), part_of("0", cluster="b")], columns=columns) == [1.0, 1.0]


def test_idle_neighbours_and_unknown_devices_cost_nothing(scores):
    assert scores(GpuNeighbourScorer, [part_of("GPU-a")] * 2) == [1.0, 1.0]
    assert scores(GpuNeighbourScorer, [NO_TAG, NO_TAG], columns={"in_flight": [3, 3]}) == [1.0, 1.0]


def test_weight_out_of_range_is_refused(build):
    with pytest.raises(ConfigurationError, match=r"mpsWeight is 1.5; it must be between 0 and 1"):
        build(GpuNeighbourScorer, mpsWeight=1.5)
