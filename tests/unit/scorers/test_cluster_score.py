# SPDX-License-Identifier: Apache-2.0
"""Scores of clusters, and the treatment of missing scores."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from epp.framework import ManualClock, Request
from epp.framework.clusters import CLUSTER, NO_STATUS, ClusterStatus, PlacementStatus
from epp.framework.refusals import NoClustersError
from epp.framework.scoring import DYNAMIC_SCORES, NO_DYNAMIC_SCORES, DynamicScore, DynamicScores
from epp.framework.testing import candidates, run_profile
from epp_scorers.cluster_score import ClusterScore, ClusterScoreParameters
from tests.support.plugins import built

GPU = "resource-usage-score/gpuClusterAvailable"


def by_gpu(**parameters):
    return built(ClusterScore, {"scoreName": "gpuClusterAvailable"} | parameters, name="cluster-score")


def scored(*values):
    """Return the status of clusters with these GPU scores."""
    return [ClusterStatus(cluster=f"c{number}", scores={GPU: value}) for number, value in enumerate(values)]


def pool(statuses):
    return candidates(records={CLUSTER: statuses})


def scores(plugin, statuses):
    return plugin.score(Request("r"), pool(statuses)).tolist()


def counts(plugin):
    return {sample.labels: sample.value for sample in plugin.samples}


EAST_AND_WEST = [
    ClusterStatus(cluster="cluster-east", scores={GPU: 60}),
    ClusterStatus(cluster="cluster-west", expired=frozenset({GPU})),
]
"""The objects of section 3.d: east has 60, and west has an expired score of 100."""


@pytest.mark.parametrize(
    ("parameters", "statuses", "expected"),
    [
        # 60 -> (60 + 100) / 200 = 0.8; -80 -> 20 / 200 = 0.1
        ({}, scored(60, -80, 0, 100, -100), [0.8, 0.1, 0.5, 1.0, 0.0]),
        ({}, scored(250, -101), [1.0, 0.0]),
        # missing counts as the worst whichever way is better
        ({"missing": "worst"}, EAST_AND_WEST, [0.8, 0.0]),
        ({"missing": "worst", "weight": -2}, EAST_AND_WEST, [0.2, 0.0]),
    ],
)
def test_ocm_2_score_of_a_hub_becomes_a_share(parameters, statuses, expected):
    assert scores(by_gpu(**parameters), statuses) == pytest.approx(expected)


def test_ocm_2_missing_and_expired_are_neutral_counted_and_said_once():
    plugin, found = by_gpu(), pool([*EAST_AND_WEST, NO_STATUS])
    with capture_logs() as said:
        for _ in range(3):
            assert plugin.score(Request("r"), found).tolist() == [0.8, 0.5, 0.5]
    (warning,) = said
    assert warning["clusters"] == ["(local)", "cluster-west"]
    assert counts(plugin) == {("missing",): 3, ("expired",): 3}


def test_ocm_2_missing_can_fail_the_endpoint():
    assert run_profile([by_gpu(missing="fail")], pool(EAST_AND_WEST)).kept["cluster-score"] == ("e0",)
    west = pool(EAST_AND_WEST[1:])
    with pytest.raises(NoClustersError) as refused:
        run_profile([by_gpu(missing="fail")], west)
    assert refused.value.status == 503
    assert refused.value.detail == f"NoClustersAvailable: no cluster has a score {GPU}"
    assert run_profile([by_gpu(missing="fail", fallbackOnEmpty=True)], west).picked == ("e0",)


def test_ocm_3_negative_weight_prefers_the_fuller_cluster():
    run = run_profile([by_gpu(weight=-3)], pool(scored(60, -60)))
    # |w| * (1 - s): 3 * (1 - 0.8) and 3 * (1 - 0.2)
    assert run.totals == pytest.approx({"e0": 0.6, "e1": 2.4})
    assert run.picked[0] == "e1"
    # the weight of a profile replaces the amount and not the sign
    assert run_profile([(by_gpu(weight=-3), 1.0)], pool(scored(60, -60))).totals == pytest.approx(
        {"e0": 0.2, "e1": 0.8}
    )


@given(
    st.lists(st.tuples(st.floats(-10, 10), st.floats(-500, 500)), min_size=1, max_size=5),
    st.lists(st.booleans(), min_size=1, max_size=4),
)
def test_ocm_3_totals_stay_between_0_and_the_sum_of_the_weights(weighted, known):
    plugins = [
        ClusterScore(ClusterScoreParameters(score_name=f"s{i}", weight=w), name=f"p{i}", clock=ManualClock())
        for i, (w, _) in enumerate(weighted)
    ]
    found = {f"resource-usage-score/s{i}": value for i, (_, value) in enumerate(weighted)}
    statuses = [ClusterStatus(cluster=str(n), scores=found if each else {}) for n, each in enumerate(known)]
    totals = run_profile(plugins, pool(statuses)).totals
    most = sum(abs(weight) for weight, _ in weighted)
    assert all(-1e-9 <= total <= most + 1e-9 for total in totals.values())


def test_ocm_4_score_of_a_placement_counts_over_the_range_of_the_candidates():
    decisions = [PlacementStatus(chosen=True, score=score) for score in (180, -80, 50)] + [PlacementStatus(score=500)]
    placed = [ClusterStatus(cluster="c", placements={"kueue-system/llm": each}) for each in decisions]
    plugin = built(ClusterScore, {"source": "placement", "placement": "kueue-system/llm"})
    # 50 is (50 + 80) / (180 + 80) = 0.5 of the way; the last one is not chosen
    assert scores(plugin, placed) == [1.0, 0.0, 0.5, 0.5]
    assert scores(plugin, placed[:1] * 2) == [1.0, 1.0]


def test_ocm_7_dynamic_score_of_the_endpoint_counts():
    found = [DynamicScore(value=42.5), DynamicScore(value=-100.0), DynamicScore(expired=True)]
    dynamic = [*(DynamicScores(by_name={"power": each}) for each in found), NO_DYNAMIC_SCORES]
    plugin = built(ClusterScore, {"source": "dynamic", "scoreName": "power"})
    scores = plugin.score(Request("r"), candidates(records={DYNAMIC_SCORES: dynamic}))
    assert scores.tolist() == pytest.approx([0.7125, 0.0, 0.5, 0.5])  # floats are kept
    assert counts(plugin) == {("missing",): 1, ("expired",): 1}


def test_section_8_row_17_name_of_the_readme_is_an_alias_with_a_warning():
    plugin = by_gpu(scoreName="gpuAvailable")
    assert scores(plugin, scored(60)) == [0.8]
    assert plugin.warnings == [
        "scoreName 'gpuAvailable' is not an item of resource-usage-score, 'gpuClusterAvailable' is used: write that"
    ]
    assert not by_gpu(scoreName="gpuAvailable", resourceName="mine").warnings


def test_scores_are_derived_once_for_all_requests():
    plugin, found = by_gpu(), pool(scored(*np.linspace(-100, 100, 50)))
    plugin.score(Request("r"), found)
    (before,) = found.snapshot.records(CLUSTER)._each.values()
    plugin.score(Request("another"), found)
    (after,) = found.snapshot.records(CLUSTER)._each.values()
    assert after is before


def test_trial_of_a_configuration_counts_and_says_nothing():
    plugin, found = by_gpu(), pool([NO_STATUS])
    with capture_logs() as said:
        plugin.rehearse(Request("r", dry_run=True), found)
        assert not said
        assert set(counts(plugin).values()) == {0}
        plugin.score(Request("r"), found)
    assert len(said) == 1
