# SPDX-License-Identifier: Apache-2.0
"""Endpoints in the clusters of a placement."""

import pytest

from epp.framework import ConfigurationError, Request
from epp.framework.clusters import CLUSTER, NO_STATUS, ClusterStatus, PlacementStatus
from epp.framework.errors import NoClustersError
from epp.framework.testing import candidates, run_profile
from epp.plugins.clusters import PlacementFilter
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
