# SPDX-License-Identifier: Apache-2.0
"""Packing of GPUs and nodes."""

from math import inf, nan

import numpy as np
import pytest

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
from epp.framework.testing import candidates
from epp_scorers.gpu_packing import (
    CompactFirstScorer,
    GpuNeighbourScorer,
    LowLoadFirstScorer,
    NodeCompactGpuLowLoadScorer,
    PlacementTemplateScorer,
)
from tests.support.plugins import built
from tests.support.scoring import scores

ALL = (CompactFirstScorer, LowLoadFirstScorer, NodeCompactGpuLowLoadScorer)
BY_NODE = {"combine": "weighted", "nodeWeight": 1}


def gpu(vram=None, tflops=None, node="", cluster="", **attributes):
    said = {VRAM_USED: vram, TFLOPS_USED: tflops} | attributes
    known = {name: value for name, value in said.items() if value is not None}
    return AcceleratorTag(node=node, cluster=cluster, attributes=known)


def both(used, node="", cluster=""):
    return gpu(used, used, node, cluster)


@pytest.mark.parametrize(
    ("plugin", "parameters", "expected"),
    [
        # 0.7 * 0.25 + 0.3 * 0.5, unrounded; 0; 0.7 * 0.9 + 0.3 * 0.1; 1
        (CompactFirstScorer, {}, [0.325, 0.0, 0.66, 1.0]),
        (LowLoadFirstScorer, {}, [0.675, 1.0, 0.34, 0.0]),
        (NodeCompactGpuLowLoadScorer, BY_NODE, [0.325, 0.0, 0.66, 1.0]),
        (NodeCompactGpuLowLoadScorer, {"combine": "weighted", "nodeWeight": 0}, [0.675, 1.0, 0.34, 0.0]),
    ],
)
def test_tf_2_modes_score_what_is_used_or_left_of_memory_and_tflops(plugin, parameters, expected):
    tags = [gpu(0.25, 0.50), gpu(0.0, 0.0), gpu(0.9, 0.1), gpu(1.0, 1.0)]
    assert scores(plugin, tags, **parameters) == pytest.approx(expected)


@pytest.mark.parametrize("plugin", ALL)
def test_defect_19_weights_that_are_all_zero_are_refused(plugin):
    with pytest.raises(ConfigurationError, match="vramWeight and tflopsWeight are all 0"):
        built(plugin, {"vramWeight": 0, "tflopsWeight": 0})


def test_tf_2_weights_can_be_set():
    # 0.25 counts three times, 0.5 once: 1.25 / 4
    assert scores(CompactFirstScorer, [gpu(0.25, 0.5)], vramWeight=3, tflopsWeight=1) == pytest.approx([0.3125])
    assert scores(CompactFirstScorer, [gpu(0.25, 0.5)], vramWeight=0) == [0.5]


@pytest.mark.parametrize("plugin", ALL)
@pytest.mark.parametrize("nothing", [nan, -1.0])
def test_defect_21_no_capacity_gets_nothing(plugin, nothing):
    assert scores(plugin, [gpu(nothing, 0.5), gpu(0.5, nothing)]) == [0.0, 0.0]


def test_defect_21_scores_are_not_rounded():
    # 0.3250 and 0.3251 are the same in per cent
    low, high = scores(CompactFirstScorer, [gpu(0.25, 0.5), gpu(0.25, 0.5003)])
    assert high - low == pytest.approx(0.00009)


def test_oversubscribed_gpu_is_full():
    assert scores(CompactFirstScorer, [gpu(1.4, inf)]) == [1.0]


def test_tf_19_physical_capacity_counts_unless_virtual_is_asked_for():
    # 40 of 80 GiB sold, and 40 of 120; TFLOPS are not oversold
    tags = [gpu(0.5, 0.25, **{VRAM_USED + VIRTUAL: 1 / 3}), gpu(0.5, 0.25)]
    # 0.7 * 0.5 + 0.3 * 0.25, and 0.7 / 3 + 0.3 * 0.25
    assert scores(CompactFirstScorer, tags) == pytest.approx([0.425, 0.425])
    assert scores(CompactFirstScorer, tags, useVirtualCapacity=True) == pytest.approx([0.7 / 3 + 0.075, 0.425])


def test_tf_2_engine_speaks_where_no_allocator_does():
    # 0.7 * 0.5 + 0.3 * 64/256; the GPU's utilization for an unknown batch; memory alone
    load = {"kv_usage": [0.5, 0.5, 0.5], "running": [64, nan, nan], "reported": {"GPUUtilization": [0.9, 0.9, nan]}}
    assert scores(CompactFirstScorer, [NO_TAG] * 3, **load) == pytest.approx([0.425, 0.62, 0.5])
    # the allocator goes before the engine for each resource: 0.7 * 0.25 + 0.3 * 128/128
    found = scores(CompactFirstScorer, [gpu(vram=0.25)], kv_usage=[0.9], running=[500], maxNumSeqs=128)
    assert found == pytest.approx([0.475])


def test_unknown_use_is_that_of_one_with_as_many_requests():
    tags = [both(0.4), NO_TAG, NO_TAG]
    # 10 requests use 0.4: 5 use 0.2, and 20 use 0.8
    assert scores(CompactFirstScorer, tags, in_flight=[10, 5, 20]) == pytest.approx([0.4, 0.2, 0.8])
    assert scores(LowLoadFirstScorer, tags, in_flight=[10, 5, 20]) == pytest.approx([0.6, 0.8, 0.2])


def test_tf_3_node_goes_before_the_endpoint():
    # node a: 0.9 and 0.5 used, 0.7 on average; node b: 0.1 and 0.5, 0.3 on average
    found = scores(NodeCompactGpuLowLoadScorer, [both(0.9, "a"), both(0.5, "a"), both(0.1, "b"), both(0.5, "b")])
    # bands 7 and 3: (7 + 0.99 * 0.1) / 9.99 and so on
    assert found == pytest.approx([7.099 / 9.99, 7.495 / 9.99, 3.891 / 9.99, 3.495 / 9.99])
    # node a is in band 5, its second endpoint empty; node b in band 6, its only endpoint full but for a third
    full, empty, better = scores(NodeCompactGpuLowLoadScorer, [both(1.0, "a"), both(0.0, "a"), both(0.65, "b")])
    assert better > empty > full


def test_tf_3_bands_say_how_close_nodes_may_be():
    # 0.4 and 0.6 used: with one band both nodes are alike and the emptier endpoint wins
    tags = [both(0.4, "a"), both(0.6, "b")]
    assert np.argmax(scores(NodeCompactGpuLowLoadScorer, tags)) == 1
    assert scores(NodeCompactGpuLowLoadScorer, tags, bands=1) == pytest.approx([0.6, 0.4])


def test_defect_20_node_with_more_gpus_has_no_advantage():
    # four GPUs half full against one half full
    found = scores(NodeCompactGpuLowLoadScorer, [*[both(0.5, "large")] * 4, both(0.5, "small")])
    assert found == pytest.approx([5.495 / 9.99] * 5)


def test_tf_3_endpoints_of_the_node_count_even_where_they_are_no_candidates():
    pool = candidates(accelerators=[both(0.9, "a"), both(0.1, "a"), both(0.3, "b")])
    narrowed = pool.keep(np.array([False, True, True]))
    plugin = built(NodeCompactGpuLowLoadScorer, BY_NODE)
    assert plugin.score(Request("r"), narrowed).tolist() == pytest.approx([0.5, 0.3])


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        # unknown nodes and nodes of other clusters are not one node
        ([both(0.2), both(0.8), both(0.4, "a"), both(0.6, "a", "other")], [0.2, 0.8, 0.4, 0.6]),
        # GPUs without capacity do not count for their node
        ([both(0.6, "a"), gpu(nan, 0.2, "a")], [0.6, 0.0]),
    ],
)
def test_node_is_that_of_its_gpus_with_capacity(tags, expected):
    assert scores(NodeCompactGpuLowLoadScorer, tags, **BY_NODE) == pytest.approx(expected)


MODES = dict(zip(("packed", "spread", "nodes"), PlacementMode, strict=True))
TEMPLATES = {name: PlacementTemplate(name=name, mode=mode) for name, mode in MODES.items()}
NODES = (2 + 0.99 * 0.75) / 9.99  # band 2 of 10


def by_template(*own, **parameters):
    """Scores of endpoints with a fourth of everything used, by the names of their pools' templates."""
    placements = {PLACEMENT: [EndpointPlacement(own=name, templates=TEMPLATES) for name in own]}
    return scores(PlacementTemplateScorer, [both(0.25)] * len(own), records=placements, **parameters)


@pytest.mark.parametrize(
    ("own", "parameters", "expected"),
    [
        (["packed", "spread", "nodes"], {}, [0.25, 0.75, NODES]),  # each by the mode of its pool
        (["packed", "spread", ""], {"template": "packed"}, [0.25] * 3),
        (["packed", "spread", ""], {"template": "spread"}, [0.75] * 3),
        (["packed", "spread", ""], {"template": "nodes"}, [NODES] * 3),
        (["", "lost"], {}, [NODES] * 2),  # the default mode
        (["", "lost"], {"defaultMode": "CompactFirst"}, [0.25] * 2),
        (["packed"], {"template": "lost", "defaultMode": "LowLoadFirst"}, [0.75]),
        (["nodes"], {"bands": 1}, [0.75]),  # bands are those of the mode
    ],
)
def test_tf_1_template_of_the_pool_or_of_the_plugin_decides_the_mode(own, parameters, expected):
    assert by_template(*own, **parameters) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [({"vramWeight": 0, "tflopsWeight": 0}, "all 0"), ({"defaultMode": "Tetris"}, "'Tetris' is not known")],
)
def test_tf_1_parameters_that_mean_nothing_are_refused(parameters, words):
    with pytest.raises(ConfigurationError, match=words):
        by_template("nodes", **parameters)


def part_of(gpu, kind=Sharing.MIG, cluster=""):
    return AcceleratorTag(partition=Partition(kind=kind, parent_id=gpu), cluster=cluster)


def test_is_8_endpoint_alone_on_its_device_is_chosen_on_equal_load():
    # the first two have 3 requests beside them, which is the most: 1 - 0.25; the third has none
    tags = [part_of("GPU-a"), part_of("GPU-a"), part_of("GPU-b")]
    assert scores(GpuNeighbourScorer, tags, running=[3, 3, 3], waiting=[0, 0, 0]) == [0.75, 0.75, 1.0]


def test_is_8_neighbours_weigh_by_how_the_device_is_divided():
    tags = [part_of(f"GPU-{kind}", kind) for kind in Sharing for _ in range(2)]
    found = scores(GpuNeighbourScorer, tags, running=[2] * len(tags), waiting=[2] * len(tags))
    by_kind = dict(zip(Sharing, found[::2], strict=True))
    assert by_kind[Sharing.MIG] == by_kind[Sharing.AMD] == by_kind[Sharing.CORES] == 0.75
    assert by_kind[Sharing.MPS] == 0.25
    assert by_kind[Sharing.TIME_SLICING] == by_kind[Sharing.VGPU] == by_kind[Sharing.NONE] == 0.0


TWO = AcceleratorTag(devices=(Device(id="GPU-a"), Device(id="GPU-b")))
ON_A = AcceleratorTag(devices=(Device(id="MIG-1", parent_id="GPU-a"), Device(id="MIG-2", parent_id="GPU-a")))
ON_B = AcceleratorTag(devices=(Device(id="GPU-b"),))


@pytest.mark.parametrize(
    ("tags", "load", "expected"),
    [
        # beside the first 2 + 2 requests, beside the second 1: 1 - 4/4 and 1 - 1/4
        ([part_of("GPU-a", Sharing.TIME_SLICING)] * 2, {"running": [1, 2], "waiting": [0, 2]}, [0.0, 0.75]),
        # requests in flight stand in for an engine that has not reported
        (
            [part_of("GPU-a", Sharing.MPS)] * 2,
            {"running": [nan, 0], "waiting": [0, 0], "in_flight": [5, 7]},
            [1.0, 0.25],
        ),
        # the busiest of several devices: beside the first 1 on GPU-a and 4 on GPU-b, beside the others 2
        ([TWO, ON_A, ON_B], {"running": [2, 1, 4], "waiting": [0, 0, 0]}, [0.0, 0.5, 0.5]),
        # the same id in another cluster is another device
        ([part_of("0"), part_of("0", cluster="b")], {"running": [4, 4], "waiting": [0, 0]}, [1.0, 1.0]),
        # idle neighbours, and unknown devices
        ([part_of("GPU-a")] * 2, {}, [1.0, 1.0]),
        ([NO_TAG, NO_TAG], {"in_flight": [3, 3]}, [1.0, 1.0]),
    ],
)
def test_load_of_neighbours_on_the_same_device_costs(tags, load, expected):
    assert scores(GpuNeighbourScorer, tags, **load) == expected


def test_neighbour_counts_even_where_it_is_no_candidate():
    tags = [part_of("GPU-a"), part_of("GPU-a"), part_of("GPU-b")]
    narrowed = candidates(accelerators=tags, running=[4, 0, 0], waiting=[0, 0, 0]).keep(np.array([False, True, True]))
    assert GpuNeighbourScorer().score(Request("r"), narrowed).tolist() == [0.75, 1.0]
