# SPDX-License-Identifier: Apache-2.0
"""Endpoints of pods: selection of pods, and their ports."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from epp.framework.endpoint import Endpoint, LabelSelector
from epp.framework.errors import ConfigurationError
from epp.framework.messages import listed
from epp.hardware.resources import resource_requests
from epp.kube.objects.base import Object
from epp.kube.objects.core import Container, Node, Pod, PodSpec
from epp.kube.objects.inference import InferencePool
from epp.runtime.addresses import is_ip

ACTIVE_PORTS = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")
"""Annotations with the comma-separated ports on which a pod serves: the current and the former name."""
KV_PORTS = ("llm-d.ai/kv-events-port", "llm-d.ai/kv-replay-port")
"""Annotations that count as labels of the endpoints: ports of the KV events of the first rank, and of their replay."""

_PORT = re.compile(r"[0-9]{1,5}")
DEFAULT_PORT = 8000
_ARGUMENT = re.compile(r"(?:^|\s)(?:--port|--http-port|--http_port)(?:=|\s+)([0-9]{1,5})(?=\s|$)")
_NAMES = ("http", "api", "serv", "rest", "openai", "inference")
_NAMES_SHOWN = 5
_WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"


class PodTarget(NamedTuple):
    """The selector of the pods of a pool, and their ports."""

    labels: LabelSelector
    ports: tuple[int, ...]

    @property
    def selector(self) -> dict[str, str]:
        """The labels as a parameter of the Kubernetes API."""
        return {"labelSelector": str(self.labels)}


def reason_unused(pod: Pod) -> str:
    """Return the reason that a pod cannot serve requests; empty if it can."""
    if pod.ended:
        return f"its phase is {pod.status.phase}"
    if pod.metadata.is_terminating:
        return "it is terminating"
    if not pod.ready:
        return "it is not ready"
    if not is_ip(pod.status.pod_ip):
        return "it has no IP address"
    return ""


def endpoints_of(pod: Pod, ports: tuple[int, ...], *, boot_id: str = "", cluster: str = "") -> tuple[Endpoint, ...]:
    """Return the endpoints of a pod; none if it cannot serve requests.

    The endpoint of the i-th port of the pool is named `<pod>-rank-<i>`, even if the pod does not serve on the ports
    before it. The annotations `KV_PORTS` count as labels of the endpoints.
    """
    if reason_unused(pod):
        return ()
    active, annotations = _active_ports(pod), pod.metadata.annotations
    labels = {**pod.metadata.labels, **{name: annotations[name] for name in KV_PORTS if name in annotations}}
    node_address = pod.status.host_ip if is_ip(pod.status.host_ip) else ""
    return tuple(
        Endpoint(
            name=f"{pod.name}-rank-{rank}",
            address=pod.status.pod_ip,
            port=port,
            namespace=pod.metadata.namespace,
            labels=labels,
            node=pod.spec.node_name,
            cluster=cluster,
            uid=pod.metadata.uid,
            boot_id=boot_id,
            node_address=node_address,
        )
        for rank, port in enumerate(ports)
        if active is None or port in active
    )


def _active_ports(pod: Pod) -> frozenset[int] | None:
    """Return the ports of the annotation, without invalid words; None without an annotation."""
    text = next((pod.metadata.annotations[name] for name in ACTIVE_PORTS if name in pod.metadata.annotations), None)
    if text is None:
        return None
    words = (word.strip() for word in text.split(","))
    return frozenset(int(word) for word in words if _PORT.fullmatch(word))


def serving_port(pod: Pod) -> int | None:
    """Return the port of the container that requests accelerators, or else of the first container; None if unknown.

    This is its containerPort. If there are several, it is the one in the argument `--port`, else the first with the
    name of an HTTP port, else 8000, else the first. Without a containerPort, it is the argument `--port`, which may be
    part of a shell command.
    """
    containers = pod.spec.containers
    single = (Pod(metadata=pod.metadata, spec=PodSpec(containers=(each,))) for each in containers)
    at = next((index for index, each in enumerate(single) if resource_requests(each)), 0)
    if not containers:
        return None
    container = containers[at]
    words = " ".join(str(word) for part in (container.command, container.args) for word in _list(part))
    match = _ARGUMENT.search(words)
    argument = int(match[1]) if match and 0 < int(match[1]) < 2**16 else None
    declared = dict(_declared(container))
    if not declared or argument in declared:
        return argument
    named = (number for number, name in declared.items() if name.lower().startswith(_NAMES))
    return next(named, DEFAULT_PORT if DEFAULT_PORT in declared else next(iter(declared)))


def requests_accelerators(pod: Pod) -> bool:
    """Return whether the pod requests accelerators, by resources or by claims."""
    return bool(resource_requests(pod) or pod.spec.resource_claims or pod.claims)


def _declared(container: Container) -> Iterator[tuple[int, str]]:
    for port in _list(container.ports):
        if isinstance(port, Mapping) and port.get("protocol", "TCP") == "TCP":
            number = port.get("containerPort")
            if isinstance(number, int) and 0 < number < 2**16:
                yield number, str(port.get("name", ""))


def _list(part: object) -> list[object]:
    return list(part) if isinstance(part, list | tuple) else []


@dataclass(frozen=True, slots=True, kw_only=True)
class PodChoice:
    """Selection of pods among objects."""

    pool: str = ""
    """Name of the InferencePool, or `namespace/name`; empty for the only InferencePool, if any."""
    namespace: str = ""
    """Namespace of pool and pods; empty for any."""
    labels: LabelSelector = field(default_factory=LabelSelector)
    ports: tuple[int, ...] = ()
    """Ports of these pods; empty for `serving_port`."""
    every_pool: bool = False
    """Whether to select the pods of all pools if there are several."""
    cluster: str = ""


class Chosen(NamedTuple):
    """The endpoints of the selected pods, and remarks on them."""

    endpoints: tuple[Endpoint, ...] = ()
    title: str = ""
    pools: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


class _Wanted(NamedTuple):
    pods: tuple[Pod, ...]
    ports: tuple[int, ...]
    pool: str = ""


def choose(objects: Iterable[Object], choice: PodChoice) -> Chosen:
    """Return the selected endpoints; raises ConfigurationError for a missing or ambiguous pool."""
    pods: dict[str, Pod] = {}
    pools: dict[str, InferencePool] = {}
    boot_ids: dict[str, str] = {}
    for each in objects:
        if isinstance(each, Node):
            boot_ids[each.name] = each.boot_id
        elif not isinstance(each, Pod | InferencePool) or choice.namespace not in {"", each.metadata.namespace}:
            continue
        elif isinstance(each, Pod):
            pods[each.id] = each
        else:
            pools[each.id] = each
    title, wanted = _wanted(pods, pools, choice)
    found: dict[str, Endpoint] = {}
    assumed: list[str] = []
    for group in wanted:
        for pod in group.pods:
            port = None if group.ports else serving_port(pod)
            ports = group.ports or (port or DEFAULT_PORT,)
            here = endpoints_of(pod, ports, boot_id=boot_ids.get(pod.spec.node_name, ""), cluster=choice.cluster)
            if here and not group.ports and port is None:
                assumed.append(pod.id)
            found.update((endpoint.id, endpoint) for endpoint in here)
    remarks = list(_left_out(pod for group in wanted for pod in group.pods))
    if assumed:
        remarks.append(
            f"{listed(assumed, _NAMES_SHOWN)}: there is neither a containerPort nor an argument --port: "
            f"port {DEFAULT_PORT} is assumed; name another in targetPorts, with a selector"
        )
    of_pools = tuple(group.pool for group in wanted if group.pool)
    return Chosen(tuple(found.values()), title, of_pools, tuple(remarks))


def _wanted(
    pods: Mapping[str, Pod], pools: Mapping[str, InferencePool], choice: PodChoice
) -> tuple[str, list[_Wanted]]:
    if choice.labels.requirements:
        wanted = _Wanted(_with_labels(pods.values(), choice.labels), choice.ports)
        return f"pods with the labels {choice.labels}", [wanted]
    named = {name: pool for name, pool in pools.items() if choice.pool in {"", pool.name, name}}
    if choice.pool and not named:
        known = f"there are {', '.join(sorted(pools))}" if pools else "there is none"
        where = f" in namespace {choice.namespace}" if choice.namespace else ""
        raise ConfigurationError(
            f"the files have no InferencePool {choice.pool!r}{where}: {known}; correct the name, or leave it out for "
            "the pods that request accelerators"
        )
    if len(named) > 1 and not choice.every_pool:
        raise ConfigurationError(
            f"the files have several InferencePools, {', '.join(sorted(named))}: name one of them, with namespace"
        )
    if named:
        groups = []
        for pool in named.values():
            here = (pod for pod in pods.values() if pod.metadata.namespace == pool.metadata.namespace)
            groups.append(_Wanted(_with_labels(here, LabelSelector.of(pool.match_labels)), pool.ports, pool.id))
        return f"pods of InferencePool {', '.join(named)}", groups
    servers = tuple(pod for pod in pods.values() if _may_serve(pod))
    return "pods that request accelerators", [_Wanted(servers, choice.ports)]


def _with_labels(pods: Iterable[Pod], labels: LabelSelector) -> tuple[Pod, ...]:
    return tuple(pod for pod in pods if labels.matches(pod.metadata.labels))


def _may_serve(pod: Pod) -> bool:
    of_job = any(owner.kind == "Job" for owner in pod.metadata.owner_references)
    return requests_accelerators(pod) and not of_job and pod.metadata.labels.get(_WORKER_INDEX, "0") == "0"


def _left_out(pods: Iterable[Pod]) -> Iterable[str]:
    reasons: dict[str, list[str]] = {}
    for pod in pods:
        if reason := reason_unused(pod):
            reasons.setdefault(reason, []).append(pod.id)
    for reason, names in sorted(reasons.items()):
        yield f"no endpoint: {listed(names, _NAMES_SHOWN)}: {reason}"
