# SPDX-License-Identifier: Apache-2.0
"""Nodes and pods, and the prices that the workload variant autoscaler knows."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, Self, TypeAlias

import msgspec

from epp.kube.objects.base import ClusterObject, Condition, Metadata, Object, Part, condition_of, convert
from epp.kube.objects.limits import AllocatableAmount, LargePrice, RequestedAmount, RequiredPrice

Requests: TypeAlias = Mapping[str, RequestedAmount]


class MatchExpression(Part, frozen=True, kw_only=True):
    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels meet the expression; NotIn holds for a missing key, an unknown operator never."""
        match self.operator:
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
        return False


class LabelSelector(Part, frozen=True, kw_only=True):
    """Tests of labels that must all hold; an empty selector matches everything."""

    match_labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    match_expressions: tuple[MatchExpression, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            test.holds(labels) for test in self.match_expressions
        )


class NodeSelectorTerm(Part, frozen=True, kw_only=True):
    """Tests that must all hold; an empty term matches no node."""

    match_expressions: tuple[MatchExpression, ...] = ()
    match_fields: tuple[MatchExpression, ...] = ()


class NodeSelector(Part, frozen=True, kw_only=True):
    """Alternative terms."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class Taint(Part, frozen=True, kw_only=True):
    key: str
    value: str = ""
    effect: str = ""


class Node(ClusterObject, frozen=True, kw_only=True):
    unschedulable: bool = msgspec.field(default=False, name="spec.unschedulable")
    boot_id: str = msgspec.field(default="", name="status.nodeInfo.bootID")
    allocatable: Mapping[str, AllocatableAmount] = msgspec.field(default_factory=dict, name="status.allocatable")
    conditions: tuple[Condition, ...] = msgspec.field(default=(), name="status.conditions")

    @property
    def schedulable(self) -> bool:
        """Whether the node accepts new pods: it is not cordoned, and ready or in unknown state."""
        ready = condition_of(self.conditions, "Ready")
        return not self.unschedulable and (ready is None or ready.status == "True")


class ContainerResources(Part, frozen=True, kw_only=True):
    limits: Requests = msgspec.field(default_factory=dict)
    requests: Requests = msgspec.field(default_factory=dict)


class Container(Part, frozen=True, kw_only=True):
    """Fields of type Any accept any value: an invalid one does not invalidate the pod."""

    name: str
    resources: ContainerResources = ContainerResources()
    restart_policy: str = ""
    """`Always` for a sidecar: an init container that keeps running."""
    ports: Any = ()
    command: Any = ()
    args: Any = ()


class PodClaim(Part, frozen=True, kw_only=True):
    """A ResourceClaim in the spec of a pod, or the one that was created for it in the status."""

    name: str
    resource_claim_name: str = ""


class PodSpec(Part, frozen=True, kw_only=True):
    node_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: ContainerResources = ContainerResources()
    """Resources of the whole pod, in place of the sum of its containers."""
    overhead: Requests = msgspec.field(default_factory=dict)
    resource_claims: tuple[PodClaim, ...] = ()


class PodIP(Part, frozen=True, kw_only=True):
    ip: str


class ResourceHealth(Part, frozen=True, kw_only=True):
    """Health of one device that a container has."""

    resource_id: str = msgspec.field(default="", name="resourceID")
    """`driver/pool/device`, or an id of the device plugin."""
    health: str = ""
    """Healthy, Unhealthy or Unknown."""


class ResourceStatus(Part, frozen=True, kw_only=True):
    """Devices of a container for one resource."""

    resources: tuple[ResourceHealth, ...] = ()


class ContainerStatus(Part, frozen=True, kw_only=True):
    allocated_resources_status: tuple[ResourceStatus, ...] = ()


class PodStatus(Part, frozen=True, kw_only=True):
    phase: str = ""
    host_ip: str = msgspec.field(default="", name="hostIP")
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: tuple[PodIP, ...] = msgspec.field(default=(), name="podIPs")
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    resource_claim_statuses: tuple[PodClaim, ...] = ()


class Pod(Object, frozen=True, kw_only=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()
    extended_resource_claim: str = msgspec.field(
        default="", name="status.extendedResourceClaimStatus.resourceClaimName"
    )
    """Name of the ResourceClaim behind the extended resources of the containers."""
    mig_uuids: frozenset[str] = msgspec.field(default=frozenset(), name="epp/mig-uuids")
    """UUIDs of MIG slices in the environment of its containers."""
    environment_maps: frozenset[str] = msgspec.field(default=frozenset(), name="epp/environment-maps")
    """ConfigMaps with environment variables of its containers, as `namespace/name`."""

    def contradiction(self) -> tuple[str, Self] | None:
        """Return a container with a repeated name; the last container with a name is used."""
        for field, containers in (("containers", self.spec.containers), ("init_containers", self.spec.init_containers)):
            last = {each.name: index for index, each in enumerate(containers)}
            if len(last) == len(containers):
                continue
            first = next(index for index, each in enumerate(containers) if last[each.name] != index)
            name = containers[first].name
            place = f"spec.{'containers' if field == 'containers' else 'initContainers'}"
            sentence = (
                f"{place}[{first}] has the name {name!r} of {place}[{last[name]}]: give each container its own name"
            )
            kept = tuple(each for index, each in enumerate(containers) if index != first)
            return sentence, msgspec.structs.replace(self, spec=msgspec.structs.replace(self.spec, **{field: kept}))
        return None

    @property
    def ready(self) -> bool:
        condition = condition_of(self.status.conditions, "Ready")
        return condition is not None and condition.status == "True"

    @property
    def ended(self) -> bool:
        return self.status.phase in {"Succeeded", "Failed"}

    @property
    def claims(self) -> tuple[str, ...]:
        """ResourceClaims, as `namespace/name`, from status and spec, including the claim for extended resources."""
        names = [
            *(status.resource_claim_name for status in self.status.resource_claim_statuses),
            *(claim.resource_claim_name for claim in self.spec.resource_claims),
            self.extended_resource_claim,
        ]
        return tuple(f"{self.metadata.namespace}/{name}" for name in names if name)

    @property
    def addresses(self) -> frozenset[str]:
        return frozenset(ip for ip in (self.status.pod_ip, *(each.ip for each in self.status.pod_ips)) if ip)


class PodReference(Part, frozen=True, kw_only=True):
    namespace: str = ""
    name: str = ""
    uid: str = ""

    @property
    def id(self) -> str:
        """`namespace/name`; empty without a name."""
        return f"{self.namespace}/{self.name}" if self.name else ""

    @property
    def keys(self) -> frozenset[str]:
        """Index keys: the UID, or the id without one; and always `name:` followed by the id."""
        return frozenset({self.uid or self.id, f"name:{self.id}"} if self.id else {self.uid}) - {""}


DEVICE_VARIABLES = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
UNIT_COSTS_NAME = "accelerator-unit-costs"
DEFAULT_VARIANT_COST = Fraction(10)
"""Default cost of a VariantAutoscaling; it is unrelated to the hardware, so it is not used as a price."""


class UnitCost(Part, frozen=True, kw_only=True):
    """Price of one accelerator, in the unit `costUnit` of the tagger."""

    device: str = ""
    cost: RequiredPrice


class UnitCosts(Object, frozen=True, kw_only=True):
    """Prices by accelerator name, such as `A100`."""

    costs: Mapping[str, UnitCost] = msgspec.field(name="data")


class VariantAutoscaling(Object, frozen=True, kw_only=True):
    """A variant of a model's servers and its price."""

    target_kind: str = msgspec.field(default="Deployment", name="spec.scaleTargetRef.kind")
    target_name: str = msgspec.field(default="", name="spec.scaleTargetRef.name")
    cost: LargePrice = msgspec.field(default=None, name="spec.variantCost")
    """Price of one replica with all its accelerators."""

    @property
    def price(self) -> Fraction | None:
        """Price; None for the default, which the API server sets if the field is missing."""
        return None if self.cost == DEFAULT_VARIANT_COST else self.cost


class MigUuids(Object, frozen=True, kw_only=True):
    """UUIDs of MIG slices in a ConfigMap of InstaSlice with environment variables of a container."""

    uuids: frozenset[str] = frozenset()


class _ConfigMap(Part, frozen=True, kw_only=True):
    metadata: Metadata
    data: Mapping[str, str] = msgspec.field(default_factory=dict)


def read_pod(document: object) -> Pod:
    """Return the pod with the MIG slices in its environment, but without the environment itself."""
    pod = convert(document, Pod)
    spec = document.get("spec") if isinstance(document, Mapping) else None
    containers = (spec.get("containers") if isinstance(spec, Mapping) else None) or ()
    own, sources = _entries(containers, "env"), _entries(containers, "envFrom")
    texts = [str(each.get("value", "")) for each in own if each.get("name") in DEVICE_VARIABLES]
    references = [reference for each in sources if isinstance(reference := each.get("configMapRef"), Mapping)]
    if not (texts or references):
        return pod
    space = pod.metadata.namespace or "default"
    names = frozenset(f"{space}/{reference['name']}" for reference in references if "name" in reference)
    return msgspec.structs.replace(pod, mig_uuids=mig_uuids_in(",".join(texts)), environment_maps=names)


def _entries(containers: Iterable[Any], field: str) -> list[Mapping[str, Any]]:
    """Return the mappings in a list field of all containers; other values are skipped."""
    lists = (each[field] for each in containers if isinstance(each.get(field), (list, tuple)))
    return [entry for entries in lists for entry in entries if isinstance(entry, Mapping)]


def mig_uuids_in(text: str) -> frozenset[str]:
    """Return the UUIDs of MIG slices in a list with commas."""
    return frozenset(part for each in text.split(",") if (part := each.strip()).startswith("MIG-"))


def read_config_map(document: object) -> UnitCosts | MigUuids | None:
    """Return prices or the UUIDs of slices; None for another ConfigMap. Raises ValueError."""
    found = convert(document, _ConfigMap)
    uuids = mig_uuids_in(",".join(found.data.get(name, "") for name in DEVICE_VARIABLES))
    if uuids:
        return MigUuids(metadata=found.metadata, uuids=uuids)
    if found.metadata.name != UNIT_COSTS_NAME:
        return None
    return UnitCosts(metadata=found.metadata, costs={name: _cost(name, text) for name, text in found.data.items()})


def _cost(name: str, text: str) -> UnitCost:
    place = f"data.{name}"
    try:
        data = msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise ValueError(f'{place} is {text!r:.60}: write JSON such as \'{{"cost": "40.00"}}\'') from None
    return convert(data, UnitCost, place)
