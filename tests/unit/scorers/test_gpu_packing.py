# SPDX-License-Identifier: Apache-2.0
"""Full GPUs first, empty GPUs first, and full nodes with empty GPUs."""

from math import inf, nan

import numpy as np
import pytest
from msgspec import structs

from epp.framework import ConfigurationError, Request
from epp.framework.accelerators.tag import NO_TAG, TFLOPS_USED, VIRTUAL, VRAM_USED, AcceleratorTag
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates
from epp_scorers.gpu_packing import CompactFirstScorer, LowLoadFirstScorer, NodeCompactGpuLowLoadScorer

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
