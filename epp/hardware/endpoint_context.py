# SPDX-License-Identifier: Apache-2.0
"""Pod and node of an endpoint, their labels, and the placement templates that apply to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from epp.framework.accelerators.arrays import EndpointPlacement, PlacementTemplate
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
    """Labels of the node; those of the endpoint for an unknown node."""

    @property
    def pod_keys(self) -> tuple[str, ...]:
        """Index keys of references to the pod (see PodReference.keys).

        A known UID excludes references to a former pod of the same name, which has another UID.
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
        return "" if self.node is None else self.node.boot_id


def context_of(endpoint: Endpoint, inventory: Inventory, *, trust_pod_labels: bool = False) -> EndpointContext:
    """Return pod and node of the endpoint.

    The labels of an endpoint with a pod are those of the pod; they describe the node only if pods are trusted.
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
    """Return the pod with the UID of the endpoint, or with its name or address unless the UID differs."""
    if endpoint.uid and (found := inventory.pods_by_uid.get(endpoint.uid)):
        return found[-1]
    named = inventory.pods.get(endpoint.id)
    if named is not None and _may_be(named, endpoint):
        return named
    here = inventory.pods_by_ip.get(endpoint.address, ())
    return here[0] if len(here) == 1 and _may_be(here[0], endpoint) else None


def _may_be(pod: Pod, endpoint: Endpoint) -> bool:
    """Return whether the UIDs match as far as they are known: a former pod may have had this name or address."""
    return not endpoint.uid or pod.metadata.uid in {"", endpoint.uid}


class Placements:
    """Placement templates of one inventory."""

    def __init__(self, inventory: Inventory, annotation_domain: str) -> None:
        self._pools = inventory.gpu_pools
        self._label = f"{annotation_domain}/gpupool"
        found = {each.name: read_template(each)[0] for each in inventory.scheduling_templates.values()}
        self._templates: Mapping[str, PlacementTemplate] = MappingProxyType(found)
        self._records: dict[tuple[str, bool], EndpointPlacement] = {}

    def of(self, context: EndpointContext, gpus: Sequence[Gpu]) -> EndpointPlacement:
        """Return the templates for an endpoint with these GPUs; equal endpoints share one record.

        The pool comes from the annotation of the pod or from the first GPU.
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
