# SPDX-License-Identifier: Apache-2.0
"""The extractor of topology labels: the location of an endpoint from its own labels and those of its node."""

from collections.abc import Mapping, Sequence

import structlog

from epp.framework.cluster_objects import ObjectsOfKind
from epp.framework.datalayer import AffectedEndpoints, Report, Tagger, every_endpoint
from epp.framework.endpoint import Endpoint
from epp.framework.limits import NameOrDefault
from epp.framework.plugin import Parameters
from epp.framework.snapshot import TOPOLOGY, Topology
from epp.kube.objects.core import Node
from epp.kube.objects.followed import Change, Effect, FollowsObjects
from epp.kube.objects.last_good import ObjectsByKind

_NODE = ("", "Node")
_GRACE_PERIOD = "5m"
"""Time for which the nodes of a missing file stay in effect."""
_MOST_WARNINGS = 20
_log = structlog.get_logger()


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
    paths: tuple[str, ...] = ()
    """Files, or directories of files (.yaml, .yml, .json), with Node objects, in addition to those of the cluster and
    of `--objects`; new versions apply within a second. An object in a file replaces one with the same name."""


class TopologyExtractor(Tagger[TopologyParameters], FollowsObjects[TopologyParameters]):
    """Reads host, rack, zone and region of an endpoint from its labels; a level without a label is unknown.

    The cluster is the one that discovery reports, or `localCluster`. A missing label is read from the Node of the
    endpoint, in the cluster or in a file, because pods rarely have these labels. Without the right to list nodes, only
    labels of pods and of nodes in files are used.
    """

    plugin_type = "topology-extractor"
    writes = (TOPOLOGY,)

    def setup(self) -> None:
        self._nodes: Mapping[str, Node] = {}
        self._warned: set[str] = set()
        self.start_following(self.parameters.paths, frozenset({_NODE}))

    def tag(self, endpoint: Endpoint) -> Report:
        """Return the location; log an endpoint without a location, once for each node."""
        found = self._place(endpoint)
        if found == Topology() and self._nodes and endpoint.node not in self._warned:
            if len(self._warned) < _MOST_WARNINGS:
                known = "has none of the labels" if endpoint.node in self._nodes else "is not known"
                _log.warning(
                    "location of an endpoint is unknown",
                    plugin=self.name,
                    endpoint=endpoint.id,
                    reason=f"its node {endpoint.node!r} {known}",
                )
            self._warned.add(endpoint.node)
        return Report(attributes={TOPOLOGY: found})

    def tag_made_up(self, endpoint: Endpoint) -> Report:
        return Report(attributes={TOPOLOGY: self._place(endpoint)})

    def _place(self, endpoint: Endpoint) -> Topology:
        names, node = self.parameters, self._nodes.get(endpoint.node)
        of_node: Mapping[str, str] = {} if node is None else node.metadata.labels

        def place(label: str) -> str:
            return endpoint.labels.get(label) or of_node.get(label, "")

        return Topology(
            host=place(names.hostname),
            rack=place(names.rack),
            zone=place(names.zone),
            region=place(names.region),
            cluster=endpoint.cluster or names.local_cluster,
        )

    def effect_of(self, change: Change, kinds: Sequence[ObjectsOfKind] = ()) -> Effect:
        """Return the nodes of these objects; a change in the cluster affects the endpoints on the changed nodes."""
        nodes = ObjectsByKind(change.files).of(Node)
        names = frozenset(name for each in kinds for name in each.changed)

        def effect() -> AffectedEndpoints:
            self._nodes = nodes
            return (lambda endpoint: endpoint.node in names) if kinds else every_endpoint

        return effect
