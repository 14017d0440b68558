# SPDX-License-Identifier: Apache-2.0
"""Data sources that a configuration names, and the extractor of topology labels."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from epp.framework import TOPOLOGY, Endpoint, Parameters, Topology
from epp.framework.cluster import ObjectKind, ObjectNotifications, ObjectReader, ObjectsOfKind
from epp.framework.datalayer import AffectedEndpoints, EndpointNotifications, Report, Tagger
from epp.framework.limits import Name, NameOrDefault

_NODE = ObjectKind("", "Node")


class EndpointNotificationSource(EndpointNotifications):
    """Gives taggers each endpoint that joins the pool or changes."""

    plugin_type = "endpoint-notification-source"


class TopologyParameters(Parameters, frozen=True):
    """Names of the labels that hold the location of an endpoint."""

    hostname: NameOrDefault = "kubernetes.io/hostname"
    """Label with the name of the machine."""
    rack: NameOrDefault = "topology.kubernetes.io/rack"
    """Label with the name of the rack."""
    zone: NameOrDefault = "topology.kubernetes.io/zone"
    """Label with the name of the zone."""
    region: NameOrDefault = "topology.kubernetes.io/region"
    """Label with the name of the region."""
    local_cluster: str = ""
    """Cluster of endpoints for which discovery reports no cluster; by default it is unknown."""


class TopologyExtractor(Tagger[TopologyParameters], ObjectReader[TopologyParameters]):
    """Reads host, rack, zone and region of an endpoint from its labels; a level without a label is unknown.

    The cluster is the one that discovery reports, or `localCluster`. In Kubernetes, a label that the pod lacks is read
    from its node, because pods rarely have these labels. Without the right to list nodes, only labels of pods count.
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


_VERSION = re.compile(r"[a-z0-9]{1,63}")
_KIND = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")
_GROUP = re.compile(r"[a-z0-9.-]{0,253}")


class KubernetesNotificationParameters(Parameters, frozen=True):
    """Group, version and kind of the objects, as in their `apiVersion` and `kind`."""

    version: Name
    """Version of the group, such as v1."""
    kind: Name
    """Kind of the objects, such as Node."""
    group: str = ""
    """API group, such as apps; empty for the core group of pods and nodes."""

    def __post_init__(self) -> None:
        for name, pattern, example in (("version", _VERSION, "v1"), ("kind", _KIND, "Node"), ("group", _GROUP, "apps")):
            value = getattr(self, name)
            if not pattern.fullmatch(value):
                raise ValueError(f"{name} is {value!r:.80}: write a name such as {example}")


class KubernetesNotificationSource(ObjectNotifications[KubernetesNotificationParameters]):
    """Watches the objects of one kind, for extractors that read objects.

    Objects of a kind with namespaces are read in the namespace of the pool; those of InstaSlice in all namespaces, if
    the picker has the right. A kind that is missing is watched once it is installed and the picker may list and watch
    it. Without a Kubernetes cluster, the source has no effect.
    """

    plugin_type = "k8s-notification-source"

    @property
    def kind(self) -> ObjectKind:
        return ObjectKind(self.parameters.group, self.parameters.kind, self.parameters.version)
