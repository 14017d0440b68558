# SPDX-License-Identifier: Apache-2.0
"""Taggers: read the labels of an endpoint into its attributes."""

from epp.framework import TOPOLOGY, Endpoint, Parameters, Topology
from epp.framework.datalayer import EndpointNotifications, Report, Tagger
from epp.framework.limits import NameOrDefault


class EndpointNotificationSource(EndpointNotifications):
    """The source of taggers in a configuration: each endpoint, when it joins the pool or changes."""

    plugin_type = "endpoint-notification-source"


class TopologyParameters(Parameters, frozen=True):
    """Names of the endpoint labels that hold its place."""

    hostname: NameOrDefault = "kubernetes.io/hostname"
    """Label with the name of the machine."""
    rack: NameOrDefault = "topology.kubernetes.io/rack"
    """Label with the name of the rack."""
    zone: NameOrDefault = "topology.kubernetes.io/zone"
    """Label with the name of the zone."""
    region: NameOrDefault = "topology.kubernetes.io/region"
    """Label with the name of the region."""


class TopologyExtractor(Tagger[TopologyParameters]):
    """Reads host, rack, zone and region of an endpoint from its labels; a place without a label is unknown."""

    plugin_type = "topology-extractor"
    writes = (TOPOLOGY,)

    def tag(self, endpoint: Endpoint) -> Report:
        names, labels = self.parameters, endpoint.labels
        topology = Topology(
            host=labels.get(names.hostname, ""),
            rack=labels.get(names.rack, ""),
            zone=labels.get(names.zone, ""),
            region=labels.get(names.region, ""),
        )
        return Report(attributes={TOPOLOGY: topology})
