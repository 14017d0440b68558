# SPDX-License-Identifier: Apache-2.0
"""Properties of every evaluation of a placement."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.pool.clusters.placement import Evaluation, Situation, evaluate
from tests.support.hub_objects import SCORE, cluster, decoded, placement, taint, weighted

NOW = 1767225600.0
NAMES = tuple("abcdefgh")
ZONES = ("z1", "z2", "z3")
BUILT_INS = ("Steady", "Balance", "ResourceAllocatableCPU", "ResourceAllocatableMemory")
EFFECTS = ("NoSelect", "PreferNoSelect", "NoSelectIfNew")

constraints = st.fixed_dictionaries(
    {
        "topologyKey": st.just("zone"),
        "topologyKeyType": st.sampled_from(["Label", "Claim"]),
        "maxSkew": st.integers(1, 3),
        "whenUnsatisfiable": st.sampled_from(["DoNotSchedule", "ScheduleAnyway"]),
    }
)
weights = st.dictionaries(st.sampled_from([*BUILT_INS, "gpuClusterAvailable"]), st.integers(-10, 10))


@st.composite
def clusters(draw, *, taints=True):
    def one(name: str) -> dict:
        zone = draw(st.sampled_from([None, *ZONES]))
        effects = draw(st.lists(st.sampled_from(EFFECTS), max_size=2)) if taints else []
        return cluster(
            name,
            labels={"zone": zone} if zone else {},
            claims={"zone": zone} if zone else {},
            taints=[taint(effect, key=draw(st.sampled_from(["k1", "k2"]))) for effect in effects],
            **draw(st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(0, 9).map(str))),
        )

    return [one(name) for name in draw(st.lists(st.sampled_from(NAMES), unique=True))]


@st.composite
def specs(draw):
    zone = {"labelSelector": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z1", "z2"]}]}}
    tolerations = [{"key": "k1", "operator": "Exists", "tolerationSeconds": 60}, {"key": "k2", "operator": "Exists"}]
    return {
        "numberOfClusters": draw(st.none() | st.integers(0, 10)),
        "predicates": draw(st.sampled_from([[], [{"requiredClusterSelector": zone}]])),
        "tolerations": draw(st.lists(st.sampled_from(tolerations), max_size=2)),
        "prioritizerPolicy": weighted(draw(st.sampled_from(["Exact", "Additive"])), **draw(weights)),
        "spreadPolicy": {"spreadConstraints": draw(st.lists(constraints, max_size=2))},
        "sortBy": draw(st.sampled_from(["Score", "ClusterName"])),
        "decisionStrategy": {
            "groupStrategy": {
                "clustersPerDecisionGroup": draw(st.sampled_from(["100%", "30%", 1, 3])),
                "decisionGroups": draw(st.sampled_from([[], [{"groupName": "first", "groupClusterSelector": zone}]])),
            }
        },
    }


names = st.sets(st.sampled_from(NAMES))
counts = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 5))
values = st.dictionaries(st.sampled_from(NAMES), st.integers(-100, 100))


def evaluated(spec: dict, found: list[dict], chosen=(), *, counts=None, values=None, now: float = NOW) -> Evaluation:
    return evaluate(
        decoded(placement(**spec)),
        Situation(
            clusters=[decoded(each) for each in found],
            chosen=chosen,
            counts=counts or {},
            scores={name: {f"{SCORE}/gpuClusterAvailable": float(value)} for name, value in (values or {}).items()},
            now=now,
        ),
    )


@given(specs(), clusters(), names, counts, values)
def test_ocm_5_never_more_than_asked_for_and_never_one_that_was_filtered(spec, found, chosen, counts, values):
    result = evaluated(spec, found, chosen, counts=counts, values=values)
    listed = [name for group in result.groups for name in group.clusters]
    matched, feasible = (set(each.filtered_clusters) for each in result.explanation.filtered_pipeline_results)
    assert len(listed) == len(set(listed))
    assert set(listed) <= feasible <= matched <= {each["metadata"]["name"] for each in found}
    number = spec["numberOfClusters"]
    assert len(listed) <= (len(found) if number is None else number)
    if not spec["spreadPolicy"]["spreadConstraints"]:
        assert len(listed) == (len(feasible) if number is None else min(number, len(feasible)))


@given(specs(), clusters(), names, counts, values)
def test_ocm_5_totals_are_the_sums_of_weighted_scores(spec, found, chosen, counts, values):
    result = evaluated(spec, found, chosen, counts=counts, values=values)
    for name, total in result.totals.items():
        parts = [each.weight * each.scores.get(name, 0) for each in result.explanation.prioritize_results]
        assert total == pytest.approx(sum(parts))
    for each in result.explanation.prioritize_results:
        assert each.weight != 0
        assert all(-100 <= score <= 100 for score in each.scores.values())


@given(specs(), clusters(), names, values, st.randoms())
def test_ocm_5_order_of_the_clusters_does_not_matter(spec, found, chosen, values, random):
    result = evaluated(spec, found, chosen, values=values)
    random.shuffle(found)
    assert evaluated(spec, found, chosen, values=values) == result


@given(clusters(taints=False), names, st.integers(0, 10), values)
def test_ocm_5_steady_keeps_what_was_chosen(found, chosen, number, values):
    present = {each["metadata"]["name"] for each in found}
    spec = {"numberOfClusters": number, "prioritizerPolicy": weighted(Steady=10, gpuClusterAvailable=1)}
    kept = evaluated(spec, found, chosen, values=values).chosen
    before = chosen & present
    assert len(kept & before) == min(number, len(before))  # 1000 - 100 is more than 100


@given(specs(), clusters(), counts, values)
def test_ocm_5_what_was_chosen_stays_while_nothing_changes(spec, found, counts, values):
    spec["prioritizerPolicy"] = weighted("Additive", gpuClusterAvailable=3)
    first = evaluated(spec, found, (), counts=counts, values=values)
    second = evaluated(spec, found, first.chosen, counts=counts, values=values)
    if not spec["spreadPolicy"]["spreadConstraints"]:
        assert second.chosen >= first.chosen or len(second.chosen) == spec["numberOfClusters"]
    assert second.chosen == evaluated(spec, found, second.chosen, counts=counts, values=values).chosen


@given(specs(), clusters(), values, st.integers(1, 3))
def test_ocm_5_required_spread_holds(spec, found, values, skew):
    spec["spreadPolicy"] = {
        "spreadConstraints": [{"topologyKey": "zone", "maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule"}]
    }
    result = evaluated(spec, found, values=values)
    zones = {each["metadata"]["name"]: each["metadata"]["labels"].get("zone") for each in found}
    feasible = result.explanation.filtered_pipeline_results[-1].filtered_clusters
    found_zones = Counter({zones[name]: 0 for name in feasible if zones[name]})
    found_zones.update(zones[name] for name in result.chosen)
    assert None not in found_zones
    if found_zones:
        assert max(found_zones.values()) - min(found_zones.values()) <= skew


@given(specs(), clusters())
def test_ocm_5_groups_have_at_most_their_size(spec, found):
    result = evaluated(spec, found)
    setting = spec["decisionStrategy"]["groupStrategy"]["clustersPerDecisionGroup"]
    total = len(result.chosen)
    most = {"100%": total, "30%": -(-3 * total // 10), 1: 1, 3: 3}[setting]
    assert all(1 <= len(group.clusters) <= most for group in result.groups)
    assert [group.number for group in result.groups] == list(range(len(result.groups)))


@given(specs(), clusters(), st.floats(-100, 200))
def test_ocm_5_nothing_changes_before_the_time_that_is_given(spec, found, seconds):
    result = evaluated(spec, found, now=NOW + seconds)
    assert result.until is None or result.until > NOW + seconds
    just_before = None if result.until is None else result.until - 1e-3
    if just_before is not None and just_before >= NOW + seconds:
        assert evaluated(spec, found, now=just_before).chosen == result.chosen
