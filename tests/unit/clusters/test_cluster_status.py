# SPDX-License-Identifier: Apache-2.0
"""Standings of clusters, from the objects of a hub."""

from epp.framework.clusters import PlacementStatus
from epp.pool.clusters.cluster_status import ClusterStatuses, Evaluate, cluster_statuses
from tests.support.hub_objects import SCORE, cluster, decision, hub_of, placement, scores, taint, weighted
from tests.support.kube.manifests import manifest

NOW = 1767225600.0
"""2026-01-01."""
GPU = f"{SCORE}/gpuClusterAvailable"


def found(*documents: dict, before: ClusterStatuses | None = None, now: float = NOW, **options) -> ClusterStatuses:
    return cluster_statuses(hub_of(*documents), before or ClusterStatuses(), now, **options)


def test_ocm_2_scores_hold_until_their_time_has_passed():
    document = scores("east", "2026-01-01T00:01:00Z", gpuClusterAvailable=60)
    before = found(document)
    assert (before.of("east").scores, before.of("east").expired, before.until) == ({GPU: 60.0}, frozenset(), NOW + 60)
    after = found(document, now=NOW + 60)
    assert (after.of("east").scores, after.of("east").expired, after.until) == ({}, {GPU}, None)


def test_ocm_4_placement_is_known_of_every_cluster():
    at = found(decision("east", totals={"east": 180}), decision(of="empty"))
    assert at.of("east").placements == {
        "ai/llm": PlacementStatus(chosen=True, score=180.0, group="0"),
        "ai/empty": PlacementStatus(any_chosen=False),
    }
    west = at.of("west")
    assert (west.cluster, west.placements["ai/llm"]) == ("west", PlacementStatus())


def test_ocm_4_group_is_named_or_numbered():
    at = found(decision("east", group="canary"), decision("west", page=2, index=1))
    assert at.of("east").placements["ai/llm"].group == "canary"
    assert at.of("west").placements["ai/llm"].group == "1"


def test_cluster_has_its_taints_labels_claims_and_condition():
    document = cluster("east", labels={"gpu": "h100"}, claims={"region": "us"}, taints=[taint("NoSelect")])
    assert found(document).of("east").available is None
    for status, available in (("True", True), ("False", False), ("Unknown", None)):
        document["status"]["conditions"] = [{"type": "ManagedClusterConditionAvailable", "status": status}]
        east = found(document).of("east")
        assert east.available is available
    assert (east.labels, east.claims, east.taints[0].since) == ({"gpu": "h100"}, {"region": "us"}, NOW)


def chosen(at: ClusterStatuses, name: str = "ai/llm") -> set[str]:
    return set(at.decided[name].clusters)


def test_ocm_5_placement_without_decisions_is_evaluated_here():
    policy = placement(numberOfClusters=1, prioritizerPolicy=weighted(gpuClusterAvailable=3))
    hub = (policy, cluster("east"), cluster("west"), scores("west", gpuClusterAvailable=60))
    at = found(*hub)
    assert chosen(at) == {"west"}
    assert at.of("west").placements["ai/llm"] == PlacementStatus(chosen=True, score=180.0, group="0")
    assert at.missing == {("east", GPU)}


def test_ocm_5_who_evaluates_can_be_set():
    hub = (placement(), cluster("east"), cluster("west"), decision("west"))
    modes: dict[Evaluate, set[str]] = {"auto": {"west"}, "always": {"east", "west"}, "never": {"west"}}
    for mode, clusters in modes.items():
        assert chosen(found(*hub, evaluate=mode)) == clusters
    without_decisions = found(placement(), cluster("east"), evaluate="never")
    assert without_decisions.of("east").placements["ai/llm"] == PlacementStatus(any_chosen=False)
    disabled = placement()
    disabled["metadata"]["annotations"] = {"cluster.open-cluster-management.io/experimental-scheduling-disable": "true"}
    assert chosen(found(disabled, cluster("east"))) == set()


def test_ocm_5_own_evaluation_begins_with_what_the_hub_chose():
    steady = placement(numberOfClusters=1, prioritizerPolicy=weighted(Steady=1))
    hub = (steady, cluster("east"), cluster("west"))
    with_hub = found(*hub, decision("west"))
    alone = found(*hub, before=with_hub)
    assert chosen(alone) == {"west"}
    assert chosen(found(*hub, before=alone)) == {"west"}


def test_ocm_5_placements_are_balanced_against_each_other():
    balance = {"numberOfClusters": 1, "prioritizerPolicy": weighted(Balance=1)}
    hub = (placement("a", **balance), placement("b", **balance), cluster("east"), cluster("west"))
    at = found(*hub)
    assert (chosen(at, "ai/a"), chosen(at, "ai/b")) == ({"east"}, {"west"})
    again = found(*hub, before=at)
    assert (chosen(again, "ai/a"), chosen(again, "ai/b")) == ({"east"}, {"west"})


def test_ocm_5_scores_alone_change_a_decision_once_a_minute_and_its_clusters_at_once():
    policy = placement(numberOfClusters=1, prioritizerPolicy=weighted(gpuClusterAvailable=1), scoreRateLimit="1m")
    east, west = cluster("east"), cluster("west")
    first = found(policy, east, west, scores("east", gpuClusterAvailable=10))

    def total(at: ClusterStatuses) -> float | None:
        return at.of("east").placements["ai/llm"].score

    later = scores("east", gpuClusterAvailable=20)
    held = found(policy, east, west, later, before=first, now=NOW + 1)
    assert (total(held), held.until) == (10.0, NOW + 60)
    assert total(found(policy, east, west, later, before=held, now=NOW + 60)) == 20.0
    moved = found(policy, east, west, scores("west", gpuClusterAvailable=20), before=held, now=NOW + 2)
    assert chosen(moved) == {"west"}


def test_ocm_6_usage_is_that_of_the_local_cluster_where_the_hub_has_none():
    usage = {"gpuClusterAvailable": -20.0}
    assert found(local="here", usage=usage).of("here").scores == {GPU: -20.0}
    assert found(usage=usage).of("").scores == {GPU: -20.0}
    assert found(scores("here", gpuClusterAvailable=5), local="here", usage=usage).of("here").scores == {GPU: 5.0}
    elsewhere = found(scores("east", gpuClusterAvailable=5), local="here", usage=usage)
    assert elsewhere.of("here").scores == {GPU: -20.0}


def check(name: str, active: str, kind: str = "MultiKueueConfig", of: str = "config") -> dict:
    spec = {"controllerName": "kueue.x-k8s.io/multikueue", "parameters": {"kind": kind, "name": of}}
    status = {"conditions": [{"type": "Active", "status": active}]}
    return manifest("kueue.x-k8s.io/v1beta2", "AdmissionCheck", name, spec=spec, status=status)


def worker(name: str, active: str) -> dict:
    spec = {"kubeConfig": {"location": f"multikueue-{name}"}}
    status = {"conditions": [{"type": "Active", "status": active}]}
    return manifest("kueue.x-k8s.io/v1beta1", "MultiKueueCluster", name, spec=spec, status=status)


CONFIG = manifest("kueue.x-k8s.io/v1beta1", "MultiKueueConfig", "config", spec={"clusters": ["east", "west"]})


def test_ocm_13_cluster_without_an_active_check_or_that_is_not_active_itself_is_not_active():
    assert found(check("one", "False"), CONFIG).of("east").active is False
    assert found(check("one", "Unknown"), CONFIG).of("east").active is False
    assert found(check("one", "False"), check("two", "True"), CONFIG).of("east").active is True
    assert found(check("one", "True"), CONFIG).of("north").active is None
    at = found(check("one", "True"), CONFIG, worker("east", "False"), worker("west", "True"))
    assert (at.of("east").active, at.of("west").active) == (False, True)


def test_ocm_13_check_of_a_placement_is_for_the_clusters_that_it_chose():
    at = found(check("one", "True", "Placement", "llm"), decision("east"))
    assert (at.of("east").active, at.of("west").active) == (True, None)
    assert found(check("one", "False", "Placement", "llm"), decision("east")).of("east").active is False


def test_only_clusters_that_changed_differ():
    hub = (scores("east", a=1), scores("west", a=1), decision("east"))
    first = found(*hub)
    assert found(*hub, before=first).differ_from(first) is None
    changed = found(scores("east", a=2), *hub[1:], before=first)
    differs = changed.differ_from(first)
    assert differs is not None
    assert [name for name in ("east", "west", "north") if differs(name)] == ["east"]
    assert changed.of("west") is first.of("west")
    another = found(*hub, decision("west", of="other"), before=first).differ_from(first)
    assert another is not None
    assert all(map(another, ("east", "west", "north")))
