# SPDX-License-Identifier: Apache-2.0
"""Taggers: read the labels of an endpoint, and of its node, into its attributes."""

from collections.abc import Mapping, Sequence
from typing import Any

from epp.framework import TOPOLOGY, Endpoint, Parameters, Topology
from epp.framework.cluster import ObjectKind, ObjectReader, ObjectsOfKind
from epp.framework.datalayer import AffectedEndpoints, EndpointNotifications, Report, Tagger
from epp.framework.limits import NameOrDefault

_NODE = ObjectKind("", "Node")


class EndpointNotificationSource(EndpointNotifications):
    """The source of taggers in a configuration: each endpoint, when it joins the pool or changes."""

    plugin_type = "endpoint-notification-source"


class TopologyParameters(Parameters, frozen=True):
    """Names of the labels that hold the place of an endpoint."""

    hostname: NameOrDefault = "kubernetes.io/hostname"
    """Label with the name of the machine."""
    rack: NameOrDefault = "topology.kubernetes.io/rack"
    """Label with the name of the rack."""
    zone: NameOrDefault = "topology.kubernetes.io/zone"
    """Label with the name of the zone."""
    region: NameOrDefault = "topology.kubernetes.io/region"
    """Label with the name of the region."""
    local_cluster: str = ""
    """Name of the cluster of endpoints for which discovery names none; by default theirs is unknown."""


class TopologyExtractor(Tagger[TopologyParameters], ObjectReader[TopologyParameters]):
    """Reads host, rack, zone and region of an endpoint from its labels; a place without a label is unknown.

    The cluster is the one that discovery names, or `localCluster`.

    In a cluster, it takes the label of the node where the endpoint has none: pods rarely have these labels. Without the
    right to list nodes, only the labels of endpoints count.
    """

    plugin_type = "topology-extractor"
    writes = (TOPOLOGY,)

    def setup(self) -> None:
        self._nodes: Mapping[str, Mapping[str, str]] = {}

    def tag(self, endpoint: Endpoint) -> Report:
        names, of_pod, of_node = self.parameters, endpoint.labels, self._nodes.get(endpoint.node, {})

        def place(label: str) -> str:
            return of_pod.get(label) or of_node.get(label, "")

        topology = Topology(
            host=place(names.hostname),
            rack=place(names.rack),
            zone=place(names.zone),
            region=place(names.region),
            cluster=endpoint.cluster or names.local_cluster,
        )
        return Report(attributes={TOPOLOGY: topology})

    @property
    def kinds(self) -> Sequence[ObjectKind]:
        """The nodes of the cluster."""
        return (_NODE,)

    def can_read(self, kind: ObjectKind) -> bool:
        return (kind.group, kind.kind) == ("", "Node")

    @staticmethod
    def decode(document: Mapping[str, Any]) -> object:
        """Return the labels of a node."""
        return dict(document["metadata"].get("labels") or {})

    async def objects_changed(self, kinds: Sequence[ObjectsOfKind]) -> AffectedEndpoints:
        (nodes,) = kinds
        self._nodes = nodes.objects
        return lambda endpoint: endpoint.node in nodes.changed
