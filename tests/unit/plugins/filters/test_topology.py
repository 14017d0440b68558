# SPDX-License-Identifier: Apache-2.0
"""Filters by the location of endpoints."""

import numpy as np
import pytest

from epp.framework import ConfigurationError, Request, Topology
from epp.framework.accelerators.tag import NO_TAG, AcceleratorTag, Device, DeviceLink
from epp.framework.snapshot import ACCELERATOR, NODE_LABELS, TOPOLOGY
from epp.framework.testing import candidates, run_scheduling
from epp.plugins.topology_filters import GpuTopologyFilter, NodeAffinityFilter, SameNodeFilter, TopologyAffinityFilter
from tests.support.plugins import built


def kept(plugin, tags, *, peer=0, **parameters):
    made = built(plugin, parameters)
    return made.filter(Request("r"), candidates(accelerators=tags).within("decode", peer)).tolist()


def gpu(name, node, numa=None, *links):
    device = Device(id=name, node=node, numa=numa, links=tuple(DeviceLink(peer=link) for link in links))
    return AcceleratorTag(node=node, devices=(device,))


TIERS = [gpu("p", "a", 0, "direct"), gpu("direct", "b"), gpu("s", "a", 0), gpu("o", "a", 1), gpu("e", "c", 0)]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"maxAllowedTier": 0}, [True, True, False, False, False]),
        ({"maxAllowedTier": 1}, [True, True, True, False, False]),
        ({"maxAllowedTier": 2}, [True, True, True, True, False]),
        ({"maxAllowedTier": 3}, [True, True, True, True, True]),
        ({}, [True, True, True, False, False]),
    ],
)
def test_tf_14_hard_mode_keeps_tiers_up_to_the_limit(parameters, expected):
    assert kept(GpuTopologyFilter, TIERS, **parameters) == expected


def test_tf_14_there_is_no_tier_4():
    with pytest.raises(ConfigurationError, match="maxAllowedTier is 4; it must be between 0 and 3"):
        kept(GpuTopologyFilter, TIERS, maxAllowedTier=4)


def on(node, cluster=""):
    return AcceleratorTag(node=node, cluster=cluster)


@pytest.mark.parametrize(
    ("tags", "parameters", "expected"),
    [
        ([on("a"), on("a"), on("b"), on("a", "west"), NO_TAG], {}, [True, True, False, False, False]),
        # an unknown node may pass
        ([on("a"), on("b"), NO_TAG], {"onUnknown": "Pass"}, [True, False, True]),
        ([NO_TAG, on("b"), NO_TAG], {"onUnknown": "Pass"}, [True, True, True]),
        ([NO_TAG, on("b"), NO_TAG], {}, [True, False, False]),
    ],
)
def test_tf_4_same_node_keeps_the_node_of_the_peer_and_denies_others(tags, parameters, expected):
    assert kept(SameNodeFilter, tags, **parameters) == expected


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


PLACES = [
    Topology("h1", "r1", "z1", "eu"),  # 0, the peer
    Topology("h1", "r1", "z1", "eu"),
    Topology("h2", "r1", "z1", "eu"),
    Topology("h3", "r2", "z1", "eu"),
    Topology("h4", "r3", "z2", "eu"),
    Topology("h5", "r4", "z3", "us"),
    Topology(),
]
PREFILLERS = candidates(records={TOPOLOGY: PLACES}).keep(np.arange(7) > 0)
FEW = PREFILLERS.keep(np.arange(6) < 4)
CLUSTERS = candidates(records={TOPOLOGY: [Topology(cluster=name) for name in ("east", "east", "west")]})


@pytest.mark.parametrize(
    ("pool", "peer", "parameters", "expected"),
    [
        (PREFILLERS, 0, {"minAffinity": "host"}, [True, False, False, False, False, False]),
        (PREFILLERS, 0, {}, [True, False, False, False, False, False]),
        (PREFILLERS, 0, {"minAffinity": "rack"}, [True, True, False, False, False, False]),
        (PREFILLERS, 0, {"minAffinity": "zone"}, [True, True, True, False, False, False]),
        (PREFILLERS, 0, {"minAffinity": "region"}, [True, True, True, True, False, False]),
        # none is close enough; the place of the peer is not known; there is no peer
        (FEW, 5, {"minAffinity": "zone"}, [True] * 4),
        (PREFILLERS, 6, {"minAffinity": "region"}, [True] * 6),
        (PREFILLERS, None, {}, [True] * 6),
    ],
)
def test_level_or_closer_stays(pool, peer, parameters, expected):
    assert near(pool, peer, **parameters) == expected


def near(pool, peer, **parameters):
    return built(TopologyAffinityFilter, parameters).filter(Request("r"), pool.within("prefill", peer)).tolist()


def test_gie_8_cluster_is_the_widest_level():
    assert near(CLUSTERS, 0, minAffinity="cluster") == [True, True, False]
    assert near(CLUSTERS, 0, minAffinity="region") == [True] * 3


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


BOTH = {"matchExpressions": [*term("zone", "Exists")["matchExpressions"], *term("spot", "Exists")["matchExpressions"]]}
NOT_SPOT = [term("spot", "DoesNotExist")]


@pytest.mark.parametrize(
    ("nodes", "parameters", "expected"),
    [
        # one term is enough, and all its tests must hold
        (NODES, {"nodeSelectorTerms": [BOTH]}, "b"),
        (NODES, {"nodeSelectorTerms": [BOTH, term("zone", "DoesNotExist")]}, "bc"),
        # the selector and the terms both count
        (NODES, {"nodeSelector": {"zone": "z2"}}, "b"),
        (NODES, {"nodeSelector": {"zone": "z2"}, "nodeSelectorTerms": [term("gpus", "Gt", "4")]}, ""),
        # an unknown node is dropped unless it may pass
        ([*NODES, {}], {"nodeSelectorTerms": NOT_SPOT}, "ac"),
        ([*NODES, {}], {"nodeSelectorTerms": NOT_SPOT, "onUnknown": "Pass"}, "ac?"),
    ],
)
def test_tf_4_node_affinity_combines_terms_and_selector(nodes, parameters, expected):
    assert selected(nodes, **parameters) == expected


def test_without_a_selector_it_says_that_it_selects_every_node():
    assert selected() == "abc"
    assert build().warnings == ("it selects every node: set nodeSelector or nodeSelectorTerms, or remove it",)
    assert build(nodeSelector={"a": "b"}).warnings == ()
