# SPDX-License-Identifier: Apache-2.0
"""Filters by the cluster of endpoints."""

import pytest

from epp.framework import ConfigurationError, Headers, ManualClock, Request
from epp.framework.clusters import CLUSTER, NO_STATUS, ClusterStatus, ClusterTaint, PlacementStatus, TaintEffect
from epp.framework.refusals import NoClustersError
from epp.framework.testing import candidates, run_profile
from epp.plugins.label_filters import PlacementFilter, TaintFilter
from tests.support.plugins import built

LLM = "kueue-system/llm-gpu"


def build(**parameters):
    return built(PlacementFilter, {"placement": LLM, **parameters})


def cluster_status(cluster, *, chosen, any_chosen=True):
    return ClusterStatus(cluster=cluster, placements={LLM: PlacementStatus(chosen=chosen, any_chosen=any_chosen)})


EAST, WEST = cluster_status("east", chosen=True), cluster_status("west", chosen=False)
EMPTY = [cluster_status(name, chosen=False, any_chosen=False) for name in ("east", "west")]


def kept(*statuses, **parameters):
    return build(**parameters).filter(Request("r"), candidates(records={CLUSTER: statuses})).tolist()


def test_ocm_4_only_clusters_of_the_placement_are_kept():
    assert kept(EAST, WEST, NO_STATUS, EAST) == [True, False, False, True]


def test_ocm_4_cluster_that_leaves_gets_nothing_from_the_next_snapshot_on():
    plugin = build()
    before = candidates(records={CLUSTER: [EAST, cluster_status("west", chosen=True)]})
    after = candidates(records={CLUSTER: [EAST, WEST]})
    assert plugin.filter(Request("r"), before).tolist() == [True, True]
    assert plugin.filter(Request("r"), after).tolist() == [True, False]


@pytest.mark.parametrize("statuses", [EMPTY, [NO_STATUS, NO_STATUS]])
def test_ocm_4_empty_placement_refuses_with_the_reason(statuses):
    with pytest.raises(NoClustersError) as refused:
        run_profile([build()], candidates(records={CLUSTER: statuses}))
    assert (refused.value.status, refused.value.reason) == (503, "rejected-no-endpoints")
    assert refused.value.detail.startswith("NoClustersAvailable: placement kueue-system/llm-gpu chose no cluster")
    assert str(refused.value) == "no cluster is available for this request: retry later"


def test_ocm_4_empty_placement_can_keep_all():
    assert kept(*EMPTY, onEmpty="FailOpen") == [True, True]
    assert kept(NO_STATUS, onEmpty="FailOpen") == [True]


def test_imported_pool_stands_for_a_placement():
    name = "InferencePoolImport/example/llm-pool"
    east, west = (
        ClusterStatus(cluster=cluster, placements={name: PlacementStatus(chosen=chosen)})
        for cluster, chosen in (("east", True), ("west", False))
    )
    assert kept(east, west, placement="", poolImport="example/llm-pool") == [True, False]


@pytest.mark.parametrize("parameters", [{"placement": ""}, {"poolImport": "a/b"}])
def test_either_a_placement_or_an_import_is_named(parameters):
    with pytest.raises((ConfigurationError, ValueError), match="either placement or poolImport"):
        build(**parameters)


def test_ocm_4_placement_that_chose_other_clusters_is_not_empty():
    with pytest.raises(NoClustersError, match="no cluster"):
        kept(WEST, onEmpty="FailOpen")
    assert kept(WEST, fallbackOnEmpty=True) == [False]  # the profile keeps all then


@pytest.mark.parametrize("name", ["llm-gpu", "", "a/b/c", "/b"])
def test_placement_is_written_with_its_namespace(name):
    with pytest.raises((ConfigurationError, ValueError)):
        build(placement=name)


UNREACHABLE = "cluster.open-cluster-management.io/unreachable"


def tolerating(clock=None, **parameters):
    return built(TaintFilter, parameters, clock=clock or ManualClock(1000.0))


def tainted(effect, since=None):
    return ClusterStatus(cluster="c", taints=(ClusterTaint(key=UNREACHABLE, effect=effect, since=since),))


NO_SELECT, PREFER, IF_NEW = (
    tainted(each) for each in (TaintEffect.NO_SELECT, TaintEffect.PREFER_NO_SELECT, TaintEffect.NO_SELECT_IF_NEW)
)


def in_session(name):
    return Request("r", headers=Headers([("x-session-id", name)]))


def test_ocm_10_no_select_is_dropped():
    pool = candidates(records={CLUSTER: [NO_SELECT, PREFER, NO_STATUS]})
    assert tolerating().filter(Request("r"), pool).tolist() == [False, True, True]


def test_ocm_10_no_select_if_new_serves_only_the_sessions_it_has(sent_to):
    plugin = tolerating()
    before = candidates(records={CLUSTER: [NO_STATUS, NO_STATUS, NO_STATUS]})
    plugin.pre_request(in_session("mine"), sent_to(before, 0))
    plugin.pre_request(in_session("other"), sent_to(before, 2))
    pool = candidates(records={CLUSTER: [IF_NEW, IF_NEW, NO_STATUS]})
    assert plugin.filter(in_session("mine"), pool).tolist() == [True, False, True]
    assert plugin.filter(in_session("other"), pool).tolist() == [False, False, True]
    assert plugin.filter(Request("r"), pool).tolist() == [False, False, True]


def test_ocm_10_unreachable_cluster_is_tolerated_for_its_seconds():
    clock = ManualClock(1000.0)
    tolerations = [{"key": UNREACHABLE, "operator": "Exists", "tolerationSeconds": 300}]
    plugin = tolerating(clock, tolerations=tolerations)
    pool = candidates(records={CLUSTER: [tainted(TaintEffect.NO_SELECT, since=1000.0), NO_STATUS]})
    clock.advance(299.0)
    assert plugin.filter(Request("r"), pool).tolist() == [True, True]
    clock.advance(1.0)
    assert plugin.filter(Request("r"), pool).tolist() == [False, True]


def test_ocm_10_request_without_any_cluster_is_refused():
    pool = candidates(records={CLUSTER: [NO_SELECT, NO_SELECT]})
    with pytest.raises(NoClustersError) as refused:
        tolerating().filter(Request("r"), pool)
    assert "all clusters" in refused.value.detail
    assert tolerating(fallbackOnEmpty=True).filter(Request("r"), pool).tolist() == [False, False]
