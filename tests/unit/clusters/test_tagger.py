# SPDX-License-Identifier: Apache-2.0
"""Endpoints are tagged with the standing of their cluster, and anew when it changes."""

import asyncio
from contextlib import asynccontextmanager

import pytest
import yaml
from structlog.testing import capture_logs

from epp.framework import ConfigurationError, Endpoint, ManualClock
from epp.framework.cluster_objects import ObjectKind, ObjectsOfKind
from epp.framework.clusters import CLUSTER, ClusterStatus
from epp.framework.input_errors import ParameterError
from epp.framework.registry import Registry
from epp.kube.resources import CLUSTERS
from epp.pool.clusters.tagger import ClusterTagger
from epp.pool.collectors.tagging import Tagging
from epp.routing.datastore import Datastore
from tests.support.config_files import replace
from tests.support.hub_objects import SCORE, cluster, decoded, placement, scores, taint, weighted
from tests.support.kube.manifests import manifest
from tests.support.waiting import until

NOW = 1767225600.0
"""2026-01-01."""
GPU = f"{SCORE}/gpuClusterAvailable"
EAST = Endpoint("a", "10.0.0.1", 8000, cluster="east")
WEST = Endpoint("b", "10.0.0.2", 8000, cluster="west")


@pytest.fixture
def clock():
    return ManualClock(NOW)


@pytest.fixture
def source(clock, tmp_path):
    def build(*documents: dict, **parameters) -> ClusterTagger:
        if documents:
            write(tmp_path / "hub.yaml", *documents)
            parameters.setdefault("paths", [str(tmp_path)])
        return Registry().build("cluster-data-source", parameters, name="clusters", clock=clock)

    return build


def write(path, *documents: dict) -> None:
    replace(path, yaml.safe_dump_all(documents))


def tag(tagger: ClusterTagger, endpoint: Endpoint = EAST) -> ClusterStatus:
    return tagger.tag(endpoint).attributes[CLUSTER]


def sampled(tagger: ClusterTagger) -> dict[str, float]:
    return {"/".join((each.metric.name, *each.labels)): each.value for each in tagger.samples}


@asynccontextmanager
async def followed(tagger: ClusterTagger, *endpoints: Endpoint):
    """Yield a function that returns the scores of each endpoint in the snapshot."""
    store = Datastore(ManualClock())
    store.replace(endpoints)
    tagging = Tagging(store, [tagger])
    tasks = [
        asyncio.create_task(tagging.follow()),
        asyncio.create_task(tagger.follow(lambda concerns: tagging.retag(tagger, concerns))),
    ]
    await asyncio.sleep(0)
    try:
        yield lambda: [dict(each.scores) for each in store.snapshot().records(CLUSTER).values[: len(endpoints)]]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_ocm_1_cluster_is_that_of_the_endpoint_of_a_label_or_the_local_one(source):
    hub = [scores(name, gpuClusterAvailable=value) for name, value in (("east", 1), ("west", 2), ("here", 3))]
    built = source(*hub, cluster="here")
    labels = {"multicluster.kubernetes.io/source-cluster": "west", "topology.istio.io/cluster": "here"}

    def score(**fields) -> float:
        return tag(built, Endpoint("x", "10.0.0.9", 8000, **fields)).scores[GPU]

    assert score(cluster="east", labels=labels) == 1
    assert score(labels=labels) == 2
    assert score(labels={"topology.istio.io/cluster": "east"}) == 1
    assert score() == 3
    own = source(clusterLabels=["region/cluster"], paths=built.parameters.paths)
    assert tag(own, Endpoint("x", "10.0.0.9", 8000, labels={"region/cluster": "west"})).scores[GPU] == 2


def test_endpoint_of_no_known_cluster_has_no_scores(source):
    assert tag(source()) == ClusterStatus(cluster="east")
    assert tag(source(), Endpoint("x", "10.0.0.9", 8000)) == ClusterStatus(local=True)


async def test_ocm_2_new_scores_in_a_file_reach_the_endpoints_of_that_cluster(source, tmp_path):
    built = source(scores("east", gpuClusterAvailable=60), scores("west", gpuClusterAvailable=5))
    async with followed(built, EAST, WEST) as values:
        assert values() == [{GPU: 60.0}, {GPU: 5.0}]
        write(tmp_path / "hub.yaml", scores("east", gpuClusterAvailable=-80), scores("west", gpuClusterAvailable=5))
        await until(lambda: values() == [{GPU: -80.0}, {GPU: 5.0}], "the new score is in the snapshot")


async def test_ocm_2_files_of_a_pool_in_files_are_read_and_followed_as_well(source, tmp_path):
    (tmp_path / "pool").mkdir()
    write(tmp_path / "pool" / "dump.yaml", scores("west", gpuClusterAvailable=5))
    built = source(scores("east", gpuClusterAvailable=60), paths=[str(tmp_path / "hub.yaml")])
    built.read_files([str(tmp_path / "pool")])
    async with followed(built, EAST, WEST) as values:
        assert values() == [{GPU: 60.0}, {GPU: 5.0}]
        write(tmp_path / "pool" / "dump.yaml", scores("west", gpuClusterAvailable=-80))
        await until(lambda: values() == [{GPU: 60.0}, {GPU: -80.0}], "the new score is in the snapshot")
    with pytest.raises(ConfigurationError, match="--objects"):
        built.read_files([str(tmp_path / "elsewhere")])


async def test_ocm_2_change_concerns_the_endpoints_of_its_cluster_alone(source, tmp_path):
    built = source(scores("east", gpuClusterAvailable=60), scores("west", gpuClusterAvailable=5))
    write(tmp_path / "hub.yaml", scores("east", gpuClusterAvailable=61), scores("west", gpuClusterAvailable=5))
    concerns = await built.check()
    assert (concerns(EAST), concerns(WEST)) == (True, False)
    assert await built.check() is None


async def test_ocm_2_score_expires_by_the_clock_and_that_is_said_once(source, clock):
    built = source(scores("east", "2026-01-01T00:01:00Z", gpuClusterAvailable=60))
    assert sampled(built)["cluster_scores/expired"] == 0
    async with followed(built, EAST) as values:
        assert values() == [{GPU: 60.0}]
        with capture_logs() as logs:
            clock.advance(61)
            await until(lambda: values() == [{}], "the score has expired")
            await built.pass_time()
    (line,) = [each for each in logs if each["event"] == "cluster score expired"]
    assert (line["cluster"], line["score"]) == ("east", GPU)
    assert tag(built).expired == {GPU}
    assert sampled(built)["cluster_scores/expired"] == 1


async def test_ocm_2_score_that_a_placement_misses_is_counted_and_said_once(source):
    policy = placement(prioritizerPolicy=weighted(gpuClusterAvailable=1))
    with capture_logs() as logs:
        built = source(policy, cluster("east"), cluster("west"), scores("west", gpuClusterAvailable=1))
        await built.pass_time()
    assert [(each["event"], each["cluster"]) for each in logs] == [("cluster score missing", "east")]
    assert sampled(built)["cluster_scores/missing"] == 1


async def test_ocm_5_end_of_a_toleration_takes_a_cluster_out(source, clock):
    spec = {"tolerations": [{"operator": "Exists", "tolerationSeconds": 300}]}
    built = source(placement(**spec), cluster("east", taints=[taint("NoSelect")]))
    assert tag(built).placements["ai/llm"].chosen
    clock.advance(300)
    concerns = await built.pass_time()
    assert concerns(EAST)
    assert not tag(built).placements["ai/llm"].chosen
    assert list(built.explanations) == ["ai/llm"]


def test_impossible_value_is_said_with_object_field_and_remedy(source):
    with capture_logs() as logs:
        built = source(scores("east", gpuClusterAvailable=400, cpuNodeAvailable=1))
    sentence = (
        "AddOnPlacementScore east/resource-usage-score: status.scores[0].value is 400: it must be between -100 and 100"
    )
    (ignored,) = built.inputs.ignored
    assert str(ignored) == f"{ignored.file}: {sentence}; it is ignored"
    assert [each["problem"] for each in logs] == [str(ignored)]
    assert built.inputs.sentences == (str(ignored),)
    assert tag(built).scores == {f"{SCORE}/cpuNodeAvailable": 1.0}
    assert sampled(built)["cluster_object_problems"] == 1


def test_values_that_usage_is_computed_without_are_said_and_so_are_kinds_without_use(source):
    node = manifest("v1", "Node", "n1", status={"allocatable": {"cpu": "100"}})
    wanted = {"resources": {"requests": {"cpu": "-3"}}, "name": "main"}
    pod = manifest("v1", "Pod", "p", spec={"nodeName": "n1", "containers": [wanted]})
    typo = manifest("cluster.open-cluster-management.io/v1beta1", "PlacementDecison", "x")
    of_hardware = manifest("tensor-fusion.ai/v1", "GPUWorkload", "w")
    built = source(node, pod, typo, of_hardware, usageScores=True, cluster="east")
    (ignored,) = built.inputs.ignored
    assert (ignored.kind, ignored.object) == ("Pod", "default/p")
    assert ignored.reason.startswith("spec.containers[0].resources.requests.cpu is -3: ")
    assert tag(built).scores[f"{SCORE}/cpuClusterAvailable"] == 100
    (remark,) = built.inputs.remarks
    assert remark.startswith(
        "objects of kind PlacementDecison (cluster.open-cluster-management.io) have no effect: 1 in "
    )
    assert built.inputs.sentences == (str(ignored), remark)


async def test_invalid_version_of_an_object_changes_nothing(source, tmp_path):
    built = source(scores("east", gpuClusterAvailable=60))
    broken = scores("east", gpuClusterAvailable=5)
    broken["status"] = 7
    write(tmp_path / "hub.yaml", broken)
    await built.check()
    assert tag(built).scores == {GPU: 60.0}
    (problem,) = built.inputs.problems
    assert problem.reason == "status is 7: write a mapping"


async def test_objects_of_a_missing_file_stay_for_the_grace_period(source, clock, tmp_path):
    built = source(scores("east", gpuClusterAvailable=60), missingFileGracePeriod="5m")
    (tmp_path / "hub.yaml").unlink()
    await built.check()
    assert tag(built).scores == {GPU: 60.0}
    clock.advance(300)
    await built.check()
    assert tag(built).scores == {}


def test_path_where_there_is_nothing_is_refused(source, tmp_path):
    with pytest.raises(ConfigurationError, match=r"^paths: there is neither file nor directory"):
        source(paths=[str(tmp_path / "nowhere")])
    with pytest.raises(ParameterError, match="missingFileGracePeriod"):
        source(missingFileGracePeriod="soon")


def of(kind: ObjectKind, *documents: dict) -> ObjectsOfKind:
    objects = {each.id: each for each in map(decoded, documents)}
    return ObjectsOfKind(kind, objects, frozenset(objects))


SCORES = ObjectKind("cluster.open-cluster-management.io", "AddOnPlacementScore")
NODE, POD = ObjectKind("", "Node"), ObjectKind("", "Pod", everywhere=True)


async def test_objects_of_an_api_server_count_where_no_file_has_them(source):
    built = source(scores("east", gpuClusterAvailable=60))
    changed = of(SCORES, scores("east", gpuClusterAvailable=1), scores("west", gpuClusterAvailable=2))
    concerns = await built.objects_changed([changed])
    assert (concerns(EAST), concerns(WEST)) == (False, True)
    assert (tag(built).scores, tag(built, WEST).scores) == ({GPU: 60.0}, {GPU: 2.0})


def test_kinds_are_those_of_the_hub(source):
    assert {(kind.group, kind.kind) for kind in source().kinds} == {(each.group, each.kind) for each in CLUSTERS}
    assert source(readCluster=False).kinds == ()
    own = source(usageScores=True)
    assert set(own.kinds) - set(source().kinds) >= {NODE, POD}
    assert own.can_read(ObjectKind("", "Pod", "v1"))
    assert not own.can_read(ObjectKind("", "Secret"))


def node(gpus: str) -> dict:
    return manifest("v1", "Node", "n1", status={"allocatable": {"nvidia.com/gpu": gpus}})


def pod(name: str, gpus: str) -> dict:
    resources = {"requests": {"nvidia.com/gpu": gpus}}
    return manifest(
        "v1", "Pod", name, "llm", spec={"nodeName": "n1", "containers": [{"name": "v", "resources": resources}]}
    )


LOCAL = Endpoint("x", "10.0.0.9", 8000)


def test_ocm_6_usage_of_the_nodes_in_files_is_a_score_of_the_local_cluster(source):
    built = source(node("8"), pod("a", "4"), usageScores=True)
    assert tag(built, LOCAL).scores[GPU] == -60.0  # 4 of 20
    assert tag(source(node("8"), pod("a", "4")), LOCAL).scores == {}
    named = source(node("8"), pod("a", "4"), usageScores=True, cluster="east")
    assert tag(named).scores[f"{SCORE}/gpuNodeAvailable"] == -60.0
    items = {"gpu": {"resources": ["nvidia.com/gpu"], "max": "8"}}
    assert tag(source(node("8"), pod("a", "4"), usageScores=True, usageItems=items), LOCAL).scores[GPU] == 0.0


def test_ocm_6_usage_without_pods_is_not_guessed(source):
    built = source(node("8"), usageScores=True)
    assert tag(built, LOCAL).scores == {}
    assert built.inputs.remarks[0].startswith("usageScores needs the pods of the cluster, but there are no pods")


async def test_ocm_6_usage_follows_pods_of_the_api_server_without_haste(source, clock):
    built = source(usageScores=True)
    await built.objects_changed([of(NODE, node("8")), of(POD, pod("a", "4"))])
    assert tag(built, LOCAL).scores[GPU] == -60.0
    async with followed(built, LOCAL) as values:
        await built.objects_changed([of(POD, pod("a", "4"), pod("b", "4"))])
        assert tag(built, LOCAL).scores[GPU] == -60.0
        clock.advance(5)
        await until(lambda: values()[0].get(GPU) == -100.0, "usage is computed again")
