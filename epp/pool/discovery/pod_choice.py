# SPDX-License-Identifier: Apache-2.0
"""The pods among objects that are endpoints: those of an InferencePool, with labels, or with accelerators."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from epp.framework.endpoint import Endpoint
from epp.framework.errors import ConfigurationError
from epp.kube.objects.base import Object
from epp.kube.objects.core import Node, Pod
from epp.kube.objects.inference import InferencePool
from epp.pool.discovery.pod_ports import DEFAULT_PORT, requests_accelerators, serving_port
from epp.pool.discovery.pods import endpoints_of, reason_unused

_NAMES_SHOWN = 5
_WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodChoice:
    """Which pods are wanted."""

    pool: str = ""
    """Name of the InferencePool, or `namespace/name`; empty for the only one, or for none where there is none."""
    namespace: str = ""
    """Of pool and pods; empty for any."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the pods, all of them, without an InferencePool."""
    ports: tuple[int, ...] = ()
    """Ports of these pods; empty for what each of them says."""
    every_pool: bool = False
    """Take the pods of all pools where there are several."""
    cluster: str = ""
    """Name of the cluster of the objects."""


class Chosen(NamedTuple):
    """The endpoints of the pods, and what is to be known of them."""

    endpoints: tuple[Endpoint, ...] = ()
    title: str = ""
    """The pods in words, for log lines."""
    pools: tuple[str, ...] = ()
    """The InferencePools, as `namespace/name`."""
    remarks: tuple[str, ...] = ()
    """Sentences on pods that are left out, and on ports that are assumed."""


class _Wanted(NamedTuple):
    pods: tuple[Pod, ...]
    ports: tuple[int, ...]
    pool: str = ""


def choose(objects: Iterable[Object], choice: PodChoice) -> Chosen:
    """Return the endpoints; raises ConfigurationError if the pool is missing, or not the only one and not named."""
    pods: dict[str, Pod] = {}
    pools: dict[str, InferencePool] = {}
    boot_ids: dict[str, str] = {}
    for each in objects:
        if isinstance(each, Node):
            boot_ids[each.name] = each.status.node_info.boot_id
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
            ports = (port.number,) if port is not None else group.ports
            here = endpoints_of(pod, ports, boot_id=boot_ids.get(pod.spec.node_name, ""), cluster=choice.cluster)
            if here and port is not None and port.source == "assumed":
                assumed.append(pod.id)
            found.update((endpoint.id, endpoint) for endpoint in here)
    remarks = list(_left_out(pod for group in wanted for pod in group.pods))
    if assumed:
        remarks.append(
            f"{_listed(assumed)}: neither containerPort nor an argument --port says where the server listens: port "
            f"{DEFAULT_PORT} is assumed; name another in targetPorts, with a selector"
        )
    of_pools = tuple(group.pool for group in wanted if group.pool)
    return Chosen(tuple(found.values()), title, of_pools, tuple(remarks))


def _wanted(
    pods: Mapping[str, Pod], pools: Mapping[str, InferencePool], choice: PodChoice
) -> tuple[str, list[_Wanted]]:
    if choice.labels:
        text = ",".join(f"{name}={value}" for name, value in sorted(choice.labels.items()))
        return f"pods with the labels {text}", [_Wanted(_with_labels(pods.values(), choice.labels), choice.ports)]
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
            f"the files have several InferencePools, {', '.join(sorted(named))}: name one of them, with its namespace"
        )
    if named:
        return f"pods of InferencePool {', '.join(named)}", [_of_pool(pool, pods.values()) for pool in named.values()]
    servers = tuple(pod for pod in pods.values() if _may_serve(pod))
    return "pods that request accelerators", [_Wanted(servers, choice.ports)]


def _of_pool(pool: InferencePool, pods: Iterable[Pod]) -> _Wanted:
    here = (pod for pod in pods if pod.metadata.namespace == pool.metadata.namespace)
    found = _with_labels(here, pool.spec.selector.match_labels)
    return _Wanted(found, tuple(port.number for port in pool.spec.target_ports), pool.id)


def _with_labels(pods: Iterable[Pod], labels: Mapping[str, str]) -> tuple[Pod, ...]:
    wanted = labels.items()
    return tuple(pod for pod in pods if wanted <= pod.metadata.labels.items())


def _may_serve(pod: Pod) -> bool:
    """Return whether it requests accelerators, and is neither of a Job nor a worker behind the leader of a group."""
    of_job = any(owner.kind == "Job" for owner in pod.metadata.owner_references)
    return requests_accelerators(pod) and not of_job and pod.metadata.labels.get(_WORKER_INDEX, "0") == "0"


def _left_out(pods: Iterable[Pod]) -> Iterable[str]:
    reasons: dict[str, list[str]] = {}
    for pod in pods:
        if reason := reason_unused(pod):
            reasons.setdefault(reason, []).append(pod.id)
    for reason, names in sorted(reasons.items()):
        yield f"no endpoint: {_listed(names)}: {reason}"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{', '.join(names[:_NAMES_SHOWN])}{more}"
