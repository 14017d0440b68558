# SPDX-License-Identifier: Apache-2.0
import pytest

from epp.framework import Endpoint, ManualClock, Topology
from epp.framework.datalayer import EndpointNotifications
from epp.framework.registry import Registry
from epp.framework.snapshot import TOPOLOGY
from epp.plugins.taggers import EndpointNotificationSource, TopologyExtractor

LABELS = {
    "kubernetes.io/hostname": "node-1",
    "topology.kubernetes.io/rack": "r7",
    "topology.kubernetes.io/zone": "eu-1a",
    "topology.kubernetes.io/region": "eu-1",
    "machine": "m-42",
}


def topology(labels: dict[str, str], **parameters: str) -> Topology:
    registry = Registry({})
    registry.register(TopologyExtractor)
    tagger = registry.build("topology-extractor", parameters, name="t", clock=ManualClock())
    assert isinstance(tagger, TopologyExtractor)
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


def test_notification_source_takes_no_parameters():
    registry = Registry({})
    registry.register(EndpointNotificationSource)
    source = registry.build("endpoint-notification-source", {}, name="n", clock=ManualClock())
    assert isinstance(source, EndpointNotifications)
