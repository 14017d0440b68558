# SPDX-License-Identifier: Apache-2.0
"""Objects of a cluster, as `epp check --cluster` finds them: what plugins do not take, and values they do not use."""

import pytest

from epp.app.cluster_check import check_cluster
from epp.hardware.selection import AcceleratorSelectionProducer
from epp.hardware.tagger import AcceleratorTagger
from epp.kube.resources import CLUSTER, needs_of_hub
from epp.pool.clusters.tagger import ClusterTagger
from tests.support import hub_objects

GROUP = "inference.networking.k8s.io"
OCM = "cluster.open-cluster-management.io"
CLASSES = "/apis/ome.io/v1beta1/acceleratorclasses"
SCORES = f"/apis/{OCM}/v1alpha1/addonplacementscores"
CLUSTERS = f"/apis/{OCM}/v1/managedclusters"


@pytest.fixture
def check(scripted):
    """Look at the cluster of the script, with the plugins that read objects."""

    async def check():
        readers = (AcceleratorTagger(), AcceleratorSelectionProducer(), ClusterTagger())
        return await check_cluster(scripted, None, "llm", pool_group=GROUP, readers=readers)

    return check


@pytest.fixture
def cluster(script, accelerator_class):
    """Classes, of which one has an impossible price, and a hub with a score that no cluster can have."""
    script.allow("pods", "inferencepools", "acceleratorclasses")
    script.install("/api/v1/pods", f"/apis/{GROUP}/v1/inferencepools")
    script.objects[CLASSES] = [accelerator_class("cheap", cost={"perHour": "-3"}), accelerator_class("sound")]
    return script


@pytest.fixture
def hub(cluster):
    cluster.objects[SCORES] = [hub_objects.scores("east", name="usage", gpu=400, cpu=40)]
    cluster.objects[CLUSTERS] = [hub_objects.cluster("east")]
    return cluster


async def test_impossible_value_of_an_object_is_a_warning(check, cluster):
    (warning,) = (await check()).warnings
    assert warning.startswith("cluster: AcceleratorClass cheap: spec.cost.perHour is -3")
    assert warning.endswith("it is ignored")


async def test_object_that_is_not_in_effect_is_a_warning(check, cluster, accelerator_class):
    cluster.objects[CLASSES] = [accelerator_class("broken", cost="much")]
    (warning,) = (await check()).warnings
    assert warning.startswith("cluster: AcceleratorClass broken is skipped: ")


async def test_sentences_of_one_plugin_are_bounded(check, cluster, accelerator_class):
    cluster.objects[CLASSES] = [accelerator_class(f"c{number:03}", cost={"perHour": "-3"}) for number in range(130)]
    warnings = (await check()).warnings
    assert len(warnings) == 101
    assert warnings[-1] == "cluster: and 30 more object problems of accelerator-data-source"


async def test_ocm_2_impossible_score_of_the_hub_is_a_warning(check, hub):
    hub.allow("addonplacementscores", "managedclusters")
    warnings = (await check()).warnings
    assert [each for each in warnings if "AddOnPlacementScore east/usage" in each and "400" in each]


async def test_kinds_of_the_hub_are_listed_with_their_access_and_a_role_for_those_that_are_installed(check, hub):
    hub.allow("addonplacementscores")
    report = await check()
    states = {each.need.resource.plural: each.state for each in report.access if each.need.purpose == CLUSTER}
    assert set(states) == {each.resource.plural for each in needs_of_hub()}
    found = (states["addonplacementscores"], states["managedclusters"], states["placements"])
    assert found == ("allowed", "forbidden", "not installed")
    assert report.notes == ("1 optional kind is forbidden; the roles below allow it",)
    (role, binding) = report.hub_roles
    assert (role["kind"], role["metadata"]) == ("ClusterRole", {"name": "llm-endpoint-picker-hub"})
    assert [rule["resources"] for rule in role["rules"]] == [["addonplacementscores", "managedclusters"]]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "namespace": "llm", "name": "picker"}]
    assert report.roles == report.hardware_roles == ()


async def test_objects_that_may_be_read_in_the_namespace_alone_are_read_there(check, hub):
    forbidden = (403, {"code": 403, "message": "forbidden"})
    hub.allow("addonplacementscores")
    hub.objects[SCORES][0]["metadata"]["namespace"] = "llm"
    hub.answers[SCORES] = forbidden
    assert any("AddOnPlacementScore llm/usage" in each for each in (await check()).warnings)


async def test_kind_that_the_server_cannot_list_costs_that_kind_alone(check, hub):
    hub.allow("addonplacementscores")
    hub.answers[SCORES] = (500, {"code": 500, "message": "etcd is away"})
    report = await check()
    assert [each.partition(":")[2].split()[0] for each in report.warnings] == ["AcceleratorClass"]
    assert report.notes[-1] == f"addonplacementscores.{OCM}: not readable: etcd is away"
