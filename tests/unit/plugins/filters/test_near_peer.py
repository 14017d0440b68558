# SPDX-License-Identifier: Apache-2.0
"""Endpoints kept for their devices' connection to the peer, or for being on its node."""

import pytest

from epp.framework import ConfigurationError, Request
from epp.framework.accelerators.tag import NO_TAG, AcceleratorTag, Device, DeviceLink
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates, run_scheduling
from epp.plugins.filters.topology import GpuTopologyFilter, SameNodeFilter
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
