# SPDX-License-Identifier: Apache-2.0
"""Placement templates, and the requests on one node or device."""

from math import nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import ConfigurationError, Request
from epp.framework.accelerators.arrays import PLACEMENT, EndpointPlacement, PlacementTemplate
from epp.framework.accelerators.tag import NO_TAG, AcceleratorTag, Device
from epp.framework.refusals import SaturatedError
from epp.framework.snapshot import ACCELERATOR, NODE_LABELS
from epp.framework.testing import candidates, run_profile
from epp.plugins.placement import NodeConcurrencyFilter, PlacementTemplateFilter
from tests.support.plugins import built

TEMPLATES = {
    each.name: each
    for each in (
        PlacementTemplate(name="few", most_connections=3),
        PlacementTemplate(name="zone", zone_label="zone"),
        PlacementTemplate(name="rack", zone_label="rack"),
        PlacementTemplate(name="remote", allow_local_gpu=False),
    )
}


def build(**parameters):
    return built(PlacementTemplateFilter, parameters)


def kept(own, *, peer=None, local=(), nodes=None, devices=None, parameters=None, **columns):
    records = {
        PLACEMENT: [
            EndpointPlacement(own=name, templates=TEMPLATES, is_local=i in local) for i, name in enumerate(own)
        ],
        NODE_LABELS: nodes or [{}] * len(own),
        ACCELERATOR: [AcceleratorTag(devices=(Device(id=name),)) for name in devices or map(str, range(len(own)))],
    }
    pool = candidates(records=records, **columns).within("p", peer)
    return build(**parameters or {}).filter(Request("r"), pool).tolist()


def test_tf_1_gpu_with_too_many_connections_gets_no_more():
    # two endpoints share g, with 1 + 2 requests; the last one has no template
    own, devices = ["few", "few", "few", ""], ["g", "g", "h", "i"]
    assert kept(own, devices=devices, in_flight=[1, 2, 2, 9]) == [False, False, True, True]


def test_tf_1_all_legs_are_in_one_zone():
    nodes = [{"zone": "z1"}, {"zone": "z1"}, {"zone": "z2"}, {}, {"zone": "z2"}]
    own = ["zone"] * 4 + [""]
    assert kept(own, peer=0, nodes=nodes) == [True, True, False, True, True]
    assert kept(own, peer=None, nodes=nodes) == [True] * 5  # the first leg is free to choose
    assert kept(own, peer=3, nodes=nodes) == [True] * 5  # the peer's zone is unknown


def test_tf_1_each_template_has_its_own_label():
    nodes = [{"zone": "z1", "rack": "r1"}, {"zone": "z2", "rack": "r1"}, {"zone": "z1", "rack": "r2"}]
    assert kept(["zone", "zone", "rack"], peer=0, nodes=nodes) == [True, False, False]
    assert kept(["zone", "rack", "zone"], peer=0, nodes=nodes) == [True, True, True]


def test_tf_1_local_gpus_may_be_forbidden():
    assert kept(["remote", "remote", "few"], local={0, 2}) == [False, True, True]


def test_tf_1_named_template_counts_for_all():
    named = {"template": "few"}
    assert kept(["", "remote"], local={1}, parameters=named, in_flight=[3, 2]) == [False, True]
    assert kept(["few"], parameters={"template": "lost"}, in_flight=[3]) == [True]


def capped(**parameters):
    return built(NodeConcurrencyFilter, parameters)


def kept_below(tags, parameters, **columns):
    return capped(**parameters).filter(Request("r"), candidates(records={ACCELERATOR: tags}, **columns)).tolist()


def on(node, *devices, cluster=""):
    return AcceleratorTag(node=node, cluster=cluster, devices=tuple(Device(id=name) for name in devices))


def test_tf_17_requests_of_a_node_add_up():
    # node a has 3 + 2 of 5 requests, node b 4
    tags = [on("a"), on("a"), on("b")]
    assert kept_below(tags, {"maxRequestsPerNode": 5}, in_flight=[3, 2, 4]) == [False, False, True]
    assert kept_below(tags, {"maxRequestsPerNode": 6}, in_flight=[3, 2, 4]) == [True, True, True]


def test_tf_17_requests_of_a_device_add_up():
    # g has 3 + 2, h 2 + 1: the endpoint on both is as full as g
    tags = [on("a", "g"), on("a", "g", "h"), on("a", "h")]
    assert kept_below(tags, {"maxRequestsPerDevice": 4}, in_flight=[3, 2, 1]) == [False, False, True]


def test_tf_17_slices_count_for_their_gpu():
    tags = [AcceleratorTag(devices=(Device(id=name, parent_id="g"),)) for name in ("m1", "m2")]
    assert kept_below(tags, {"maxRequestsPerDevice": 2}, in_flight=[1, 1]) == [False, False]


def test_tf_17_is_off_by_default():
    assert kept_below([on("a")], {}, in_flight=[1e9]) == [True]
    assert "no effect" in capped().warnings[0]
    assert not capped(maxRequestsPerNode=1).warnings


def test_tf_17_engine_knows_of_the_requests_of_others():
    # 2 of ours, 4 waiting and 3 running in all; the second one does not report
    assert kept_below(
        [on("a"), on("b")], {"maxRequestsPerNode": 7}, in_flight=[2, 2], waiting=[4, nan], running=[3, nan]
    ) == [False, True]


def test_tf_17_unknown_places_count_by_themselves_and_clusters_apart():
    tags = [NO_TAG, NO_TAG, on("a"), on("a", cluster="west")]
    limits = {"maxRequestsPerNode": 2, "maxRequestsPerDevice": 2}
    assert kept_below(tags, limits, in_flight=[1, 2, 1, 1]) == [True, False, True, True]


def test_tf_17_endpoints_that_are_no_candidates_count():
    pool = candidates(records={ACCELERATOR: [on("a"), on("a"), on("b")]}, in_flight=[2, 0, 0])
    rest = pool.keep(np.array([False, True, True]))
    assert capped(maxRequestsPerNode=2).filter(Request("r"), rest).tolist() == [False, True]


def test_tf_17_full_nodes_refuse_as_saturated():
    pool = candidates(records={ACCELERATOR: [on("a")]}, in_flight=[1])
    with pytest.raises(SaturatedError):
        run_profile([capped(maxRequestsPerNode=1)], pool)


def test_tf_17_negative_limit_is_refused():
    with pytest.raises(ConfigurationError, match="maxRequestsPerNode is -1; it must be 0 or more"):
        capped(maxRequestsPerNode=-1)


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sets(st.sampled_from("gh")), st.integers(0, 5)), min_size=1, max_size=8
    ),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_tf_17_agrees_with_the_definition(rows, per_node, per_device):
    tags = [on(node, *devices) for node, devices, _ in rows]

    def allowed(node, devices, own):
        on_node = sum(count for other, _, count in rows if other == node)
        on_devices = [sum(count for _, others, count in rows if device in others) for device in devices] or [own]
        return on_node < per_node and max(on_devices) < per_device

    limits = {"maxRequestsPerNode": per_node, "maxRequestsPerDevice": per_device}
    expected = [allowed(*row) for row in rows]
    assert kept_below(tags, limits, in_flight=[count for *_, count in rows]) == expected
