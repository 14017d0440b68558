# SPDX-License-Identifier: Apache-2.0
"""Pod and node of an endpoint, their labels, and the placement templates that apply to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from epp.framework.accelerators.placement import EndpointPlacement, PlacementTemplate
from epp.framework.endpoint import Endpoint
from epp.hardware.inventory import HOSTNAME, Inventory
from epp.hardware.tensor_fusion import read_template
from epp.kube.objects.core import Node, Pod
from epp.kube.objects.tensor_fusion import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointContext:
    """Pod and node of an endpoint."""

    endpoint: Endpoint
    pod: Pod | None = None
    node: Node | None = None
    node_name: str = ""
    node_labels: Mapping[str, str]
    """Labels of the node; those of the endpoint if the node is unknown."""

    @property
    def pod_keys(self) -> tuple[str, ...]:
        """Keys under which objects that refer to the pod are found (see PodReference.keys).

        With a known UID, references with this UID or without any; a former pod of the same name has another UID.
        """
        uid = self.endpoint.uid if self.pod is None else self.pod.metadata.uid
        return (uid, self.pod_id) if uid else (f"name:{self.pod_id}",)

    @property
    def pod_id(self) -> str:
        """`namespace/name`."""
        return self.endpoint.id if self.pod is None else self.pod.id

    @property
    def boot_id(self) -> str:
        """Boot id of the node; empty if unknown."""
        return "" if self.node is None else self.node.status.node_info.boot_id


def context_of(endpoint: Endpoint, inventory: Inventory, *, trust_pod_labels: bool = False) -> EndpointContext:
    """Return pod and node of the endpoint.

    Labels of an endpoint with a pod are those of the pod: they describe the node only if pods are trusted.
    """
    pod = _pod_of(endpoint, inventory)
    labels = endpoint.labels if pod is None or trust_pod_labels else {}
    name = (pod.spec.node_name if pod is not None else "") or endpoint.node or labels.get(HOSTNAME, "")
    node = inventory.nodes.get(name) or inventory.nodes_by_hostname.get(name)
    return EndpointContext(
        endpoint=endpoint,
        pod=pod,
        node=node,
        node_name=name if node is None else node.name,
        node_labels=labels if node is None else node.metadata.labels,
    )


def _pod_of(endpoint: Endpoint, inventory: Inventory) -> Pod | None:
    """Return the pod with the UID of the endpoint, or else with its name or address and no UID that differs."""
    if endpoint.uid and (found := inventory.pods_by_uid.get(endpoint.uid)):
        return found[-1]
    named = inventory.pods.get(endpoint.id)
    if named is not None and _may_be(named, endpoint):
        return named
    here = inventory.pods_by_ip.get(endpoint.address, ())
    return here[0] if len(here) == 1 and _may_be(here[0], endpoint) else None


def _may_be(pod: Pod, endpoint: Endpoint) -> bool:
    """Return whether the UIDs do not tell that it is another pod, which had the name or address before."""
    return not endpoint.uid or pod.metadata.uid in {"", endpoint.uid}


class Placements:
    """Templates of one inventory."""

    def __init__(self, inventory: Inventory, annotation_domain: str) -> None:
        self._pools = inventory.gpu_pools
        self._label = f"{annotation_domain}/gpupool"
        found = {each.name: read_template(each)[0] for each in inventory.scheduling_templates.values()}
        self._templates: Mapping[str, PlacementTemplate] = MappingProxyType(found)
        self._records: dict[tuple[str, bool], EndpointPlacement] = {}

    def of(self, context: EndpointContext, gpus: Sequence[Gpu]) -> EndpointPlacement:
        """Return what the templates are for an endpoint with these GPUs; one record for all that are alike.

        Its pool is the one in the annotation of its pod, else that of its first GPU.
        """
        annotations = {} if context.pod is None else context.pod.metadata.annotations
        name = annotations.get(self._label) or (gpus[0].metadata.labels.get(self._label, "") if gpus else "")
        pool = self._pools.get(name)
        own = "" if pool is None else pool.template
        is_local = bool(gpus) and all(gpu.node == context.node_name for gpu in gpus)
        found = self._records.get((own, is_local))
        if found is None:
            found = EndpointPlacement(own=own, templates=self._templates, is_local=is_local)
            self._records[own, is_local] = found
        return found
