# SPDX-License-Identifier: Apache-2.0
"""Imported pools: the clusters that export one, and the endpoints in them."""

import pytest
import yaml

from epp.framework import Request
from epp.framework.clusters import CLUSTER
from epp.framework.endpoint import Endpoint
from epp.framework.testing import candidates
from epp.kube.objects.base import convert
from epp.kube.objects.inference import InferencePoolImport
from epp.plugins.label_filters import PlacementFilter
from epp.pool.clusters.tagger import ClusterTagger
from tests.support.config_files import replace
from tests.support.kube.manifests import manifest
from tests.support.plugins import built

HEAD = manifest("inference.networking.x-k8s.io/v1alpha1", "InferencePoolImport", "llm-pool", "example")


def exported_by(*clusters: str) -> dict:
    exporting = [{"name": name} for name in clusters]
    parents = [{"parentRef": {"kind": "Gateway", "name": "inf-gw"}, "conditions": []}]
    controllers = [
        {"name": "example.com/mcip-controller", "exportingClusters": exporting},
        {"name": "example.com/ig-controller", "parents": parents},
    ]
    return {**HEAD, "status": {"controllers": controllers}}


@pytest.mark.parametrize(
    ("status", "clusters"),
    [
        (exported_by("a", "b", "a")["status"], ("a", "b")),
        ({"clusters": [{"name": "a"}]}, ("a",)),  # as the proposal had it before
        ({}, ()),
    ],
)
def test_clusters_that_export_a_pool_are_read(status, clusters):
    assert convert({**HEAD, "status": status}, InferencePoolImport).clusters == clusters


def test_import_that_is_no_object_is_refused_with_field_and_remedy():
    with pytest.raises(ValueError, match=r"status.controllers\[0\].exportingClusters"):
        convert({**HEAD, "status": {"controllers": [{"exportingClusters": 3}]}}, InferencePoolImport)


async def test_ocm_1_endpoints_of_clusters_that_export_the_pool_are_kept_and_local_ones(tmp_path):
    path = tmp_path / "import.yaml"
    replace(path, yaml.safe_dump(exported_by("west")))
    source = built(ClusterTagger, {"paths": [str(path)], "cluster": "east"})
    keeps = built(PlacementFilter, {"poolImport": "example/llm-pool"})
    endpoints = [
        Endpoint("a", "10.0.0.1", 8000),
        Endpoint("b", "10.0.0.2", 8000, cluster="west"),
        Endpoint("c", "10.0.0.3", 8000, cluster="north"),
        Endpoint("d", "10.0.0.4", 8000, labels={"multicluster.kubernetes.io/source-cluster": "west"}),
    ]

    def kept() -> list[bool]:
        statuses = [source.tag(endpoint).attributes[CLUSTER] for endpoint in endpoints]
        return keeps.filter(Request("r"), candidates(records={CLUSTER: statuses})).tolist()

    assert kept() == [True, True, False, True]
    replace(path, yaml.safe_dump(exported_by("north")))
    concerns = await source.check()
    assert [concerns(endpoint) for endpoint in endpoints] == [False, True, True, True]
    assert kept() == [True, False, True, False]
