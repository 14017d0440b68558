# SPDX-License-Identifier: Apache-2.0
import asyncio

import pytest

from epp.framework import ConfigurationError, Endpoint, Topology
from epp.framework.cluster import ObjectKind, ObjectsOfKind
from epp.framework.datalayer import EndpointNotifications
from epp.framework.snapshot import TOPOLOGY
from epp.plugins.data_sources import EndpointNotificationSource, KubernetesNotificationSource, TopologyExtractor
from tests.support.plugins import built

LABELS = {
    "kubernetes.io/hostname": "node-1",
    "topology.kubernetes.io/rack": "r7",
    "topology.kubernetes.io/zone": "eu-1a",
    "topology.kubernetes.io/region": "eu-1",
    "machine": "m-42",
}


def topology(labels: dict[str, str], **parameters: str) -> Topology:
    tagger = built(TopologyExtractor, parameters)
    assert isinstance(tagger, TopologyExtractor)
    report = tagger.tag(Endpoint("e", "10.0.0.1", 8000, labels=labels))
    assert report.columns == {}
    return report.attributes[TOPOLOGY]


def test_standard_labels_say_where_an_endpoint_stands():
    assert topology(LABELS) == Topology("node-1", "r7", "eu-1a", "eu-1")


def test_labels_of_nodes_count_where_endpoints_have_none():
    (kind,) = TopologyExtractor().kinds
    tagger = TopologyExtractor()
    nodes = {"n1": {"topology.kubernetes.io/zone": "eu-1a", "topology.kubernetes.io/region": "eu-1"}}
    asyncio.run(tagger.objects_changed([ObjectsOfKind(kind, nodes, frozenset(nodes))]))
    pod = Endpoint("e", "10.0.0.1", 8000, labels={"topology.kubernetes.io/zone": "mine"}, node="n1")
    assert tagger.tag(pod).attributes[TOPOLOGY] == Topology(zone="mine", region="eu-1")


def test_label_that_is_absent_leaves_the_place_unknown():
    assert topology({"topology.kubernetes.io/zone": "eu-1a"}) == Topology(zone="eu-1a")
    assert topology({}) == TOPOLOGY.unknown


@pytest.mark.parametrize(("parameter", "place"), [("hostname", "host"), ("rack", "rack"), ("zone", "zone")])
def test_other_labels_can_be_named(parameter, place):
    assert getattr(topology(LABELS, **{parameter: "machine"}), place) == "m-42"


def test_notification_source_takes_no_parameters():
    source = built(EndpointNotificationSource, {})
    assert isinstance(source, EndpointNotifications)


def test_label_of_the_node_counts_where_the_endpoint_has_none():
    tagger = TopologyExtractor()
    node = {"metadata": {"labels": LABELS, "annotations": {"large": "x" * 9000}}}
    nodes = {"n1": tagger.decode(node), "n2": tagger.decode({"metadata": {"name": "n2", "labels": None}})}
    concerns = asyncio.run(
        tagger.objects_changed([ObjectsOfKind(ObjectKind("", "Node", "v1"), nodes, frozenset({"n1"}))])
    )
    own = {"topology.kubernetes.io/zone": "eu-1b"}
    on_n1, on_n2 = (Endpoint("e", "10.0.0.1", 8000, labels=own, node=name) for name in ("n1", "n2"))
    assert tagger.tag(on_n1).attributes[TOPOLOGY] == Topology("node-1", "r7", "eu-1b", "eu-1")
    assert tagger.tag(on_n2).attributes[TOPOLOGY] == Topology(zone="eu-1b")
    assert (concerns(on_n1), concerns(on_n2)) == (True, False)


def test_notification_source_of_objects_names_their_kind():
    def kind(**parameters: str) -> ObjectKind:
        source = built(KubernetesNotificationSource, parameters)
        assert isinstance(source, KubernetesNotificationSource)
        return source.kind

    assert kind(version="v1", kind="Node") == ObjectKind("", "Node", "v1")
    assert kind(group="ome.io", version="v1beta1", kind="AcceleratorClass") == ObjectKind(
        "ome.io", "AcceleratorClass", "v1beta1"
    )
    with pytest.raises(ConfigurationError, match="kind"):
        kind(version="v1")
    with pytest.raises(ConfigurationError, match=r"version is .*: write a name such as v1"):
        kind(version="../v1", kind="Node")


def test_gie_8_cluster_is_the_one_that_discovery_names_or_the_local_one():
    tagger = built(TopologyExtractor, {"localCluster": "west"})
    assert isinstance(tagger, TopologyExtractor)
    assert tagger.tag(Endpoint("e", "10.0.0.1", 8000, cluster="east")).attributes[TOPOLOGY] == Topology(cluster="east")
    assert tagger.tag(Endpoint("e", "10.0.0.1", 8000)).attributes[TOPOLOGY] == Topology(cluster="west")
    assert TopologyExtractor().tag(Endpoint("e", "10.0.0.1", 8000)).attributes[TOPOLOGY] == Topology()
