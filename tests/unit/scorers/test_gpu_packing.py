# SPDX-License-Identifier: Apache-2.0
"""Packing of GPUs and nodes."""

from math import inf, nan

import numpy as np
import pytest
from msgspec import structs

from epp.framework import ConfigurationError, Request
from epp.framework.accelerators.arrays import PLACEMENT, EndpointPlacement, PlacementMode, PlacementTemplate
from epp.framework.accelerators.tag import (
    NO_TAG,
    TFLOPS_USED,
    VIRTUAL,
    VRAM_USED,
    AcceleratorTag,
    Device,
    Partition,
    Sharing,
)
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates
from epp_scorers.gpu_packing import (
    CompactFirstScorer,
    GpuNeighbourScorer,
    LowLoadFirstScorer,
    NodeCompactGpuLowLoadScorer,
    PlacementTemplateScorer,
)

ALL = (CompactFirstScorer, LowLoadFirstScorer, NodeCompactGpuLowLoadScorer)
USED = [(0.25, 0.50), (0.0, 0.0), (0.9, 0.1), (1.0, 1.0)]
"""Of memory and of TFLOPS."""


def gpu(vram=None, tflops=None, node="", cluster=""):
    said = {VRAM_USED: vram, TFLOPS_USED: tflops}
    attributes = {name: value for name, value in said.items() if value is not None}
    return AcceleratorTag(node=node, cluster=cluster, attributes=attributes)


def test_tf_2_compact_first_is_what_is_used(scores):
    # 0.7 * 0.25 + 0.3 * 0.5, unrounded; 0; 0.7 * 0.9 + 0.3 * 0.1; 1
    assert scores(CompactFirstScorer, [gpu(*used) for used in USED]) == pytest.approx([0.325, 0.0, 0.66, 1.0])


def test_tf_2_low_load_first_is_what_is_left(scores):
    assert scores(LowLoadFirstScorer, [gpu(*used) for used in USED]) == pytest.approx([0.675, 1.0, 0.34, 0.0])


def test_tf_2_node_compact_takes_the_node_by_use_and_the_gpu_by_what_is_left(scores):
    tags = [gpu(*used) for used in USED]
    node = scores(NodeCompactGpuLowLoadScorer, tags, combine="weighted", nodeWeight=1)
    endpoint = scores(NodeCompactGpuLowLoadScorer, tags, combine="weighted", nodeWeight=0)
    assert node == pytest.approx([0.325, 0.0, 0.66, 1.0])
    assert endpoint == pytest.approx([0.675, 1.0, 0.34, 0.0])


@pytest.mark.parametrize("plugin", ALL)
def test_defect_19_weights_that_are_all_zero_are_refused(build, plugin):
    with pytest.raises(ConfigurationError, match="vramWeight and tflopsWeight are all 0"):
        build(plugin, vramWeight=0, tflopsWeight=0)


def test_tf_2_weights_can_be_set(scores):
    # 0.25 counts three times, 0.5 once: 1.25 / 4
    assert scores(CompactFirstScorer, [gpu(0.25, 0.5)], vramWeight=3, tflopsWeight=1) == pytest.approx([0.3125])
    assert scores(CompactFirstScorer, [gpu(0.25, 0.5)], vramWeight=0) == [0.5]


@pytest.mark.parametrize("plugin", ALL)
@pytest.mark.parametrize("nothing", [nan, -1.0])
def test_defect_21_no_capacity_gets_nothing(scores, plugin, nothing):
    assert scores(plugin, [gpu(nothing, 0.5), gpu(0.5, nothing)]) == [0.0, 0.0]


def test_defect_21_scores_are_not_rounded(scores):
    # 0.3250 and 0.3251 are the same in per cent
    low, high = scores(CompactFirstScorer, [gpu(0.25, 0.5), gpu(0.25, 0.5003)])
    assert high - low == pytest.approx(0.00009)


def test_oversubscribed_gpu_is_full(scores):
    assert scores(CompactFirstScorer, [gpu(1.4, inf)]) == [1.0]


def test_tf_19_physical_capacity_counts_unless_virtual_is_asked_for(scores):
    # 40 of 80 GiB sold, and 40 of 120; TFLOPS are not oversold
    oversold = gpu(0.5, 0.25)
    oversold = structs.replace(oversold, attributes={**oversold.attributes, VRAM_USED + VIRTUAL: 1 / 3})
    plain = gpu(0.5, 0.25)
    # 0.7 * 0.5 + 0.3 * 0.25, and 0.7 / 3 + 0.3 * 0.25
    assert scores(CompactFirstScorer, [oversold, plain]) == pytest.approx([0.425, 0.425])
    virtual = scores(CompactFirstScorer, [oversold, plain], useVirtualCapacity=True)
    assert virtual == pytest.approx([0.7 / 3 + 0.075, 0.425])


def test_tf_2_engine_speaks_where_no_allocator_does(scores):
    # 0.7 * 0.5 + 0.3 * 64/256; the GPU's utilization for an unknown batch; memory alone
    columns = {"kv_usage": [0.5, 0.5, 0.5], "running": [64, nan, nan]}
    reported = {"GPUUtilization": [0.9, 0.9, nan]}
    found = scores(CompactFirstScorer, [NO_TAG] * 3, columns=columns, reported=reported)
    assert found == pytest.approx([0.425, 0.62, 0.5])


def test_tf_2_allocator_goes_before_the_engine_for_each_resource(scores):
    # 0.7 * 0.25 + 0.3 * 128/128
    columns = {"kv_usage": [0.9], "running": [500]}
    assert scores(CompactFirstScorer, [gpu(vram=0.25)], columns=columns, maxNumSeqs=128) == pytest.approx([0.475])


def test_unknown_use_is_that_of_one_with_as_many_requests(scores):
    tags = [gpu(0.4, 0.4), NO_TAG, NO_TAG]
    # 10 requests use 0.4: 5 use 0.2, and 20 use 0.8
    found = scores(CompactFirstScorer, tags, columns={"in_flight": [10, 5, 20]})
    assert found == pytest.approx([0.4, 0.2, 0.8])
    assert scores(LowLoadFirstScorer, tags, columns={"in_flight": [10, 5, 20]}) == pytest.approx([0.6, 0.8, 0.2])


def test_tf_3_node_goes_before_the_endpoint(scores):
    # node a: 0.9 and 0.5 used, 0.7 on average; node b: 0.1 and 0.5, 0.3 on average
    tags = [gpu(0.9, 0.9, "a"), gpu(0.5, 0.5, "a"), gpu(0.1, 0.1, "b"), gpu(0.5, 0.5, "b")]
    found = scores(NodeCompactGpuLowLoadScorer, tags)
    # bands 7 and 3: (7 + 0.99 * 0.1) / 9.99 and so on
    assert found == pytest.approx([7.099 / 9.99, 7.495 / 9.99, 3.891 / 9.99, 3.495 / 9.99])


def test_tf_3_better_node_band_beats_any_endpoint(scores):
    # node a is in band 5, its second endpoint empty; node b in band 6, its only endpoint full but for a third
    tags = [gpu(1.0, 1.0, "a"), gpu(0.0, 0.0, "a"), gpu(0.65, 0.65, "b")]
    found = scores(NodeCompactGpuLowLoadScorer, tags)
    assert found[2] > found[1] > found[0]


def test_tf_3_bands_say_how_close_nodes_may_be(scores):
    # 0.4 and 0.6 used: with one band both nodes are alike and the emptier endpoint wins
    tags = [gpu(0.4, 0.4, "a"), gpu(0.6, 0.6, "b")]
    assert np.argmax(scores(NodeCompactGpuLowLoadScorer, tags)) == 1
    assert scores(NodeCompactGpuLowLoadScorer, tags, bands=1) == pytest.approx([0.6, 0.4])


def test_defect_20_node_with_more_gpus_has_no_advantage(scores):
    # four GPUs half full against one half full
    tags = [*[gpu(0.5, 0.5, "large")] * 4, gpu(0.5, 0.5, "small")]
    found = scores(NodeCompactGpuLowLoadScorer, tags)
    assert found == pytest.approx([5.495 / 9.99] * 5)


def test_tf_3_endpoints_of_the_node_count_even_where_they_are_no_candidates(build):
    pool = candidates(records={ACCELERATOR: [gpu(0.9, 0.9, "a"), gpu(0.1, 0.1, "a"), gpu(0.3, 0.3, "b")]})
    narrowed = pool.keep(np.array([False, True, True]))
    plugin = build(NodeCompactGpuLowLoadScorer, combine="weighted", nodeWeight=1)
    assert plugin.score(Request("r"), narrowed).tolist() == pytest.approx([0.5, 0.3])


def test_unknown_nodes_and_nodes_of_other_clusters_are_not_one_node(scores):
    tags = [gpu(0.2, 0.2), gpu(0.8, 0.8), gpu(0.4, 0.4, "a"), gpu(0.6, 0.6, "a", "other")]
    found = scores(NodeCompactGpuLowLoadScorer, tags, combine="weighted", nodeWeight=1)
    assert found == pytest.approx([0.2, 0.8, 0.4, 0.6])


def test_gpus_without_capacity_do_not_count_for_their_node(scores):
    tags = [gpu(0.6, 0.6, "a"), gpu(nan, nan, "a")]
    assert scores(NodeCompactGpuLowLoadScorer, tags, combine="weighted", nodeWeight=1) == pytest.approx([0.6, 0.0])


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"bands": 0}, "bands is 0; it must be at least 1"),
        ({"nodeWeight": 1.5}, "nodeWeight is 1.5; it must be between 0 and 1"),
        ({"maxNumSeqs": 0}, "maxNumSeqs is 0; it must be at least 1"),
        ({"combine": "sum"}, "sum"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(build, parameters, words):
    with pytest.raises(ConfigurationError, match=words):
        build(NodeCompactGpuLowLoadScorer, **parameters)


TEMPLATES = {
    name: PlacementTemplate(name=name, mode=mode)
    for name, mode in (
        ("packed", PlacementMode.COMPACT_FIRST),
        ("spread", PlacementMode.LOW_LOAD_FIRST),
        ("nodes", PlacementMode.NODE_COMPACT),
    )
}


def scored(build, *own, **parameters):
    """Scores of endpoints with a fourth of everything used, by the names of their pools' templates."""
    tags = [AcceleratorTag(attributes={VRAM_USED: 0.25, TFLOPS_USED: 0.25})] * len(own)
    records = {ACCELERATOR: tags, PLACEMENT: [EndpointPlacement(own=name, templates=TEMPLATES) for name in own]}
    return build(PlacementTemplateScorer, **parameters).score(Request("r"), candidates(records=records)).tolist()


NODES = (2 + 0.99 * 0.75) / 9.99  # band 2 of 10


def test_tf_1_each_endpoint_is_scored_by_the_mode_of_its_pool(build):
    assert scored(build, "packed", "spread", "nodes") == pytest.approx([0.25, 0.75, NODES])


@pytest.mark.parametrize(("template", "score"), [("packed", 0.25), ("spread", 0.75), ("nodes", NODES)])
def test_tf_1_template_may_be_named(build, template, score):
    assert scored(build, "packed", "spread", "", template=template) == pytest.approx([score] * 3)


def test_tf_1_default_mode_counts_without_a_template(build):
    assert scored(build, "", "lost") == pytest.approx([NODES] * 2)
    assert scored(build, "", "lost", defaultMode="CompactFirst") == pytest.approx([0.25] * 2)
    assert scored(build, "packed", template="lost", defaultMode="LowLoadFirst") == pytest.approx([0.75])


def test_tf_1_weights_and_bands_are_those_of_the_modes(build):
    assert scored(build, "nodes", bands=1) == pytest.approx([0.75])
    with pytest.raises(ConfigurationError, match="all 0"):
        scored(build, "nodes", vramWeight=0, tflopsWeight=0)


def test_tf_1_mode_that_there_is_not_is_refused(build):
    with pytest.raises(ConfigurationError, match="'Tetris' is not known"):
        scored(build, "nodes", defaultMode="Tetris")


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
