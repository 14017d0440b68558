# SPDX-License-Identifier: Apache-2.0
"""Scores of clusters, and what counts where there is none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from epp.framework import ManualClock, Request
from epp.framework.clusters import CLUSTER, NO_STATUS, ClusterStatus, PlacementStatus
from epp.framework.errors import ConfigurationError
from epp.framework.refusals import NoClustersError
from epp.framework.scoring import DYNAMIC_SCORES, NO_DYNAMIC_SCORES, DynamicScore, DynamicScores
from epp.framework.testing import candidates, run_profile
from epp_scorers.cluster_score import ClusterScore, ClusterScoreParameters

GPU = "resource-usage-score/gpuClusterAvailable"
NAMED = {"scoreName": "gpuClusterAvailable"}


def scored(*values):
    """Standings of clusters with these GPU scores, None for none."""
    return [
        ClusterStatus(cluster=f"c{number}", scores={} if value is None else {GPU: value})
        for number, value in enumerate(values)
    ]


def scores(plugin, statuses):
    return plugin.score(Request("r"), candidates(records={CLUSTER: statuses})).tolist()


@pytest.fixture
def east_and_west():
    """The objects of section 3.d: east has 60, west had 100 and that expired."""
    return [
        ClusterStatus(cluster="cluster-east", scores={GPU: 60}),
        ClusterStatus(cluster="cluster-west", expired=frozenset({GPU})),
    ]


def test_ocm_2_score_of_a_hub_becomes_a_share(build):
    # 60 -> (60 + 100) / 200 = 0.8; -80 -> 20 / 200 = 0.1
    assert scores(build(ClusterScore, **NAMED), scored(60, -80, 0, 100, -100)) == [0.8, 0.1, 0.5, 1.0, 0.0]


def test_ocm_2_values_beyond_the_scale_are_limited(build):
    assert scores(build(ClusterScore, **NAMED), scored(250, -101)) == [1.0, 0.0]


def test_ocm_2_missing_and_expired_are_neutral_counted_and_said_once(build, east_and_west):
    plugin = build(ClusterScore, **NAMED)
    pool = candidates(records={CLUSTER: [*east_and_west, NO_STATUS]})
    with capture_logs() as said:
        for _ in range(3):
            assert plugin.score(Request("r"), pool).tolist() == [0.8, 0.5, 0.5]
    (warning,) = said
    assert warning["clusters"] == ["(local)", "cluster-west"]
    assert {sample.labels: sample.value for sample in plugin.samples} == {("missing",): 3, ("expired",): 3}


def test_ocm_2_missing_can_count_as_the_worst_whichever_way_is_better(build, east_and_west):
    assert scores(build(ClusterScore, missing="worst", **NAMED), east_and_west) == [0.8, 0.0]
    assert scores(build(ClusterScore, missing="worst", weight=-2, **NAMED), east_and_west) == pytest.approx([0.2, 0.0])


def test_ocm_2_missing_can_fail_the_endpoint(build, east_and_west):
    run = run_profile([build(ClusterScore, missing="fail", **NAMED)], candidates(records={CLUSTER: east_and_west}))
    assert run.kept["cluster-score"] == ("e0",)
    with pytest.raises(NoClustersError) as refused:
        run_profile([build(ClusterScore, missing="fail", **NAMED)], candidates(records={CLUSTER: east_and_west[1:]}))
    assert refused.value.status == 503
    assert refused.value.detail == f"NoClustersAvailable: no cluster has a score {GPU}"
    lenient = build(ClusterScore, missing="fail", fallbackOnEmpty=True, **NAMED)
    assert run_profile([lenient], candidates(records={CLUSTER: east_and_west[1:]})).picked == ("e0",)


def test_ocm_3_negative_weight_prefers_the_fuller_cluster(build):
    plugin = build(ClusterScore, weight=-3, **NAMED)
    run = run_profile([plugin], candidates(records={CLUSTER: scored(60, -60)}))
    # |w| * (1 - s): 3 * (1 - 0.8) and 3 * (1 - 0.2)
    assert run.totals == pytest.approx({"e0": 0.6, "e1": 2.4})
    assert run.picked[0] == "e1"


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
    totals = run_profile(plugins, candidates(records={CLUSTER: statuses})).totals
    most = sum(abs(weight) for weight, _ in weighted)
    assert all(-1e-9 <= total <= most + 1e-9 for total in totals.values())


def test_weight_of_a_profile_replaces_the_amount_and_not_the_sign(build):
    pool = candidates(records={CLUSTER: scored(60, -60)})
    assert run_profile([(build(ClusterScore, weight=-3, **NAMED), 1.0)], pool).totals == pytest.approx(
        {"e0": 0.2, "e1": 0.8}
    )


def test_ocm_4_score_of_a_placement_counts_over_the_range_of_the_candidates(build):
    placed = [
        ClusterStatus(cluster="east", placements={"kueue-system/llm": PlacementStatus(chosen=True, score=180)}),
        ClusterStatus(cluster="west", placements={"kueue-system/llm": PlacementStatus(chosen=True, score=-80)}),
        ClusterStatus(cluster="north", placements={"kueue-system/llm": PlacementStatus(chosen=True, score=50)}),
        ClusterStatus(cluster="south", placements={"kueue-system/llm": PlacementStatus(score=500)}),  # not chosen
    ]
    plugin = build(ClusterScore, source="placement", placement="kueue-system/llm")
    # 50 is (50 + 80) / (180 + 80) = 0.5 of the way
    assert scores(plugin, placed) == [1.0, 0.0, 0.5, 0.5]
    assert scores(plugin, placed[:1] * 2) == [1.0, 1.0]


def dynamic(**found):
    return DynamicScores(by_name={"power": DynamicScore(**found)})


def test_ocm_7_dynamic_score_of_the_endpoint_counts(build):
    pool = candidates(
        records={DYNAMIC_SCORES: [dynamic(value=42.5), dynamic(value=-100.0), dynamic(expired=True), NO_DYNAMIC_SCORES]}
    )
    plugin = build(ClusterScore, source="dynamic", scoreName="power")
    assert plugin.score(Request("r"), pool).tolist() == pytest.approx([0.7125, 0.0, 0.5, 0.5])  # floats are kept
    assert {sample.labels: sample.value for sample in plugin.samples} == {("missing",): 1, ("expired",): 1}


def test_section_8_row_17_name_of_the_readme_is_an_alias_with_a_warning(build):
    plugin = build(ClusterScore, scoreName="gpuAvailable")
    assert scores(plugin, scored(60)) == [0.8]
    assert plugin.warnings == [
        "scoreName 'gpuAvailable' is no item of resource-usage-score, 'gpuClusterAvailable' is used: write that"
    ]
    assert not build(ClusterScore, scoreName="gpuAvailable", resourceName="mine").warnings


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({}, "scoreName is missing"),
        ({"source": "placement"}, "write the namespace/name of a Placement"),
        ({"source": "placement", "placement": "llm"}, "write the namespace/name of a Placement"),
        ({"source": "placement", "placement": "a/b", "scoreName": "x"}, "remove it"),
        ({"scoreName": "x", "placement": "a/b"}, "write source: placement"),
        ({"scoreName": "x", "weight": 11}, "between -10 and 10"),
        ({"scoreName": "x", "missing": "zero"}, "'zero' is not known"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(build, parameters, problem):
    with pytest.raises((ConfigurationError, ValueError), match=problem):
        build(ClusterScore, **parameters)


def test_scores_are_derived_once_for_all_requests(build):
    plugin = build(ClusterScore, **NAMED)
    pool = candidates(records={CLUSTER: scored(*np.linspace(-100, 100, 50))})
    plugin.score(Request("r"), pool)
    (before,) = pool.snapshot.records(CLUSTER)._each.values()
    plugin.score(Request("another"), pool)
    (after,) = pool.snapshot.records(CLUSTER)._each.values()
    assert after is before


def test_trial_of_a_configuration_counts_and_says_nothing(build):
    plugin = build(ClusterScore, **NAMED)
    pool = candidates(records={CLUSTER: [NO_STATUS]})
    with capture_logs() as said:
        plugin.rehearse(Request("r", dry_run=True), pool)
        assert not said
        assert {sample.value for sample in plugin.samples} == {0}
        plugin.score(Request("r"), pool)
    assert len(said) == 1
