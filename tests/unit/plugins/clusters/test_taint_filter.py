# SPDX-License-Identifier: Apache-2.0
"""Endpoints in clusters with taints."""

import numpy as np
import pytest

from epp.framework import Destination, Headers, ManualClock, ProfileResult, Request, SchedulingResult
from epp.framework.clusters import CLUSTER, NO_STATUS, ClusterStatus, ClusterTaint, TaintEffect
from epp.framework.errors import NoClustersError
from epp.framework.testing import candidates
from epp.plugins.clusters import TaintFilter
from tests.support.plugins import built

UNREACHABLE = "cluster.open-cluster-management.io/unreachable"


def build(clock=None, **parameters):
    return built(TaintFilter, parameters, clock=clock or ManualClock(1000.0))


def tainted(effect, since=None):
    return ClusterStatus(cluster="c", taints=(ClusterTaint(key=UNREACHABLE, effect=effect, since=since),))


NO_SELECT, PREFER, IF_NEW = (
    tainted(each) for each in (TaintEffect.NO_SELECT, TaintEffect.PREFER_NO_SELECT, TaintEffect.NO_SELECT_IF_NEW)
)


def in_session(name):
    return Request("r", headers=Headers([("x-session-id", name)]))


def sent(pool, position):
    primary = ProfileResult("default", pool, np.zeros(len(pool)), np.array([position], dtype=np.intp))
    return SchedulingResult(Destination(primary), {"default": primary}, {})


def test_ocm_10_no_select_is_dropped():
    pool = candidates(records={CLUSTER: [NO_SELECT, PREFER, NO_STATUS]})
    assert build().filter(Request("r"), pool).tolist() == [False, True, True]


def test_ocm_10_no_select_if_new_serves_only_the_sessions_it_has():
    plugin = build()
    before = candidates(records={CLUSTER: [NO_STATUS, NO_STATUS, NO_STATUS]})
    plugin.pre_request(in_session("mine"), sent(before, 0))
    plugin.pre_request(in_session("other"), sent(before, 2))
    pool = candidates(records={CLUSTER: [IF_NEW, IF_NEW, NO_STATUS]})
    assert plugin.filter(in_session("mine"), pool).tolist() == [True, False, True]
    assert plugin.filter(in_session("other"), pool).tolist() == [False, False, True]
    assert plugin.filter(Request("r"), pool).tolist() == [False, False, True]


def test_ocm_10_unreachable_cluster_is_tolerated_for_its_seconds():
    clock = ManualClock(1000.0)
    tolerations = [{"key": UNREACHABLE, "operator": "Exists", "tolerationSeconds": 300}]
    plugin = build(clock, tolerations=tolerations)
    pool = candidates(records={CLUSTER: [tainted(TaintEffect.NO_SELECT, since=1000.0), NO_STATUS]})
    clock.advance(299.0)
    assert plugin.filter(Request("r"), pool).tolist() == [True, True]
    clock.advance(1.0)
    assert plugin.filter(Request("r"), pool).tolist() == [False, True]


def test_ocm_10_request_without_any_cluster_is_refused():
    pool = candidates(records={CLUSTER: [NO_SELECT, NO_SELECT]})
    with pytest.raises(NoClustersError) as refused:
        build().filter(Request("r"), pool)
    assert "all clusters" in refused.value.detail
    assert build(fallbackOnEmpty=True).filter(Request("r"), pool).tolist() == [False, False]
