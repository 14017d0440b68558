# SPDX-License-Identifier: Apache-2.0
"""Endpoints by their place."""

import numpy as np
import pytest

from epp.framework import ConfigurationError, Request, Topology
from epp.framework.accelerators.tag import NO_TAG, AcceleratorTag, Device, DeviceLink
from epp.framework.input_errors import ParameterError, read_parameters
from epp.framework.snapshot import ACCELERATOR, NODE_LABELS, TOPOLOGY
from epp.framework.testing import candidates, run_scheduling
from epp.plugins.topology_filters import (
    GpuTopologyFilter,
    NodeAffinityFilter,
    SameNodeFilter,
    TopologyAffinityFilter,
    TopologyAffinityFilterParameters,
)
from tests.support.plugins import built


def kept(plugin, tags, *, peer=0, **parameters):
    made = built(plugin, parameters)
    return made.filter(Request("r"), candidates(records={ACCELERATOR: tags}).within("decode", peer)).tolist()


def gpu(name, node, numa=None, *links):
    device = Device(id=name, node=node, numa=numa, links=tuple(DeviceLink(peer=link) for link in links))
    return AcceleratorTag(node=node, devices=(device,))


TIERS = [gpu("p", "a", 0, "direct"), gpu("direct", "b"), gpu("s", "a", 0), gpu("o", "a", 1), gpu("e", "c", 0)]


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (0, [True, True, False, False, False]),
        (1, [True, True, True, False, False]),
        (2, [True, True, True, True, False]),
        (3, [True, True, True, True, True]),
    ],
)
def test_tf_14_hard_mode_keeps_tiers_up_to_the_limit(most, expected):
    assert kept(GpuTopologyFilter, TIERS, maxAllowedTier=most) == expected


def test_tf_14_hard_mode_allows_tier_1_by_default():
    assert kept(GpuTopologyFilter, TIERS) == kept(GpuTopologyFilter, TIERS, maxAllowedTier=1)


def test_tf_14_there_is_no_tier_4():
    with pytest.raises(ConfigurationError, match="maxAllowedTier is 4; it must be between 0 and 3"):
        kept(GpuTopologyFilter, TIERS, maxAllowedTier=4)


def on(node, cluster=""):
    return AcceleratorTag(node=node, cluster=cluster)


def test_tf_4_same_node_keeps_the_node_of_the_peer_and_denies_others():
    assert kept(SameNodeFilter, [on("a"), on("a"), on("b"), on("a", "west"), NO_TAG]) == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_tf_4_unknown_node_may_pass():
    assert kept(SameNodeFilter, [on("a"), on("b"), NO_TAG], onUnknown="Pass") == [True, False, True]
    assert kept(SameNodeFilter, [NO_TAG, on("b"), NO_TAG], onUnknown="Pass") == [True, True, True]
    assert kept(SameNodeFilter, [NO_TAG, on("b"), NO_TAG]) == [True, False, False]


@pytest.mark.parametrize("plugin", [SameNodeFilter, GpuTopologyFilter])
def test_tf_4_first_leg_is_free_to_choose(plugin):
    assert kept(plugin, [on("a"), on("b"), NO_TAG], peer=None) == [True, True, True]


CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: decode-filter
- type: prefill-filter
- {type: same-node-filter, parameters: {fallbackOnEmpty: %s}}
- type: queue-scorer
- type: max-score-picker
- type: always-disagg-pd-decider
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
schedulingProfiles:
- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: queue-scorer}, {pluginRef: max-score-picker}]}
- name: prefill
  plugins:
  - pluginRef: prefill-filter
  - pluginRef: same-node-filter
  - pluginRef: queue-scorer
  - pluginRef: max-score-picker
"""


def roles(*names):
    return [{"llm-d.ai/role": name} for name in names]


def test_tf_4_prefill_and_decode_run_on_one_node():
    pool = candidates(
        labels=roles("decode", "prefill", "prefill"),
        waiting=[0, 0, 9],  # the idle one is on another node
        records={ACCELERATOR: [on("a"), on("b"), on("a")]},
    )
    result = run_scheduling(CONFIG % "false", pool)
    assert [leg.targets[0].name for leg in result.profiles.values() if leg] == ["e0", "e2"]


def test_tf_4_no_prefill_endpoint_on_the_node():
    pool = candidates(labels=roles("decode", "prefill"), records={ACCELERATOR: [on("a"), on("b")]})
    alone = run_scheduling(CONFIG % "false", pool)
    assert alone.profiles["prefill"] is None
    assert "x-prefiller-host-port" not in alone.destination.headers
    assert run_scheduling(CONFIG % "true", pool).destination.headers["x-prefiller-host-port"] == "10.0.0.2:8000"


POOL = candidates(
    records={
        TOPOLOGY: [
            Topology("h1", "r1", "z1", "eu"),  # 0, the peer
            Topology("h1", "r1", "z1", "eu"),
            Topology("h2", "r1", "z1", "eu"),
            Topology("h3", "r2", "z1", "eu"),
            Topology("h4", "r3", "z2", "eu"),
            Topology("h5", "r4", "z3", "us"),
            Topology(),
        ]
    }
)
PREFILLERS = POOL.keep(np.array([False, True, True, True, True, True, True]))

REQUEST = Request("r")


def near_enough(peer, pool=PREFILLERS, **parameters):
    plugin = TopologyAffinityFilter(TopologyAffinityFilterParameters(**parameters))
    return plugin.filter(REQUEST, pool.within("prefill", peer)).tolist()


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("host", [True, False, False, False, False, False]),
        ("rack", [True, True, False, False, False, False]),
        ("zone", [True, True, True, False, False, False]),
        ("region", [True, True, True, True, False, False]),
    ],
)
def test_that_level_or_closer_stays(level, expected):
    assert near_enough(0, min_affinity=level) == expected


def test_same_host_is_wanted_by_default():
    assert near_enough(0) == near_enough(0, min_affinity="host")


def test_none_close_enough_keeps_all():
    assert near_enough(5, min_affinity="zone", pool=PREFILLERS.keep(np.arange(6) < 4)) == [True] * 4


def test_peer_whose_place_is_not_known_keeps_all():
    assert near_enough(6, min_affinity="region") == [True] * 6


def test_no_peer_keeps_all():
    assert near_enough(None) == [True] * 6


def test_unknown_level_is_refused():
    with pytest.raises(ParameterError, match="'row' is not known; use 'host', 'rack', 'zone', 'region'"):
        read_parameters(TopologyAffinityFilterParameters, {"minAffinity": "row"})


def test_gie_8_cluster_is_the_widest_level():
    pool = candidates(records={TOPOLOGY: [Topology(cluster=name) for name in ("east", "east", "west")]})
    assert near_enough(0, pool, min_affinity="cluster") == [True, True, False]
    assert near_enough(0, pool, min_affinity="region") == [True] * 3


NODES = [
    {"metadata.name": "a", "zone": "z1", "gpus": "8"},
    {"metadata.name": "b", "zone": "z2", "gpus": "4", "spot": "true"},
    {"metadata.name": "c", "gpus": "many"},
]


def build(**parameters):
    return built(NodeAffinityFilter, parameters)


def selected(nodes=NODES, **parameters):
    pool = candidates(records={NODE_LABELS: nodes})
    mask = build(**parameters).filter(Request("r"), pool)
    return "".join(node.get("metadata.name", "?") for node, keep in zip(nodes, mask, strict=True) if keep)


def term(key, operator, *values):
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        (term("zone", "In", "z1", "z3"), "a"),
        (term("zone", "NotIn", "z1"), "bc"),
        (term("spot", "Exists"), "b"),
        (term("spot", "DoesNotExist"), "ac"),
        (term("gpus", "Gt", "4"), "a"),
        (term("gpus", "Lt", "8"), "b"),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["c"]}]}, "c"),
    ],
)
def test_tf_4_node_affinity_allows_and_denies(test, expected):
    assert selected(nodeSelectorTerms=[test]) == expected


def test_tf_4_one_term_is_enough_and_all_its_tests_must_hold():
    both = {
        "matchExpressions": [*term("zone", "Exists")["matchExpressions"], *term("spot", "Exists")["matchExpressions"]]
    }
    assert selected(nodeSelectorTerms=[both]) == "b"
    assert selected(nodeSelectorTerms=[both, term("zone", "DoesNotExist")]) == "bc"


def test_tf_4_node_selector_and_terms_both_count():
    assert selected(nodeSelector={"zone": "z2"}) == "b"
    assert selected(nodeSelector={"zone": "z2"}, nodeSelectorTerms=[term("gpus", "Gt", "4")]) == ""


def test_tf_4_unknown_node_is_dropped_unless_it_may_pass():
    nodes = [*NODES, {}]
    assert selected(nodes, nodeSelectorTerms=[term("spot", "DoesNotExist")]) == "ac"
    assert selected(nodes, nodeSelectorTerms=[term("spot", "DoesNotExist")], onUnknown="Pass") == "ac?"


def test_without_a_selector_it_says_that_it_selects_every_node():
    assert selected() == "abc"
    assert build().warnings == ("it selects every node: set nodeSelector or nodeSelectorTerms, or remove it",)
    assert build(nodeSelector={"a": "b"}).warnings == ()
