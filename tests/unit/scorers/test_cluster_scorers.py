# SPDX-License-Identifier: Apache-2.0
"""Taints, balance, steadiness and the local cluster."""

import numpy as np
import pytest

from epp.framework import (
    PREFIX_MATCH,
    ConfigurationError,
    Destination,
    Headers,
    ManualClock,
    PrefixMatch,
    ProfileResult,
    Request,
    SchedulingResult,
)
from epp.framework.clusters import CLUSTER, NO_STATUS, ClusterStatus, ClusterTaint, TaintEffect
from epp.framework.registry import Registry
from epp.framework.testing import candidates
from epp_scorers.clusters import BalanceScorer, LocalClusterScorer, SteadyScorer, TaintScorer

PREFER, SELECT = TaintEffect.PREFER_NO_SELECT, TaintEffect.NO_SELECT


@pytest.fixture
def clock():
    return ManualClock(1000.0)


@pytest.fixture
def make(clock):
    def made(plugin, **parameters):
        registry = Registry({})
        registry.register(plugin)
        return registry.build(plugin.plugin_type, parameters, name=plugin.plugin_type, clock=clock)

    return made


def pool_of(*clusters, **more):
    return candidates(records={CLUSTER: [ClusterStatus(cluster=name) for name in clusters]}, **more)


def sent(pool, position):
    primary = ProfileResult("default", pool, np.zeros(len(pool)), np.array([position], dtype=np.intp))
    return SchedulingResult(Destination(primary), {"default": primary}, {})


def in_session(name="s"):
    return Request("r", headers=Headers([("x-session-id", name)]))


def tainted(effect, **more):
    return ClusterStatus(cluster="c", taints=(ClusterTaint(key="gpu", value="old", effect=effect, **more),))


def test_ocm_10_prefer_no_select_gets_nothing_and_other_effects_are_left_to_the_filter(make):
    pool = candidates(records={CLUSTER: [tainted(PREFER), tainted(SELECT), NO_STATUS]})
    assert make(TaintScorer).score(Request("r"), pool).tolist() == [0.0, 1.0, 1.0]


def test_ocm_10_toleration_counts_until_its_seconds_are_over(make, clock):
    scorer = make(TaintScorer, tolerations=[{"key": "gpu", "operator": "Exists", "tolerationSeconds": 300}])
    pool = candidates(records={CLUSTER: [tainted(PREFER, since=1000.0), tainted(PREFER, since=800.0), tainted(PREFER)]})
    assert scorer.score(Request("r"), pool).tolist() == [1.0, 1.0, 1.0]
    clock.advance(100.0)  # 1100: the second has been tolerated for 300 s
    assert scorer.score(Request("r"), pool).tolist() == [1.0, 0.0, 1.0]
    clock.advance(200.0)
    assert scorer.score(Request("r"), pool).tolist() == [0.0, 0.0, 1.0]  # the age of the third is not known


@pytest.mark.parametrize(
    ("toleration", "score"),
    [
        ({"key": "gpu", "value": "old"}, 1.0),
        ({"key": "gpu", "value": "new"}, 0.0),
        ({"key": "other", "operator": "Exists"}, 0.0),
        ({"operator": "Exists"}, 1.0),
        ({"key": "gpu", "operator": "Exists", "effect": "NoSelect"}, 0.0),
        ({"key": "gpu", "operator": "Exists", "effect": "PreferNoSelect"}, 1.0),
    ],
)
def test_ocm_10_tolerations_match_as_those_of_a_placement(make, toleration, score):
    pool = candidates(records={CLUSTER: [tainted(PREFER)]})
    assert make(TaintScorer, tolerations=[toleration]).score(Request("r"), pool).tolist() == [score]


@pytest.mark.parametrize("toleration", [{}, {"key": "a", "operator": "Exists", "value": "b"}])
def test_toleration_that_means_nothing_is_refused(make, toleration):
    with pytest.raises((ConfigurationError, ValueError), match=r"key is empty|remove one of them"):
        make(TaintScorer, tolerations=[toleration])


def test_ocm_13_cluster_without_an_active_check_is_not_preferred(make):
    statuses = [ClusterStatus(cluster=str(active), active=active) for active in (True, False, None)]
    assert make(TaintScorer).score(Request("r"), candidates(records={CLUSTER: statuses})).tolist() == [1.0, 0.0, 1.0]


def test_ocm_9_balance_has_the_vectors_of_the_hub(make):
    scorer, pool = make(BalanceScorer), pool_of("a", "b", "c")
    assert scorer.score(Request("r"), pool).tolist() == [1.0, 1.0, 1.0]  # no decisions anywhere: 100
    for position, count in enumerate((4, 2, 0)):
        for _ in range(count):
            scorer.pre_request(Request("r"), sent(pool, position))
    found = scorer.score(Request("r"), pool)
    assert (found * 200 - 100).tolist() == [-100.0, 0.0, 100.0]


def test_ocm_9_balance_forgets_by_half_life(make, clock):
    scorer, pool = make(BalanceScorer, halfLife="30s"), pool_of("a", "b")
    for _ in range(4):
        scorer.pre_request(Request("r"), sent(pool, 0))
    clock.advance(60.0)  # 4 requests count as 1
    scorer.pre_request(Request("r"), sent(pool, 1))
    scorer.pre_request(Request("r"), sent(pool, 1))
    assert scorer.score(Request("r"), pool).tolist() == pytest.approx([0.5, 0.0])
    clock.advance(3600.0)
    assert scorer.score(Request("r"), pool).tolist() == [1.0, 1.0]


def test_ocm_9_balance_can_count_by_endpoint(make):
    scorer, pool = make(BalanceScorer, normalizeBy="endpoints"), pool_of("a", "a", "b")
    for position in (0, 1, 2):
        scorer.pre_request(Request("r"), sent(pool, position))
    assert scorer.score(Request("r"), pool).tolist() == [0.0, 0.0, 0.0]  # one request for each endpoint


@pytest.mark.parametrize("duration", ["0", "-1s", "soon"])
def test_half_life_is_a_duration(make, duration):
    with pytest.raises((ConfigurationError, ValueError), match="halfLife"):
        make(BalanceScorer, halfLife=duration)


def test_ocm_9_steady_is_the_cluster_that_served_the_session(make):
    scorer, pool = make(SteadyScorer), pool_of("a", "a", "b")
    assert scorer.score(in_session(), pool).tolist() == [0.0, 0.0, 0.0]
    scorer.pre_request(in_session(), sent(pool, 0))
    assert scorer.score(in_session(), pool).tolist() == [1.0, 1.0, 0.0]  # any endpoint of that cluster
    assert scorer.score(in_session("another"), pool).tolist() == [0.0, 0.0, 0.0]
    assert scorer.score(Request("r"), pool).tolist() == [0.0, 0.0, 0.0]


def test_ocm_9_steady_session_outlives_its_endpoint_and_moves_with_its_cluster(make):
    scorer = make(SteadyScorer)
    scorer.pre_request(in_session(), sent(pool_of("a", "b"), 0))
    assert scorer.score(in_session(), pool_of("b", "a", "a")).tolist() == [0.0, 1.0, 1.0]
    scorer.pre_request(in_session(), sent(pool_of("b"), 0))  # a has left
    assert scorer.score(in_session(), pool_of("b", "a")).tolist() == [1.0, 0.0]


def test_ocm_9_steady_expires(make, clock):
    scorer, pool = make(SteadyScorer, sessionIdConfig={"evictionTtlSeconds": 60}), pool_of("a", "b")
    scorer.pre_request(in_session(), sent(pool, 0))
    clock.advance(61.0)
    assert scorer.score(in_session(), pool).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("blocks", "expected"), [([6, 0, 4], [1.0, 1.0, 0.0]), ([4, 0, 4], [0.0, 0.0, 0.0]), ([5, 0, 5], [1.0, 1.0, 1.0])]
)
def test_ocm_9_steady_is_the_cluster_that_holds_the_prefix(make, blocks, expected):
    request = Request("r")
    request.put(PREFIX_MATCH, PrefixMatch(np.array(blocks, dtype=np.int32), total_blocks=10, block_tokens=16))
    assert make(SteadyScorer).score(request, pool_of("a", "a", "b")).tolist() == expected


def test_ocm_1_clusters_of_endpoints_count_without_a_hub(make):
    plain = candidates(waiting=[0, 0])  # no attribute at all: one cluster, the local one
    assert make(LocalClusterScorer).score(Request("r"), plain).tolist() == [1.0, 1.0]


def test_local_cluster_is_preferred_until_its_queues_are_long(make):
    scorer = make(LocalClusterScorer, localCluster="east", maxWaiting=2)
    assert scorer.score(Request("r"), pool_of("east", "east", "west", waiting=[3, 1, 0])).tolist() == [1.0, 1.0, 0.0]
    assert scorer.score(Request("r"), pool_of("east", "east", "west", waiting=[4, 1, 0])).tolist() == [0.0, 0.0, 0.0]


def test_local_cluster_is_preferred_until_its_score_says_otherwise(make):
    scorer = make(LocalClusterScorer, localCluster="east", score="rus/gpu", minScore=-20)

    def scored(value):
        east = ClusterStatus(cluster="east", scores={} if value is None else {"rus/gpu": value})
        pool = candidates(records={CLUSTER: [east, ClusterStatus(cluster="west", scores={"rus/gpu": 100})]})
        return scorer.score(Request("r"), pool).tolist()

    assert scored(60) == [1.0, 0.0]
    assert scored(-20) == [1.0, 0.0]
    assert scored(-21) == [0.0, 0.0]
    assert scored(None) == [1.0, 0.0]


def test_local_cluster_without_endpoints_prefers_none(make):
    assert make(LocalClusterScorer, localCluster="east").score(Request("r"), pool_of("west")).tolist() == [0.0]


def test_ocm_1_local_cluster_is_the_one_of_the_source_unless_another_is_named(make):
    statuses = [ClusterStatus(cluster="east", local=True), ClusterStatus(cluster="west")]
    pool = candidates(records={CLUSTER: statuses})
    assert make(LocalClusterScorer).score(Request("r"), pool).tolist() == [1.0, 0.0]
    assert make(LocalClusterScorer, localCluster="west").score(Request("r"), pool).tolist() == [0.0, 1.0]
