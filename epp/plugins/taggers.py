"""Taggers: read the labels of an endpoint into its attributes."""

from epp.framework import TOPOLOGY, Endpoint, Parameters, Topology
from epp.framework.datalayer import EndpointNotifications, Report, Tagger


class EndpointNotificationSource(EndpointNotifications):
    """The source of taggers in a configuration: each endpoint, when it joins the pool or changes."""

    plugin_type = "endpoint-notification-source"


class TopologyParameters(Parameters, frozen=True):
    """Names of the endpoint labels that hold its place."""

    host_label: str = "kubernetes.io/hostname"
    """Label with the name of the machine."""
    hostname_label: str = ""
    """llm-d-router's name of `hostLabel`; takes precedence."""
    rack_label: str = "topology.kubernetes.io/rack"
    """Label with the name of the rack."""
    zone_label: str = "topology.kubernetes.io/zone"
    """Label with the name of the zone."""
    region_label: str = "topology.kubernetes.io/region"
    """Label with the name of the region."""


class TopologyExtractor(Tagger[TopologyParameters]):
    """Reads host, rack, zone and region of an endpoint from its labels; a place without a label is unknown."""

    plugin_type = "topology-extractor"
    writes = (TOPOLOGY,)

    def tag(self, endpoint: Endpoint) -> Report:
        names, labels = self.parameters, endpoint.labels
        topology = Topology(
            host=labels.get(names.hostname_label or names.host_label, ""),
            rack=labels.get(names.rack_label, ""),
            zone=labels.get(names.zone_label, ""),
            region=labels.get(names.region_label, ""),
        )
        return Report(attributes={TOPOLOGY: topology})
