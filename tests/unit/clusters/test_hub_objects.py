# SPDX-License-Identifier: Apache-2.0
"""Objects of a hub are decoded, and their impossible values are left out and said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework.clusters import TaintEffect
from epp.kube.objects.ocm import MultiKueueCluster
from epp.pool.clusters.cluster_status import ClusterStatuses, cluster_statuses
from tests.support.hub_objects import OCM, cluster, decision, decoded, hub_of, placement, scores, taint, weighted
from tests.support.kube.manifests import manifest


def test_ocm_2_scores_of_a_cluster_by_name():
    found = decoded(scores("east", "2030-01-01T00:00:00Z", gpuClusterAvailable=60, gpuNodeAvailable=-60.5))
    assert found.metadata.namespace == "east"
    assert found.scores == {"gpuClusterAvailable": 60.0, "gpuNodeAvailable": -60.5}  # kept as a fraction
    assert found.valid_until == 1893456000.0
    assert found.faults == ()


@pytest.mark.parametrize("value", [400, -101, "60", None, True, float("nan"), float("inf"), {}])
def test_ocm_2_score_that_cannot_be_costs_that_one_alone(value):
    found = decoded(scores("east", broken=value, sound=1))
    assert found.scores == {"sound": 1.0}
    (fault,) = found.faults
    assert fault.startswith("status.scores[0].value is ")


def test_ocm_2_score_beyond_the_limits_is_said_with_the_limits():
    assert decoded(scores("east", broken=400)).faults == (
        "status.scores[0].value is 400: it must be between -100 and 100",
    )


@pytest.mark.parametrize(
    ("name", "fault"),
    [(7, "is 7: write it in quotes"), ("", "is empty: give a name"), (None, "is missing: add it")],
)
def test_ocm_2_score_without_a_name_costs_that_one_alone(name, fault):
    document = scores("east", sound=1)
    document["status"]["scores"].append({"name": name, "value": 2})
    found = decoded(document)
    assert found.scores == {"sound": 1.0}
    assert found.faults == (f"status.scores[1].name {fault}",)


def test_ocm_2_date_that_is_none_is_said_and_the_scores_are_used():
    found = decoded(scores("east", "tomorrow", gpuClusterAvailable=60))
    assert found.scores == {"gpuClusterAvailable": 60.0}
    assert found.valid_until is None
    assert found.faults == ("status.validUntil is 'tomorrow': write a date such as 2030-01-01T00:00:00Z",)


def test_ocm_2_last_of_two_scores_of_one_name_counts_and_that_is_said():
    document = scores("east", a=1)
    document["status"]["scores"].append({"name": "a", "value": 2})
    found = decoded(document)
    assert found.scores == {"a": 2.0}
    assert found.faults == ("status.scores has 'a' several times: write it once; the last one counts",)


def test_faults_of_one_object_are_bounded():
    found = decoded(scores("east", **{f"s{number}": 1000 for number in range(500)}))
    assert len(found.faults) == 21
    assert found.faults[-1] == "further values do not fit either: correct them as well"


def test_score_without_a_cluster_is_refused():
    document = scores("east", a=1)
    del document["metadata"]["namespace"]
    with pytest.raises(ValueError, match=r"metadata\.namespace is missing: write the name of the cluster"):
        decoded(document)


def test_managed_cluster_has_taints_claims_and_amounts():
    hub = hub_of(
        cluster(
            "east",
            labels={"accelerator": "h100"},
            claims={"region": "us-east"},
            taints=[taint("NoSelect"), taint("Never"), taint("PreferNoSelect", key="old", added="soon")],
            cpu="96",
            memory="-1Gi",
        )
    )
    found = hub.clusters["east"]
    assert found.claims == {"region": "us-east"}
    assert found.allocatable == {"cpu": 96}
    assert [(each.effect, each.since) for each in found.taints] == [
        (TaintEffect.NO_SELECT, 1767225600.0),
        (TaintEffect.PREFER_NO_SELECT, None),
    ]
    assert [each.reason for each in hub.ignored] == [
        "spec.taints[1].effect is 'Never': use 'NoSelect', 'PreferNoSelect', 'NoSelectIfNew'",
        "spec.taints[old].timeAdded is 'soon': write a date such as 2030-01-01T00:00:00Z",
        "status.allocatable.memory is -1073741824: write 0 or more",
    ]


def test_ocm_5_weight_out_of_bounds_is_not_used_and_the_others_are():
    found = decoded(placement(prioritizerPolicy=weighted(Steady=1, Balance=11, gpuClusterAvailable=-10)))
    assert found.weights == {"Steady": 1.0, "resource-usage-score/gpuClusterAvailable": -10.0}
    assert found.faults == ("spec.prioritizerPolicy.configurations[1].weight is 11: it must be between -10 and 10",)


def test_ocm_5_placement_of_the_first_version_names_its_prioritizers():
    document = placement(prioritizerPolicy={"mode": "Exact", "configurations": [{"name": "Steady", "weight": 3}]})
    document["apiVersion"] = f"{OCM}/v1alpha1"
    assert decoded(document).weights == {"Steady": 3.0}


def test_ocm_6_item_that_no_add_on_has_is_read_as_the_one_that_is_meant():
    found = decoded(placement(prioritizerPolicy=weighted(gpuAvailable=1)))
    assert list(found.weights) == ["resource-usage-score/gpuClusterAvailable"]
    (fault,) = found.faults
    assert fault == (
        "spec.prioritizerPolicy.configurations has the score resource-usage-score/gpuAvailable: "
        "write resource-usage-score/gpuClusterAvailable, which is used"
    )


GROUPS, SELECTOR = "spec.decisionStrategy.groupStrategy", "spec.predicates[0].requiredClusterSelector"


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ({"numberOfClusters": -2}, "spec.numberOfClusters is -2: it must be 0 or more"),
        ({"sortBy": "Age"}, "spec.sortBy is 'Age': use 'ClusterName', 'Score'"),
        ({"scoreRateLimit": "soon"}, "spec.scoreRateLimit is 'soon': write a duration such as 1m"),
        (
            {"tolerations": [{"operator": "Equal", "value": "x"}]},
            "spec.tolerations[0]: key is empty: write the key of a taint, or operator: Exists to tolerate all taints",
        ),
        ({"prioritizerPolicy": {"mode": "Exakt"}}, "spec.prioritizerPolicy.mode is 'Exakt': use 'Additive', 'Exact'"),
        (
            {"prioritizerPolicy": {"configurations": [{"weight": 1}]}},
            "spec.prioritizerPolicy.configurations[0]: scoreCoordinate is missing: write one with builtIn or addOn",
        ),
        (
            {"decisionStrategy": {"groupStrategy": {"clustersPerDecisionGroup": "0%"}}},
            f"{GROUPS}.clustersPerDecisionGroup is '0%': write a number of at least 1, or a share from 1% to 100%",
        ),
        (
            {"spreadPolicy": {"spreadConstraints": [{"topologyKey": "zone", "maxSkew": 0}]}},
            "spec.spreadPolicy.spreadConstraints[0].maxSkew is 0: it must be at least 1",
        ),
        (
            {"predicates": [{"requiredClusterSelector": {"celSelector": {"celExpressions": ["true"]}}}]},
            (
                "spec.predicates[0].requiredClusterSelector.celSelector: "
                "CEL is not evaluated here and selects no cluster: use labelSelector or claimSelector"
            ),
        ),
    ],
)
def test_ocm_5_impossible_field_of_a_placement_is_said(spec, fault):
    assert decoded(placement(**spec)).faults == (fault,)


def test_ocm_5_entry_with_an_impossible_field_is_left_out_and_the_others_are_used():
    spec = {
        "tolerations": [{"operator": "Exists", "tolerationSeconds": "5"}, {"key": "gpu", "operator": "Exists"}],
        "spreadPolicy": {"spreadConstraints": [{"topologyKey": "zone", "maxSkew": 0}, {"topologyKey": "region"}]},
    }
    found = decoded(placement(**spec))
    assert [each.key for each in found.tolerations] == ["gpu"]
    assert [each.topology_key for each in found.spread] == ["region"]
    assert found.faults == (
        "spec.tolerations[0].tolerationSeconds is '5': remove the quotes",
        "spec.spreadPolicy.spreadConstraints[0].maxSkew is 0: it must be at least 1",
    )


def test_ocm_4_pages_of_a_placement_are_merged_by_its_label():
    found = hub_of(decision("b", page=2, index=1), decision("a", page=1), decision("c", of="other"))
    assert [page.decisions[0].cluster_name for page in found.pages["ai/llm"]] == ["a", "b"]
    assert [page.group for page in found.pages["ai/llm"]] == ["0", "1"]


def test_ocm_4_page_without_the_label_is_refused():
    document = decision("a")
    document["metadata"]["labels"] = {}
    with pytest.raises(ValueError, match=r"cluster\.open-cluster-management\.io/placement\] is missing"):
        decoded(document)


def test_problems_name_object_field_value_and_remedy():
    (ignored,) = hub_of(scores("east", a=400)).ignored
    assert str(ignored) == (
        "hub.yaml: AddOnPlacementScore east/resource-usage-score: status.scores[0].value is 400: it must "
        "be between -100 and 100; it is ignored"
    )


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ({"kubeConfig": {"location": "multikueue-east", "locationType": "Secret"}}, "east"),
        ({"clusterSource": {"kubeConfig": {"location": "multikueue-east"}}}, "east"),
        ({"clusterSource": {"clusterProfileRef": {"name": "east"}}}, "east"),
        ({"kubeConfig": {"location": "other"}}, "worker1"),
    ],
)
def test_ocm_13_cluster_of_multikueue_is_that_of_its_secret_or_profile(spec, name):
    document = manifest("kueue.x-k8s.io/v1beta2", "MultiKueueCluster", "worker1", spec=spec)
    found = decoded(document)
    assert isinstance(found, MultiKueueCluster)
    assert found.cluster == name


def test_too_many_ignored_scores_are_refused():
    masks = [{"clusterName": "east", "scoreName": "power"}] * 10_001
    document = manifest(
        "dynamic-scoring.open-cluster-management.io/v1", "DynamicScoringConfig", "config", spec={"masks": masks}
    )
    with pytest.raises(ValueError, match=r"spec\.masks has 10001 entries: give at most 10000"):
        decoded(document)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
flat = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.text(max_size=8), scalars, max_size=3)
json_values = flat | st.lists(flat, max_size=3) | st.dictionaries(st.text(max_size=8), flat, max_size=3)
SOUND = (
    cluster("east", labels={"a": "b"}, claims={"c": "d"}, taints=[taint("NoSelect")], cpu="1"),
    scores("east", "2030-01-01T00:00:00Z", gpuClusterAvailable=1),
    placement(
        numberOfClusters=1,
        clusterSets=["global"],
        tolerations=[{"key": "k", "operator": "Exists", "tolerationSeconds": 1}],
        prioritizerPolicy=weighted(Steady=1, gpuClusterAvailable=2),
        spreadPolicy={"spreadConstraints": [{"topologyKey": "zone", "topologyKeyType": "Label", "maxSkew": 1}]},
        decisionStrategy={"groupStrategy": {"clustersPerDecisionGroup": "50%"}},
        sortBy="Score",
        scoreRateLimit="1m",
    ),
    decision("east", group="canary", totals={"east": 1}),
)


def places(value: object, path: tuple = ()) -> list[tuple]:
    """Return the paths of all values within a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(each for key, part in inner for each in places(part, (*path, key)))]


def put(value: object, path: tuple, new: object) -> object:
    """Return a document with another value at a path."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(copy[path[0]], path[1:], new)
    return copy


@given(st.data())
def test_any_value_anywhere_is_refused_said_or_used_and_ends_nothing(data):
    document = data.draw(st.sampled_from(SOUND))
    path = data.draw(st.sampled_from(places(document)[1:]))
    broken = put(document, path, data.draw(json_values))
    found = hub_of(broken, *SOUND)
    at = cluster_statuses(found, ClusterStatuses(), 0.0)
    for status in at.known.values():
        assert all(-100 <= value <= 100 for value in status.scores.values())
