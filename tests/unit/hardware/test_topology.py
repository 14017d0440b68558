# SPDX-License-Identifier: Apache-2.0
"""The extractor of topology labels: places of endpoints by their labels, and by those of their nodes."""

import asyncio

import pytest
import yaml
from structlog.testing import capture_logs

from epp.framework import Endpoint, Topology
from epp.framework.cluster_objects import ObjectKind, ObjectsOfKind
from epp.framework.snapshot import TOPOLOGY
from epp.hardware.topology import TopologyExtractor
from tests.support.config_files import replace
from tests.support.kube.manifests import manifest
from tests.support.plugins import built
from tests.support.waiting import until


def extractor(**parameters) -> TopologyExtractor:
    return built(TopologyExtractor, parameters)


def document(name: str, labels: dict[str, str] | None) -> dict:
    return manifest("v1", "Node", name, metadata={"labels": labels})


def node(name: str, labels: dict[str, str] | None) -> object:
    return TopologyExtractor.decode(document(name, labels))


LABELS = {
    "kubernetes.io/hostname": "node-1",
    "topology.kubernetes.io/rack": "r7",
    "topology.kubernetes.io/zone": "eu-1a",
    "topology.kubernetes.io/region": "eu-1",
    "machine": "m-42",
}


def topology(labels: dict[str, str], **parameters: str) -> Topology:
    tagger = extractor(**parameters)
    report = tagger.tag(Endpoint("e", "10.0.0.1", 8000, labels=labels))
    assert report.columns == {}
    return report.attributes[TOPOLOGY]


def test_standard_labels_say_where_an_endpoint_stands():
    assert topology(LABELS) == Topology("node-1", "r7", "eu-1a", "eu-1")


def test_label_that_is_absent_leaves_the_place_unknown():
    assert topology({"topology.kubernetes.io/zone": "eu-1a"}) == Topology(zone="eu-1a")
    assert topology({}) == TOPOLOGY.unknown


@pytest.mark.parametrize(("parameter", "place"), [("hostname", "host"), ("rack", "rack"), ("zone", "zone")])
def test_other_labels_can_be_named(parameter, place):
    assert getattr(topology(LABELS, **{parameter: "machine"}), place) == "m-42"


def test_label_of_the_node_counts_where_the_endpoint_has_none():
    tagger = extractor()
    (kind,) = tagger.kinds
    nodes = {"n1": node("n1", LABELS), "n2": node("n2", None)}
    concerns = asyncio.run(tagger.objects_changed([ObjectsOfKind(kind, nodes, frozenset({"n1"}))]))
    own = {"topology.kubernetes.io/zone": "eu-1b"}
    on_n1, on_n2 = (Endpoint("e", "10.0.0.1", 8000, labels=own, node=name) for name in ("n1", "n2"))
    assert tagger.tag(on_n1).attributes[TOPOLOGY] == Topology("node-1", "r7", "eu-1b", "eu-1")
    assert tagger.tag(on_n2).attributes[TOPOLOGY] == Topology(zone="eu-1b")
    assert (concerns(on_n1), concerns(on_n2)) == (True, False)


def test_gie_8_cluster_is_the_one_that_discovery_names_or_the_local_one():
    tagger = extractor(localCluster="west")
    assert tagger.tag(Endpoint("e", "10.0.0.1", 8000, cluster="east")).attributes[TOPOLOGY] == Topology(cluster="east")
    assert tagger.tag(Endpoint("e", "10.0.0.1", 8000)).attributes[TOPOLOGY] == Topology(cluster="west")
    assert extractor().tag(Endpoint("e", "10.0.0.1", 8000)).attributes[TOPOLOGY] == Topology()


ON_N1 = Endpoint("e", "10.0.0.1", 8000, node="n1")


@pytest.fixture
def path(tmp_path):
    """A file of a node that has the labels."""
    path = tmp_path / "nodes.yaml"
    path.write_text(yaml.safe_dump(document("n1", LABELS)))
    return path


@pytest.mark.parametrize("by_parameter", [True, False], ids=["paths", "--objects"])
def test_gie_22_nodes_of_files_place_endpoints(path, by_parameter):
    tagger = extractor(**({"paths": [str(path)]} if by_parameter else {}))
    if not by_parameter:
        tagger.read_files([str(path)])
    assert tagger.tag(ON_N1).attributes[TOPOLOGY] == Topology("node-1", "r7", "eu-1a", "eu-1")


async def test_gie_22_new_version_of_a_file_of_nodes_moves_its_endpoints(path):
    tagger = extractor(paths=[str(path)])
    affected = []
    following = asyncio.create_task(tagger.follow(affected.append))
    try:
        replace(path, yaml.safe_dump(document("n1", {"topology.kubernetes.io/region": "us-2"})))
        await until(lambda: affected, "the new version is in effect", seconds=60)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert affected[0](ON_N1)
    assert tagger.tag(ON_N1).attributes[TOPOLOGY] == Topology(region="us-2")


def test_gie_22_node_of_a_file_counts_before_that_of_the_cluster(path):
    path.write_text(yaml.safe_dump(document("n1", {"topology.kubernetes.io/region": "us-2"})))
    tagger = extractor(paths=[str(path)])
    nodes = {"n1": node("n1", LABELS)}
    asyncio.run(tagger.objects_changed([ObjectsOfKind(ObjectKind("", "Node"), nodes, frozenset(nodes))]))
    assert tagger.tag(ON_N1).attributes[TOPOLOGY] == Topology(region="us-2")


def test_gie_22_endpoint_on_a_node_without_labels_is_logged_once(path):
    path.write_text("---\n".join(yaml.safe_dump(document(*each)) for each in (("n1", LABELS), ("n2", {"a": "b"}))))
    tagger = extractor(paths=[str(path)])
    with capture_logs() as logs:
        for number, name in enumerate(("n1", "n2", "n2", "n3")):
            tagger.tag(Endpoint(f"e{number}", "10.0.0.1", 8000, node=name))
    assert [entry["reason"] for entry in logs] == ["its node 'n2' has none of the labels", "its node 'n3' is not known"]
