"""What is known around an endpoint before any source is read: its pod, its node, their labels."""

from collections.abc import Mapping
from dataclasses import dataclass

from epp.accelerators.inventory import HOSTNAME, Inventory
from epp.accelerators.objects.core import Node, Pod
from epp.framework.endpoint import Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where an endpoint is."""

    endpoint: Endpoint
    pod: Pod | None = None
    node: Node | None = None
    node_name: str = ""
    node_labels: Mapping[str, str]
    """Those of the node; where no node object is known, the endpoint's own in their place."""

    @property
    def pod_keys(self) -> tuple[str, ...]:
        """What objects that name the pod are found by (see PodReference.keys).

        With a known UID, those that have that UID or none; a pod of the same name that is no more has another one.
        """
        uid = "" if self.pod is None else self.pod.metadata.uid
        return (uid, self.pod_id) if uid else (f"name:{self.pod_id}",)

    @property
    def pod_id(self) -> str:
        """`namespace/name`."""
        return self.endpoint.id if self.pod is None else self.pod.id

    @property
    def boot_id(self) -> str:
        """Changes when the node is started anew; empty where nobody says."""
        return "" if self.node is None else self.node.status.node_info.boot_id


def surroundings_of(endpoint: Endpoint, inventory: Inventory, *, trust_pod_labels: bool = False) -> Surroundings:
    """Return where the endpoint is.

    Labels of an endpoint that has a pod are the pod's own, and nobody's word on the node unless pods are trusted.
    """
    pod = inventory.pods.get(endpoint.id) or inventory.pods_by_ip.get(endpoint.address)
    labels = endpoint.labels if pod is None or trust_pod_labels else {}
    name = (pod.spec.node_name if pod is not None else "") or endpoint.node or labels.get(HOSTNAME, "")
    node = inventory.nodes.get(name) or inventory.nodes_by_hostname.get(name)
    return Surroundings(
        endpoint=endpoint,
        pod=pod,
        node=node,
        node_name=name if node is None else node.name,
        node_labels=labels if node is None else node.metadata.labels,
    )
