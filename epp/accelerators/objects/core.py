"""Nodes and pods."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Literal, TypeAlias

import msgspec

from epp.accelerators.objects.base import ClusterObject, Condition, Object, Part, condition_of

Requests: TypeAlias = Mapping[str, Fraction]


class MatchExpression(Part, frozen=True, kw_only=True, rename="camel"):
    """A test of one label."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeSelectorTerm(Part, frozen=True, kw_only=True, rename="camel"):
    """Tests that must all hold; an empty term holds nowhere."""

    match_expressions: tuple[MatchExpression, ...] = ()
    match_fields: tuple[MatchExpression, ...] = ()


class NodeSelector(Part, frozen=True, kw_only=True, rename="camel"):
    """Terms of which one must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class Taint(Part, frozen=True, kw_only=True, rename="camel"):
    """A taint of a node or a device."""

    key: str
    value: str = ""
    effect: str = ""


class NodeInfo(Part, frozen=True, kw_only=True, rename="camel"):
    """What the node's agent says of it."""

    boot_id: str = msgspec.field(default="", name="bootID")


class NodeSpec(Part, frozen=True, kw_only=True, rename="camel"):
    """What is wanted of a node."""

    taints: tuple[Taint, ...] = ()


class NodeStatus(Part, frozen=True, kw_only=True, rename="camel"):
    """How a node is."""

    conditions: tuple[Condition, ...] = ()
    node_info: NodeInfo = NodeInfo()
    allocatable: Requests = msgspec.field(default_factory=dict)


class Node(ClusterObject, frozen=True, kw_only=True, rename="camel"):
    """A machine."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ClaimUse(Part, frozen=True, kw_only=True, rename="camel"):
    """A claim that a container uses, by the pod's name for it."""

    name: str
    request: str = ""


class ContainerResources(Part, frozen=True, kw_only=True, rename="camel"):
    """What a container asks for."""

    limits: Requests = msgspec.field(default_factory=dict)
    requests: Requests = msgspec.field(default_factory=dict)
    claims: tuple[ClaimUse, ...] = ()


class Container(Part, frozen=True, kw_only=True, rename="camel"):
    """A container of a pod."""

    name: str
    resources: ContainerResources = ContainerResources()
    restart_policy: str = ""
    """Always, for an init container that goes on running beside the others."""


class PodClaim(Part, frozen=True, kw_only=True, rename="camel"):
    """A claim that a pod asks for."""

    name: str
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class PodSpec(Part, frozen=True, kw_only=True, rename="camel"):
    """What is wanted of a pod."""

    node_name: str = ""
    host_network: bool = False
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resource_claims: tuple[PodClaim, ...] = ()


class PodIP(Part, frozen=True, kw_only=True, rename="camel"):
    """One of a pod's addresses."""

    ip: str


class ClaimStatus(Part, frozen=True, kw_only=True, rename="camel"):
    """Which claim was made for a pod's request."""

    name: str
    resource_claim_name: str = ""


class ExtendedResourceClaimStatus(Part, frozen=True, kw_only=True, rename="camel"):
    """Which claim stands for the extended resources that the containers ask for."""

    resource_claim_name: str = ""


class ResourceHealth(Part, frozen=True, kw_only=True, rename="camel"):
    """Health of one device that a container has."""

    resource_id: str = msgspec.field(default="", name="resourceID")
    """`driver/pool/device`, or what a device plugin calls it."""
    health: Literal["Healthy", "Unhealthy", "Unknown"] | str = ""  # noqa: PYI051  # those are the ones in use
    message: str = ""


class ResourceStatus(Part, frozen=True, kw_only=True, rename="camel"):
    """Devices that a container was given for one of its resources."""

    name: str = ""
    """`claim:<claim>/<request>`, or an extended resource."""
    resources: tuple[ResourceHealth, ...] = ()


class ContainerStatus(Part, frozen=True, kw_only=True, rename="camel"):
    """How a container is."""

    name: str = ""
    allocated_resources_status: tuple[ResourceStatus, ...] = ()


class PodStatus(Part, frozen=True, kw_only=True, rename="camel"):
    """How a pod is."""

    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: tuple[PodIP, ...] = msgspec.field(default=(), name="podIPs")
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    resource_claim_statuses: tuple[ClaimStatus, ...] = ()
    extended_resource_claim_status: ExtendedResourceClaimStatus = ExtendedResourceClaimStatus()


class Pod(Object, frozen=True, kw_only=True, rename="camel"):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def ready(self) -> bool:
        """Whether it says that it takes requests."""
        condition = condition_of(self.status.conditions, "Ready")
        return condition is not None and condition.status == "True"

    @property
    def ended(self) -> bool:
        """Whether it has run to its end."""
        return self.status.phase in {"Succeeded", "Failed"}

    @property
    def addresses(self) -> frozenset[str]:
        """Its IP addresses."""
        return frozenset(ip for ip in (self.status.pod_ip, *(each.ip for each in self.status.pod_ips)) if ip)


class PodReference(Part, frozen=True, kw_only=True, rename="camel"):
    """A pod, as other objects name it."""

    namespace: str = ""
    name: str = ""
    uid: str = ""

    @property
    def id(self) -> str:
        """`namespace/name`; empty where the name is."""
        return f"{self.namespace}/{self.name}" if self.name else ""

    @property
    def keys(self) -> frozenset[str]:
        """What to look it up by: the UID, or the id where it has none; and `name:` with the id in any case."""
        return frozenset({self.uid or self.id, f"name:{self.id}"} if self.id else {self.uid}) - {""}
