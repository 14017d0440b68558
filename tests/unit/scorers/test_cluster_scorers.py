# SPDX-License-Identifier: Apache-2.0
"""Taints, balance, steadiness and the local cluster."""

from functools import partial

import numpy as np
import pytest

from epp.framework import PREFIX_MATCH, Headers, ManualClock, PrefixMatch, Request
from epp.framework.clusters import CLUSTER, NO_STATUS, ClusterStatus, ClusterTaint, TaintEffect
from epp.framework.testing import candidates
from epp_scorers.clusters import BalanceScorer, LocalClusterScorer, SteadyScorer, TaintScorer
from tests.support.plugins import built
from tests.support.results import sent_to


class Scored:
    """A scorer, and the candidates that it scores."""

    def __init__(self, plugin, *members, columns=None, **parameters):
        """Members are clusters by name or status."""
        self.clock = ManualClock(1000.0)
        self.scorer = built(plugin, parameters, clock=self.clock)
        self.enter(*members, **(columns or {}))

    def enter(self, *members, **columns):
        statuses = [ClusterStatus(cluster=each) if isinstance(each, str) else each for each in members]
        self.pool = candidates(records={CLUSTER: statuses}, **columns)

    def send(self, *positions, request=None):
        for position in positions:
            self.scorer.pre_request(request or Request("r"), sent_to(self.pool, position))

    def scores(self, request=None):
        return self.scorer.score(request or Request("r"), self.pool).tolist()


def in_session(name="s"):
    return Request("r", headers=Headers([("x-session-id", name)]))


def tainted(effect=TaintEffect.PREFER_NO_SELECT, **more):
    return ClusterStatus(cluster="c", taints=(ClusterTaint(key="gpu", value="old", effect=effect, **more),))


def test_ocm_10_prefer_no_select_gets_nothing_and_other_effects_are_left_to_the_filter():
    assert Scored(TaintScorer, tainted(), tainted(TaintEffect.NO_SELECT), NO_STATUS).scores() == [0.0, 1.0, 1.0]


def test_ocm_10_toleration_counts_until_its_seconds_are_over():
    members = tainted(since=1000.0), tainted(since=800.0), tainted()
    tolerated = {"key": "gpu", "operator": "Exists", "tolerationSeconds": 300}
    world = Scored(TaintScorer, *members, tolerations=[tolerated])
    assert world.scores() == [1.0, 1.0, 1.0]
    world.clock.advance(100.0)  # 1100: the second has been tolerated for 300 s
    assert world.scores() == [1.0, 0.0, 1.0]
    world.clock.advance(200.0)
    assert world.scores() == [0.0, 0.0, 1.0]  # the age of the third is not known


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
def test_ocm_10_tolerations_match_as_those_of_a_placement(toleration, score):
    assert Scored(TaintScorer, tainted(), tolerations=[toleration]).scores() == [score]


def test_ocm_13_cluster_without_an_active_check_is_not_preferred():
    statuses = [ClusterStatus(cluster=str(active), active=active) for active in (True, False, None)]
    assert Scored(TaintScorer, *statuses).scores() == [1.0, 0.0, 1.0]


def test_ocm_9_balance_has_the_vectors_of_the_hub():
    world = Scored(BalanceScorer, "a", "b", "c")
    assert world.scores() == [1.0, 1.0, 1.0]  # no decisions anywhere: 100
    world.send(0, 0, 0, 0, 1, 1)
    assert [score * 200 - 100 for score in world.scores()] == [-100.0, 0.0, 100.0]


def test_ocm_9_balance_forgets_by_half_life():
    world = Scored(BalanceScorer, "a", "b", halfLife="30s")
    world.send(0, 0, 0, 0)
    world.clock.advance(60.0)  # 4 requests count as 1
    world.send(1, 1)
    assert world.scores() == pytest.approx([0.5, 0.0])
    world.clock.advance(3600.0)
    assert world.scores() == [1.0, 1.0]


def test_ocm_9_balance_can_count_by_endpoint():
    world = Scored(BalanceScorer, "a", "a", "b", normalizeBy="endpoints")
    world.send(0, 1, 2)
    assert world.scores() == [0.0, 0.0, 0.0]  # one request for each endpoint


def test_ocm_9_steady_is_the_cluster_that_served_the_session():
    world = Scored(SteadyScorer, "a", "a", "b")
    assert world.scores(in_session()) == [0.0, 0.0, 0.0]
    world.send(0, request=in_session())
    assert world.scores(in_session()) == [1.0, 1.0, 0.0]  # any endpoint of that cluster
    assert world.scores(in_session("another")) == world.scores() == [0.0, 0.0, 0.0]


def test_ocm_9_steady_session_outlives_its_endpoint_moves_with_its_cluster_and_expires():
    world = Scored(SteadyScorer, "a", "b", sessionIdConfig={"evictionTtlSeconds": 60})
    world.send(0, request=in_session())
    world.enter("b", "a", "a")
    assert world.scores(in_session()) == [0.0, 1.0, 1.0]
    world.enter("b")  # a has left
    world.send(0, request=in_session())
    world.enter("b", "a")
    assert world.scores(in_session()) == [1.0, 0.0]
    world.clock.advance(61.0)
    assert world.scores(in_session()) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("blocks", "expected"), [([6, 0, 4], [1.0, 1.0, 0.0]), ([4, 0, 4], [0.0, 0.0, 0.0]), ([5, 0, 5], [1.0, 1.0, 1.0])]
)
def test_ocm_9_steady_is_the_cluster_that_holds_the_prefix(blocks, expected):
    request = Request("r")
    request.put(PREFIX_MATCH, PrefixMatch(np.array(blocks, dtype=np.int32), total_blocks=10, block_tokens=16))
    assert Scored(SteadyScorer, "a", "a", "b").scores(request) == expected


EAST = partial(Scored, LocalClusterScorer, localCluster="east")


def test_ocm_1_local_cluster_is_the_one_of_the_source_unless_another_is_named():
    plain = candidates(waiting=[0, 0])  # no attribute at all: one cluster, the local one
    assert LocalClusterScorer().score(Request("r"), plain).tolist() == [1.0, 1.0]
    pool = ClusterStatus(cluster="east", local=True), "west"
    assert Scored(LocalClusterScorer, *pool).scores() == [1.0, 0.0]
    assert Scored(LocalClusterScorer, *pool, localCluster="west").scores() == [0.0, 1.0]
    assert EAST("west").scores() == [0.0]


@pytest.mark.parametrize(("waiting", "expected"), [([3, 1, 0], [1.0, 1.0, 0.0]), ([4, 1, 0], [0.0, 0.0, 0.0])])
def test_local_cluster_is_preferred_until_its_queues_are_long(waiting, expected):
    assert EAST("east", "east", "west", columns={"waiting": waiting}, maxWaiting=2).scores() == expected


@pytest.mark.parametrize(
    ("scores", "expected"),
    [({"rus/gpu": 60}, [1.0, 0.0]), ({"rus/gpu": -20}, [1.0, 0.0]), ({"rus/gpu": -21}, [0.0, 0.0]), ({}, [1.0, 0.0])],
)
def test_local_cluster_is_preferred_until_its_score_says_otherwise(scores, expected):
    east, west = ClusterStatus(cluster="east", scores=scores), ClusterStatus(cluster="west", scores={"rus/gpu": 100})
    assert EAST(east, west, score="rus/gpu", minScore=-20).scores() == expected
