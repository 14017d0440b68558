# SPDX-License-Identifier: Apache-2.0
"""Limits of requests on one node, and on one device."""

from math import nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import ConfigurationError, Request
from epp.framework.accelerators.tag import NO_TAG, AcceleratorTag, Device
from epp.framework.errors import SaturatedError
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates, run_profile
from epp.plugins.accelerators.placement import NodeConcurrencyFilter
from tests.support.plugins import built


def build(**parameters):
    return built(NodeConcurrencyFilter, parameters)


def kept(tags, parameters, **columns):
    return build(**parameters).filter(Request("r"), candidates(records={ACCELERATOR: tags}, **columns)).tolist()


def on(node, *devices, cluster=""):
    return AcceleratorTag(node=node, cluster=cluster, devices=tuple(Device(id=name) for name in devices))


def test_tf_17_requests_of_a_node_add_up():
    # node a has 3 + 2 of 5 requests, node b 4
    tags = [on("a"), on("a"), on("b")]
    assert kept(tags, {"maxRequestsPerNode": 5}, in_flight=[3, 2, 4]) == [False, False, True]
    assert kept(tags, {"maxRequestsPerNode": 6}, in_flight=[3, 2, 4]) == [True, True, True]


def test_tf_17_requests_of_a_device_add_up():
    # g has 3 + 2, h 2 + 1: the endpoint on both is as full as g
    tags = [on("a", "g"), on("a", "g", "h"), on("a", "h")]
    assert kept(tags, {"maxRequestsPerDevice": 4}, in_flight=[3, 2, 1]) == [False, False, True]


def test_tf_17_slices_count_for_their_gpu():
    tags = [AcceleratorTag(devices=(Device(id=name, parent_id="g"),)) for name in ("m1", "m2")]
    assert kept(tags, {"maxRequestsPerDevice": 2}, in_flight=[1, 1]) == [False, False]


def test_tf_17_is_off_by_default():
    assert kept([on("a")], {}, in_flight=[1e9]) == [True]
    assert "no effect" in build().warnings[0]
    assert not build(maxRequestsPerNode=1).warnings


def test_tf_17_engine_knows_of_the_requests_of_others():
    # 2 of ours, 4 waiting and 3 running in all; the second one does not report
    assert kept(
        [on("a"), on("b")], {"maxRequestsPerNode": 7}, in_flight=[2, 2], waiting=[4, nan], running=[3, nan]
    ) == [
        False,
        True,
    ]


def test_tf_17_unknown_places_count_by_themselves_and_clusters_apart():
    tags = [NO_TAG, NO_TAG, on("a"), on("a", cluster="west")]
    limits = {"maxRequestsPerNode": 2, "maxRequestsPerDevice": 2}
    assert kept(tags, limits, in_flight=[1, 2, 1, 1]) == [True, False, True, True]


def test_tf_17_endpoints_that_are_no_candidates_count():
    pool = candidates(records={ACCELERATOR: [on("a"), on("a"), on("b")]}, in_flight=[2, 0, 0])
    rest = pool.keep(np.array([False, True, True]))
    assert build(maxRequestsPerNode=2).filter(Request("r"), rest).tolist() == [False, True]


def test_tf_17_full_nodes_refuse_as_saturated():
    pool = candidates(records={ACCELERATOR: [on("a")]}, in_flight=[1])
    with pytest.raises(SaturatedError):
        run_profile([build(maxRequestsPerNode=1)], pool)


def test_tf_17_negative_limit_is_refused():
    with pytest.raises(ConfigurationError, match="maxRequestsPerNode is -1; it must be 0 or more"):
        build(maxRequestsPerNode=-1)


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
    assert kept(tags, limits, in_flight=[count for *_, count in rows]) == expected
