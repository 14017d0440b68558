# SPDX-License-Identifier: Apache-2.0
"""Standings from one moment to the next, whatever changes."""

from datetime import UTC, datetime

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.pool.clusters.cluster_status import ClusterStatuses, cluster_statuses
from tests.support.hub_objects import cluster, decision, hub_of, placement, scores, weighted

NOW = 1767225600.0
NAMES = ("a", "b", "c", "d")
GPU = "resource-usage-score/gpuClusterAvailable"
RATE_LIMIT = 60.0
CHOOSES = 2

names = st.sampled_from(NAMES)


class Hubs(RuleBasedStateMachine):
    """Objects of a hub come, change and go, and time passes; a placement without decisions is evaluated each time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.clusters = set(NAMES[:2])
        self.scores: dict[str, tuple[int, float | None]] = {}
        self.pages: tuple[str, ...] | None = None
        self.at = ClusterStatuses()
        self.before = self.at

    @rule(name=names)
    def cluster_comes_or_goes(self, name: str) -> None:
        self.clusters ^= {name}

    @rule(name=names, value=st.integers(-100, 100), seconds=st.none() | st.integers(1, 200))
    def score_changes(self, name: str, value: int, seconds: int | None) -> None:
        self.scores[name] = value, None if seconds is None else self.now + seconds

    @rule(name=names)
    def score_goes(self, name: str) -> None:
        self.scores.pop(name, None)

    @rule(pages=st.none() | st.lists(names, unique=True, max_size=3).map(tuple))
    def hub_decides(self, pages: tuple[str, ...] | None) -> None:
        self.pages = pages

    @rule(seconds=st.integers(1, 100))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    def check(self) -> None:
        """Compute the standings anew."""
        weights = weighted("Additive", gpuClusterAvailable=1)
        policy = placement(numberOfClusters=CHOOSES, prioritizerPolicy=weights, scoreRateLimit="60s")
        documents = [policy, *(cluster(name) for name in sorted(self.clusters))]
        for name, (value, until) in sorted(self.scores.items()):
            documents.append(scores(name, gpuClusterAvailable=value))
            if until is not None:
                documents[-1]["status"]["validUntil"] = _date(until)
        if self.pages is not None:
            documents.append(decision(*self.pages))
        self.before, self.at = self.at, cluster_statuses(hub_of(*documents), self.at, self.now)

    @invariant()
    def scores_are_those_that_hold_now(self) -> None:
        self.check()
        for name in NAMES:
            value, until = self.scores.get(name, (None, None))
            holds = value is not None and (until is None or until > self.now)
            assert self.at.of(name).scores == ({GPU: value} if holds else {})
            assert self.at.of(name).expired == ({GPU} if value is not None and not holds else set())

    @invariant()
    def decision_is_the_hubs_or_one_of_at_most_two_clusters_that_are_there(self) -> None:
        self.check()
        chosen = set(self.at.decided["ai/llm"].clusters)
        if self.pages is not None:
            assert chosen == set(self.pages)
        elif self.clusters:
            assert chosen <= self.clusters
            assert len(chosen) == min(CHOOSES, len(self.clusters))
        else:
            assert not chosen

    @invariant()
    def clusters_that_differ_are_those_whose_records_differ(self) -> None:
        self.check()
        differs = self.at.differ_from(self.before)
        for name in (*NAMES, "elsewhere"):
            assert (differs is not None and differs(name)) == (self.at.of(name) != self.before.of(name))

    @invariant()
    def nothing_changes_until_the_time_that_is_given(self) -> None:
        self.check()
        until = self.at.until
        assert until is None or until > self.now
        if until is not None and until - self.now > 1:
            now, self.now = self.now, until - 1
            kept = self.at
            self.check()
            assert all(self.at.of(name) == kept.of(name) for name in NAMES)
            self.now, self.at = now, kept

    @invariant()
    def scores_of_a_decision_are_at_most_a_minute_old(self) -> None:
        self.check()
        found = self.at.decided["ai/llm"]
        if found.evaluation is None:
            return
        fresh = {name: each.score for name, each in standings_now(self).items()}
        if fresh != {name: each.score for name, each in found.clusters.items()}:
            assert self.now < found.scored_at + RATE_LIMIT


def standings_now(state: Hubs) -> dict:
    """Return what the placement would decide if its last scores were old."""
    aged = msgspec.structs.replace(state.at.decided["ai/llm"], scored_at=0.0)
    before, at = state.before, state.at
    state.at = ClusterStatuses(known=at.known, others=at.others, decided={"ai/llm": aged})
    state.check()
    found = dict(state.at.decided["ai/llm"].clusters)
    state.before, state.at = before, at
    return found


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


TestHubs = Hubs.TestCase
