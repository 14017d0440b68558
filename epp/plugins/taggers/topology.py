"""Reads where an endpoint stands out of its labels."""

from epp.framework import Endpoint, Parameters
from epp.framework.datalayer import Report, Tagger
from epp.framework.snapshot import TOPOLOGY, Topology


class TopologyParameters(Parameters, frozen=True):
    """Names of the endpoint labels that say where it stands."""

    host_label: str = "kubernetes.io/hostname"
    """The label with the name of the machine."""
    hostname_label: str = ""
    """What llm-d-router calls `hostLabel`; goes before it."""
    rack_label: str = "topology.kubernetes.io/rack"
    """The label with the name of the rack."""
    zone_label: str = "topology.kubernetes.io/zone"
    """The label with the name of the zone."""
    region_label: str = "topology.kubernetes.io/region"
    """The label with the name of the region."""


class TopologyExtractor(Tagger[TopologyParameters]):
    """Reads host, rack, zone and region of an endpoint out of its labels; one without the label is not known."""

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
