# SPDX-License-Identifier: Apache-2.0
"""Objects of a hub of Open Cluster Management change standings of clusters, and routing, while the picker runs."""

from pathlib import Path

import pytest
import yaml
from aiohttp import web

from epp.kube.objects.decode import versions_in
from epp.kube.resources import needs_of_hub, role
from tests.support.kube import manifests as write
from tests.support.kube.fleet import fleet_in
from tests.support.kube.hardware import picker_with, served_by
from tests.support.kube.users import PICKER_ROLE

SAMPLES = Path(__file__).parents[1] / "data" / "clusters"
OCM = "cluster.open-cluster-management.io"
ROLES = (PICKER_ROLE, role("hub", needs_of_hub()))
ALLOWED = "--allow-plugin-modules=object_plugins"
MODULES = str(Path(__file__).parent)
CONFIG = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: cluster-data-source, parameters: {cluster: LOCAL, usageScores: USAGE}}
- {type: "object_plugins:BusyClusterFilter", parameters: {fallbackOnEmpty: false}}
"""


def config(local: str = "", *, usage: bool = False) -> str:
    return CONFIG.replace("LOCAL", f"'{local}'").replace("USAGE", str(usage).lower())


@pytest.fixture
async def fleet(space):
    """Pod `a` in the cluster named as the namespace, where its scores are, and `b` in another one."""
    async with fleet_in(space) as fleet:
        for name, cluster in (("a", space.namespace), ("b", "elsewhere")):
            await fleet.start(name, labels={"app": "vllm", "topology.istio.io/cluster": cluster})
        await space.pool(ports=fleet.ports)
        yield fleet


async def scored(space, value: int, until: str | None = None) -> dict:
    made = await space.apply(write.manifest(f"{OCM}/v1alpha1", "AddOnPlacementScore", "resource-usage-score"))
    status = {"scores": [{"name": "gpuClusterAvailable", "value": value}], "validUntil": until}
    return await space.admin.status(made, status)


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
async def test_ocm_2_samples_are_accepted_and_decoded(space, path):
    documents = [each for each in yaml.safe_load_all(path.read_text()) if each["kind"] != "DynamicScorer"]
    applied = []
    for document in documents:
        metadata = {key: value for key, value in document["metadata"].items() if key != "namespace"}
        applied.append(await space.apply({**document, "metadata": metadata}))
    found = list(versions_in([await space.admin.get(document) for document in applied]))
    assert len(found) == len(documents)
    assert {version.title: version.reason for version in found if version.object is None} == {}


async def test_ocm_2_score_in_the_api_server_changes_the_standing_of_its_cluster(space, fleet, tmp_path):
    score = await scored(space, 60)
    async with picker_with(space, tmp_path, config(), ALLOWED, roles=ROLES, PYTHONPATH=MODULES) as picker:
        await served_by(picker, "a", "b")
        await scored(space, -60)
        await served_by(picker, "b")
        await scored(space, -60, "2020-01-01T00:00:00Z")
        await served_by(picker, "a", "b")
        await scored(space, -60)
        await served_by(picker, "b")
        await space.delete(score)
        await served_by(picker, "a", "b")


async def test_ocm_4_decision_in_the_api_server_takes_clusters_in_and_out(space, fleet, tmp_path):
    labels = {"labels": {f"{OCM}/placement": "llm"}}
    page = write.manifest(f"{OCM}/v1beta1", "PlacementDecision", "llm-decision-1", metadata=labels)
    async with picker_with(space, tmp_path, config(), ALLOWED, roles=ROLES, PYTHONPATH=MODULES) as picker:
        await served_by(picker, "a", "b")
        made = await space.apply(page)
        for cluster, pod in ((space.namespace, "a"), ("elsewhere", "b")):
            await space.admin.status(made, {"decisions": [{"clusterName": cluster, "reason": ""}]})
            await served_by(picker, pod)
        await space.delete(made)
        await served_by(picker, "a", "b")


async def test_ocm_6_pods_of_all_namespaces_count_for_the_scores_of_the_own_cluster(space, fleet, tmp_path):
    """The right to read pods of one namespace is not enough: the scores would be too good."""
    async with picker_with(space, tmp_path, config(usage=True), ALLOWED, roles=ROLES, PYTHONPATH=MODULES) as picker:
        await served_by(picker, "a", "b")
        _, health = await picker.health()
        states = [(watch["resource"], watch["state"]) for watch in health["kubernetes"]["watches"]]
        assert ("pods", "forbidden") in states


IMPORTED = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: cluster-data-source, parameters: {cluster: here}}
- {type: placement-filter, parameters: {poolImport: NAMESPACE/llm, fallbackOnEmpty: true}}
- {type: active-request-scorer}
"""


async def test_ocm_1_import_in_the_api_server_says_which_clusters_serve(space, fleet, tmp_path):
    pool_import = write.manifest("inference.networking.x-k8s.io/v1alpha1", "InferencePoolImport", "llm")
    text = IMPORTED.replace("NAMESPACE", space.namespace)
    async with picker_with(space, tmp_path, text, roles=ROLES) as picker:
        await served_by(picker, "a", "b")  # none is known: all are kept
        made = await space.apply(pool_import)
        for cluster, pod in ((space.namespace, "a"), ("elsewhere", "b")):
            exporting = [{"name": "example.com/controller", "exportingClusters": [{"name": cluster}]}]
            await space.admin.status(made, {"controllers": exporting})
            await served_by(picker, pod)
        await space.delete(made)
        await served_by(picker, "a", "b")


DYNAMIC = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: dynamic-score-source, parameters: {timeout: 2s}}
- {type: cluster-score, parameters: {source: dynamic, scoreName: power, missing: fail, fallbackOnEmpty: true}}
- {type: active-request-scorer}
"""


async def test_ocm_8_scorer_of_an_object_in_the_api_server_is_asked_and_masked(space, fleet, tmp_path, scorer):
    api = "dynamic-scoring.open-cluster-management.io/v1alpha1"
    scoring = {"host": scorer, "path": "/scoring", "params": {"name": "power", "interval": 1}}
    asked = write.manifest(api, "DynamicScorer", "s", spec={"scoring": scoring})
    masks = {"masks": [{"clusterName": "elsewhere", "scoreName": "power"}]}
    mask = write.manifest(api, "DynamicScoringConfig", "dynamic-scoring-config", spec=masks)
    async with picker_with(space, tmp_path, DYNAMIC, roles=ROLES) as picker:
        await served_by(picker, "a", "b")
        await space.apply(asked)
        await served_by(picker, "b")  # the only one with a score
        made = await space.apply(mask)
        await served_by(picker, "a", "b")
        await space.delete(made)
        await served_by(picker, "b")


@pytest.fixture
async def scorer():
    """The address of a scorer that gives pod `b` a score."""

    async def scoring(request: web.Request) -> web.Response:
        return web.json_response({"results": [{"metric": {"pod": "b"}, "score": 50}]})

    app = web.Application()
    app.router.add_post("/scoring", scoring)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()
