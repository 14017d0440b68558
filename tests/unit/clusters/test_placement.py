# SPDX-License-Identifier: Apache-2.0
"""Placements choose clusters as the hub would."""

import msgspec
import pytest

from epp.pool.clusters.placement import Evaluation, Situation, allocatable, balanced, evaluate, in_cluster_sets
from tests.support.hub_objects import OCM, SCORE, cluster, decoded, hub_of, placement, taint, weighted
from tests.support.kube.manifests import manifest

DAY = 1767225600.0
"""2026-01-01, when the taints of these tests were added."""


def evaluated(spec: dict, *clusters: dict, scores=None, now: float = DAY, **situation) -> Evaluation:
    of = {name: {f"{SCORE}/{key}": value for key, value in each.items()} for name, each in (scores or {}).items()}
    found = Situation(clusters=[decoded(each) for each in clusters], scores=of, now=now, **situation)
    return evaluate(decoded(placement(**spec)), found)


def chosen(spec: dict, *clusters: dict, **situation) -> list[str]:
    return [name for group in evaluated(spec, *clusters, **situation).groups for name in group.clusters]


EAST, WEST, NORTH = cluster("east"), cluster("west"), cluster("north")


def test_ocm_5_exact_weights_add_up_as_in_the_specification():
    policy = weighted(gpuClusterAvailable=3, Steady=1)
    both = {"east": {"gpuClusterAvailable": 60}, "west": {"gpuClusterAvailable": -60}}
    spec = {"numberOfClusters": 1, "prioritizerPolicy": policy}
    found = evaluated(spec, EAST, WEST, scores=both, chosen={"west"})
    assert found.totals == {"east": 180.0, "west": -80.0}  # 3 * 60 + 0, and 3 * -60 + 100
    assert found.chosen == {"east"}


def test_ocm_5_balance_of_4_2_and_0_decisions():
    assert balanced(["a", "b", "c"], {"a": 4, "b": 2}) == {"a": -100.0, "b": 0.0, "c": 100.0}
    assert balanced(["a", "b"], {}) == {"a": 100.0, "b": 100.0}


def test_ocm_5_allocatable_10_20_and_40():
    clusters = [decoded(cluster(name, cpu=amount)) for name, amount in (("a", "10"), ("b", "20"), ("c", "40"))]
    assert allocatable(clusters, "cpu") == {"a": -100.0, "b": pytest.approx(-100 / 3), "c": 100.0}
    alike = [decoded(cluster(name, memory="1Gi")) for name in "ab"]
    assert allocatable(alike, "memory") == {"a": 100.0, "b": 100.0}
    assert allocatable(alike, "cpu") == {}


def test_ocm_5_additive_keeps_steady_and_balance_and_a_weight_of_0_takes_one_out():
    found = evaluated({}, EAST, WEST, chosen={"west"}, counts={"west": 1})
    assert found.totals == {"east": 100.0, "west": 0.0}  # balance 100, and balance -100 + steady 100
    found = evaluated({"prioritizerPolicy": weighted("Additive", Balance=0)}, EAST, WEST, chosen={"west"})
    assert found.totals == {"east": 0.0, "west": 100.0}
    assert [each.name for each in found.explanation.prioritize_results] == ["Steady"]


def test_ocm_5_equal_totals_are_in_order_of_the_names():
    assert chosen({"numberOfClusters": 2}, WEST, NORTH, EAST) == ["east", "north"]


def test_ocm_5_negative_weight_prefers_the_lower_score():
    both = {"east": {"gpuClusterAvailable": 60}, "west": {"gpuClusterAvailable": -60}}
    spec = {"numberOfClusters": 1, "prioritizerPolicy": weighted(gpuClusterAvailable=-1)}
    assert chosen(spec, EAST, WEST, scores=both) == ["west"]


def test_ocm_5_score_that_is_missing_counts_0_and_is_named():
    spec = {"prioritizerPolicy": weighted(gpuClusterAvailable=1)}
    found = evaluated(spec, EAST, WEST, scores={"east": {"gpuClusterAvailable": -5}})
    assert found.totals == {"east": -5.0, "west": 0.0}
    assert found.missing == {("west", f"{SCORE}/gpuClusterAvailable")}


def test_ocm_5_one_of_the_predicates_must_select_by_labels_and_claims():
    h100 = cluster("east", labels={"gpu": "h100"}, claims={"region": "us"})
    t4 = cluster("west", labels={"gpu": "t4"}, claims={"region": "us"})
    other = cluster("north", labels={"gpu": "h100"})

    def selector(*labels: dict, claims: tuple[dict, ...] = ()) -> dict:
        of_claims = {"claimSelector": {"matchExpressions": claims}} if claims else {}
        return {"requiredClusterSelector": {"labelSelector": {"matchExpressions": labels}, **of_claims}}

    is_h100 = {"key": "gpu", "operator": "In", "values": ["h100"]}
    not_h100 = {"key": "gpu", "operator": "NotIn", "values": ["h100"]}
    in_us = {"key": "region", "operator": "Exists"}
    assert chosen({"predicates": [selector(is_h100, claims=(in_us,))]}, h100, t4, other) == ["east"]
    assert chosen({"predicates": [selector(is_h100, claims=(in_us,)), selector(not_h100)]}, h100, t4, other) == [
        "east",
        "west",
    ]
    by_label = {"requiredClusterSelector": {"labelSelector": {"matchLabels": {"gpu": "t4"}}}}
    assert chosen({"predicates": [by_label]}, h100, t4, other) == ["west"]


def test_ocm_5_predicate_that_cannot_be_evaluated_selects_no_cluster():
    cel = {"requiredClusterSelector": {"celSelector": {"celExpressions": ["true"]}}}
    assert chosen({"predicates": [cel]}, EAST) == []
    unknown = {"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Like", "values": ["b"]}]}}
    assert chosen({"predicates": [{"requiredClusterSelector": unknown}]}, EAST) == []
    without_values = {"claimSelector": {"matchExpressions": [{"key": "a", "operator": "NotIn"}]}}
    assert chosen({"predicates": [{"requiredClusterSelector": without_values}]}, EAST) == []
    assert chosen({"predicates": [cel, {"requiredClusterSelector": {}}]}, EAST) == ["east"]


def test_ocm_5_taint_keeps_clusters_away_unless_it_is_tolerated():
    tainted = cluster("east", taints=[taint("NoSelect", value="yes")])
    assert chosen({}, tainted, WEST) == ["west"]
    for toleration in (
        {"operator": "Exists"},
        {"key": "maintenance", "operator": "Exists"},
        {"key": "maintenance", "value": "yes"},
        {"key": "maintenance", "value": "yes", "effect": "NoSelect"},
    ):
        assert chosen({"tolerations": [toleration]}, tainted) == ["east"]
    for toleration in (
        {"key": "other", "operator": "Exists"},
        {"key": "maintenance", "value": "no"},
        {"key": "maintenance", "operator": "Exists", "effect": "NoSelectIfNew"},
    ):
        assert chosen({"tolerations": [toleration]}, tainted) == []


def test_ocm_5_toleration_ends_its_seconds_after_the_taint_was_added():
    tainted = cluster("east", taints=[taint("NoSelect")])
    spec = {"tolerations": [{"operator": "Exists", "tolerationSeconds": 300}]}
    before = evaluated(spec, tainted, now=DAY + 299)
    assert (before.chosen, before.until) == ({"east"}, DAY + 300)
    after = evaluated(spec, tainted, now=DAY + 300)
    assert (after.chosen, after.until) == (set(), None)


def test_ocm_10_new_clusters_alone_are_kept_away_by_no_select_if_new():
    tainted = cluster("east", taints=[taint("NoSelectIfNew")])
    assert chosen({}, tainted) == []
    assert chosen({}, tainted, chosen={"east"}) == ["east"]


def test_ocm_10_clusters_with_prefer_no_select_come_last_whatever_their_scores():
    tainted = cluster("east", taints=[taint("PreferNoSelect")])
    spec = {"numberOfClusters": 1, "prioritizerPolicy": weighted(gpuClusterAvailable=1)}
    best = {"east": {"gpuClusterAvailable": 100}, "west": {"gpuClusterAvailable": -100}}
    assert chosen(spec, tainted, WEST, scores=best) == ["west"]
    assert chosen(spec, tainted, scores=best) == ["east"]
    assert chosen({**spec, "tolerations": [{"operator": "Exists"}]}, tainted, WEST, scores=best) == ["east"]


def zones(**names: str) -> list[dict]:
    return [cluster(name, labels={"zone": zone}) for name, zone in names.items()]


def spread(**constraint: object) -> dict:
    return {"spreadPolicy": {"spreadConstraints": [{"topologyKey": "zone", "topologyKeyType": "Label", **constraint}]}}


def test_ocm_5_clusters_are_spread_over_zones_before_their_scores_count():
    clusters = zones(a="east", b="east", c="east", d="west")
    assert chosen({"numberOfClusters": 2}, *clusters) == ["a", "b"]
    assert chosen({"numberOfClusters": 2, **spread()}, *clusters) == ["a", "d"]


def test_ocm_5_required_spread_leaves_places_open():
    clusters = zones(a="east", b="east", c="east", d="west")
    required = spread(whenUnsatisfiable="DoNotSchedule")
    assert chosen({"numberOfClusters": 4, **required}, *clusters) == ["a", "b", "d"]  # two more than in the west
    assert chosen({"numberOfClusters": 4, **spread()}, *clusters) == ["a", "b", "c", "d"]
    wider = spread(whenUnsatisfiable="DoNotSchedule", maxSkew=2)
    assert chosen({"numberOfClusters": 4, **wider}, *clusters) == ["a", "b", "c", "d"]


def test_ocm_5_cluster_without_the_claim_is_not_chosen_where_spread_is_required():
    region = {"topologyKey": "region", "topologyKeyType": "Claim", "whenUnsatisfiable": "DoNotSchedule"}
    clusters = [cluster("a"), cluster("b", claims={"region": "us"})]
    assert chosen({"spreadPolicy": {"spreadConstraints": [region]}}, *clusters) == ["b"]


def groups(strategy: dict, *clusters: dict, **spec: object) -> list[tuple[str, tuple[str, ...]]]:
    found = evaluated({"decisionStrategy": {"groupStrategy": strategy}, **spec}, *clusters)
    return [(each.name, each.clusters) for each in found.groups]


def test_ocm_5_decisions_are_in_one_group_or_in_groups_of_a_number_or_share():
    five = [cluster(name) for name in "abcde"]
    assert groups({}, *five) == [("", ("a", "b", "c", "d", "e"))]
    assert groups({"clustersPerDecisionGroup": "100%"}, *five) == [("", ("a", "b", "c", "d", "e"))]
    by_two = [("", ("a", "b")), ("", ("c", "d")), ("", ("e",))]
    for size in (2, "2", "40%", "21%"):  # 1.05 is rounded up
        assert groups({"clustersPerDecisionGroup": size}, *five) == by_two


def test_ocm_5_named_groups_come_first_and_are_divided_as_well():
    clusters = [cluster(name, labels={"canary": "yes"} if name in "bd" else {}) for name in "abcd"]
    canary = {"groupName": "canary", "groupClusterSelector": {"labelSelector": {"matchLabels": {"canary": "yes"}}}}
    assert groups({"decisionGroups": [canary]}, *clusters) == [("canary", ("b", "d")), ("", ("a", "c"))]
    single = groups({"decisionGroups": [canary], "clustersPerDecisionGroup": 1}, *clusters)
    assert single == [("canary", ("b",)), ("canary", ("d",)), ("", ("a",)), ("", ("c",))]


def test_ocm_5_decisions_are_in_order_of_names_or_of_scores():
    both = {"east": {"gpuClusterAvailable": 1}, "west": {"gpuClusterAvailable": 2}}
    policy = {"prioritizerPolicy": weighted(gpuClusterAvailable=1)}
    assert chosen(policy, EAST, WEST, scores=both) == ["east", "west"]
    assert chosen({**policy, "sortBy": "Score"}, EAST, WEST, scores=both) == ["west", "east"]


def test_ocm_5_clusters_are_those_of_the_sets_that_are_bound_to_the_namespace():
    found = hub_of(
        cluster("east", labels={"cluster.open-cluster-management.io/clusterset": "prod"}),
        cluster("west", labels={"cluster.open-cluster-management.io/clusterset": "test"}),
        manifest(
            f"{OCM}/v1beta2",
            "ManagedClusterSet",
            "all",
            spec={"clusterSelector": {"selectorType": "LabelSelector", "labelSelector": {}}},
        ),
    )

    def names(bound, *sets: str) -> list[str]:
        of = decoded(placement(clusterSets=list(sets)))
        return [each.name for each in in_cluster_sets(of, found.clusters.values(), found.sets, bound)]

    assert names(None) == ["east", "west"]
    assert names(None, "prod") == ["east"]
    assert names(None, "global") == ["east", "west"]
    assert names(None, "all") == ["east", "west"]
    assert names({"test"}) == ["west"]
    assert names({"test"}, "prod") == []
    assert names(set()) == []


def test_ocm_11_explanation_has_the_keys_of_the_hubs_debugger():
    spec = {"numberOfClusters": 1, "prioritizerPolicy": weighted(gpuClusterAvailable=3)}
    tainted = cluster("north", taints=[taint("NoSelect")])
    found = evaluated(spec, EAST, WEST, tainted, scores={"east": {"gpuClusterAvailable": 60}})
    assert msgspec.json.decode(msgspec.json.encode(found.explanation)) == {
        "placement": {
            "apiVersion": "cluster.open-cluster-management.io/v1beta1",
            "kind": "Placement",
            "metadata": {"name": "llm", "namespace": "ai"},
            "spec": spec,
        },
        "filteredPipelineResults": [
            {"name": "Predicate", "filteredClusters": ["east", "north", "west"]},
            {"name": "Predicate,TaintToleration", "filteredClusters": ["east", "west"]},
        ],
        "prioritizeResults": [
            {"name": "AddOn/resource-usage-score/gpuClusterAvailable", "weight": 3.0, "scores": {"east": 60.0}}
        ],
        "aggregatedScores": [{"clusterName": "east", "score": 180.0}, {"clusterName": "west", "score": 0.0}],
    }
