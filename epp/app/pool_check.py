# SPDX-License-Identifier: Apache-2.0
"""The pool in a cluster as a picker would see it, read once."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import msgspec

from epp.app.pools import PoolChoice
from epp.framework.cluster_objects import ObjectKind, ObjectReader, ObjectsOfKind
from epp.framework.endpoint import LabelSelector
from epp.framework.plugin_status import InputProblem
from epp.kube.access import ABSENT, FORBIDDEN, ApiError, KubeApi
from epp.kube.collection import Item, list_objects
from epp.kube.objects.base import Object, Part, convert, decoded
from epp.kube.objects.core import Pod
from epp.kube.objects.decode import decode_object
from epp.kube.objects.inference import POOL_GROUP, InferencePool, read_inference_pool
from epp.kube.resources import PODS, POLICIES, pools, resource_of
from epp.pool.discovery import PodTarget, PoolName
from epp.pool.discovery.pods import endpoints_of
from epp.routing.policies import PoolIdentity, build_policies
from epp.runtime.addresses import is_ip

T = TypeVar("T")

_MOST_LISTED = 10
"""Maximum number of problems of a kind that are listed one by one."""
_SERVICES = "/api/v1/namespaces/{namespace}/services/{name}"


class PodCounts(msgspec.Struct, frozen=True):
    """Pods with the labels of a pool; apart from `matching`, each is counted in the first field that applies."""

    matching: int = 0
    ended: int = 0
    terminating: int = 0
    without_address: int = 0
    not_ready: int = 0
    without_port: int = 0
    """Ready pods whose annotation of active ports has no port of the pool."""
    ready: int = 0
    """Pods that receive requests."""


class PoolReport(msgspec.Struct, frozen=True):
    name: str = ""
    """Empty for pods without an InferencePool."""
    found: bool = True
    """Whether the InferencePool exists and can be decoded."""
    labels: str = ""
    """Label selector of its pods."""
    ports: tuple[int, ...] = ()
    protocol: str = ""
    picker_port: int | None = None
    """Port of its endpointPickerRef."""
    pods: PodCounts | None = None
    """None if pods cannot be listed."""
    endpoints: int = 0
    objectives: int = 0
    rewrites: int = 0
    other_pools: int = 0
    """Objectives and rewrites of other pools in the namespace."""
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class _PickerReference(Part, frozen=True, kw_only=True):
    group: str = msgspec.field(default="", name="spec.endpointPickerRef.group")
    kind: str = msgspec.field(default="Service", name="spec.endpointPickerRef.kind")
    name: str = msgspec.field(default="", name="spec.endpointPickerRef.name")


class _ServicePort(Part, frozen=True, kw_only=True):
    port: int = 0


class _Service(Part, frozen=True, kw_only=True):
    ports: tuple[_ServicePort, ...] = msgspec.field(default=(), name="spec.ports")


class _FoundPool(NamedTuple):
    pool: InferencePool
    picker: _PickerReference


async def check_pool(api: KubeApi, source: PoolName | PodTarget, namespace: str) -> PoolReport:
    """Return the report without kinds that cannot be listed; raises ApiUnreachableError."""
    report, target, identity = PoolReport(), source, PoolIdentity(namespace=namespace)
    warnings: list[str] = []
    if isinstance(source, PoolName):
        try:
            found = await list_objects(api, pools(source.group), _read_pool, namespace=namespace)
        except ApiError as error:
            return PoolReport(name=source.name, found=False, errors=tuple(_unlisted("InferencePools", error)))
        item = next((each for each in found if each.id == f"{namespace}/{source.name}"), None)
        if item is None or item.object is None:
            return PoolReport(name=source.name, found=False, errors=(_missing(source, item, found),))
        pool, picker = item.object
        report = PoolReport(name=source.name, protocol=pool.app_protocol, picker_port=pool.picker_port)
        target = PodTarget(LabelSelector.of(pool.match_labels), pool.ports)
        identity = PoolIdentity(source.name, source.group, namespace)
        warnings += await _service_problems(api, picker, pool.picker_port, namespace)
    assert isinstance(target, PodTarget)  # noqa: S101  a PoolName was replaced above
    pods, endpoints = await _count_pods(api, target, namespace, warnings)
    objects: list[Object] = []
    for resource in POLICIES:
        with suppress(ApiError):
            items = await list_objects(api, resource, decode_object, namespace=namespace)
            objects += [item.object for item in items if item.object is not None]
            warnings += _problems(resource.kind, items)
    built = build_policies(objects, identity)
    return msgspec.structs.replace(
        report,
        labels=str(target.labels),
        ports=target.ports,
        pods=pods,
        endpoints=endpoints,
        objectives=built.objectives,
        rewrites=built.rewrites,
        other_pools=built.other_pools,
        warnings=(*warnings, *built.warnings),
    )


class PoolFindings(NamedTuple):
    """Reports of pools, and all their problems."""

    pools: tuple[PoolReport, ...] = ()
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


async def check_pools(api: KubeApi, choice: PoolChoice) -> PoolFindings:
    """Return the reports and problems of the selected pools; raises ApiUnreachableError."""
    names: Iterable[str] = sorted(choice.names)
    warnings: list[str] = []
    if choice.labels is not None:
        try:
            items = await list_objects(
                api, pools(choice.group), read_inference_pool, namespace=choice.namespace, selector=choice.selector
            )
        except ApiError as error:
            return PoolFindings(errors=tuple(_unlisted("InferencePools", error)))
        names = [each.name for each in choice.of(item.object for item in items if item.object is not None)]
        warnings += _problems("InferencePool", items)
        if not items:
            warnings.append(f"no InferencePool of namespace {choice.namespace} has the labels {choice.labels}")
    space, group = choice.namespace, choice.group
    reports = tuple([await check_pool(api, PoolName(name, space, group), space) for name in names])
    by_port: dict[int | None, list[str]] = {}
    for each in reports:
        if each.found:
            by_port.setdefault(each.picker_port, []).append(each.name)
    errors = [f"InferencePool {each.name}: {error}" for each in reports for error in each.errors]
    errors += [
        f"InferencePools {', '.join(named)} name {'no port' if port is None else f'port {port}'} in "
        "spec.endpointPickerRef.port, and only the first is served: write a different number for each"
        for port, named in by_port.items()
        if len(named) > 1
    ]
    warnings += [f"InferencePool {each.name}: {warning}" for each in reports for warning in each.warnings]
    return PoolFindings(reports, tuple(errors), tuple(warnings))


def _missing(source: PoolName, item: Item[_FoundPool] | None, found: Iterable[Item[_FoundPool]]) -> str:
    if item is not None:
        return f"InferencePool {item.id}: {item.problem}"
    names = sorted(each.id.partition("/")[2] for each in found)
    shown = ", ".join(names[:_MOST_LISTED]) + (", ..." if len(names) > _MOST_LISTED else "")
    others = f"it has {shown}" if names else "it has none"
    return (
        f"there is no InferencePool {source.name!r} in namespace {source.namespace} ({source.group}; {others}): create "
        "it, or correct --pool-name, --pool-namespace or --pool-group"
    )


async def _count_pods(
    api: KubeApi, target: PodTarget, namespace: str, warnings: list[str]
) -> tuple[PodCounts | None, int]:
    """Return the pods, None if they cannot be listed, and the number of endpoints; append to `warnings`."""
    try:
        items = await list_objects(api, PODS, decode_object, namespace=namespace, selector=target.selector)
    except ApiError as error:
        warnings += _unlisted("pods", error)
        return None, 0
    pods = [item.object for item in items if isinstance(item.object, Pod)]
    served = [len(endpoints_of(pod, target.ports)) for pod in pods]
    counts = PodCounts(matching=len(pods), **Counter(map(_state, pods, served)))
    warnings += _problems("Pod", items)
    labels = target.labels
    if not items:
        warnings.append(f"no pod of namespace {namespace} has the labels {labels}: requests get 503 until one does")
    elif not any(served):
        warnings.append(f"none of {len(items)} pods with the labels {labels} is ready: requests get 503 until one is")
    return counts, sum(served)


def _state(pod: Pod, served: int) -> str:
    """Return the field of PodCounts in which a pod is counted."""
    if served:
        return "ready"
    if pod.ended:
        return "ended"
    if pod.metadata.is_terminating:
        return "terminating"
    if not is_ip(pod.status.pod_ip):
        return "without_address"
    return "without_port" if pod.ready else "not_ready"


def _unlisted(title: str, error: ApiError) -> Iterator[str]:
    """Yield the error of a failed list, except for forbidden and missing kinds, which the report on access has."""
    if error.status != FORBIDDEN and error.status not in ABSENT:
        yield f"{title} could not be listed: {error}"


def _problems(kind: str, items: Iterable[Item[T]]) -> Iterator[str]:
    problems = [f"{kind} {item.id} is not in effect: {item.problem}" for item in items if item.problem]
    yield from problems[:_MOST_LISTED]
    if len(problems) > _MOST_LISTED:
        yield f"{len(problems) - _MOST_LISTED} more objects of kind {kind} are not in effect"


async def _service_problems(api: KubeApi, picker: _PickerReference, port: int | None, namespace: str) -> list[str]:
    """Return the problems of the Service that gateways use; empty if reading it is forbidden."""
    if picker.kind != "Service" or picker.group or not picker.name:
        return []
    try:
        content = await api.request("GET", _SERVICES.format(namespace=namespace, name=picker.name))
        service = decoded(content, _Service)
    except ApiError as error:
        if error.status not in ABSENT:
            return []
        return [f"endpointPickerRef: there is no Service {picker.name!r}, so gateways find no picker: create it"]
    except ValueError:
        return []
    ports = [each.port for each in service.ports]
    if port is None or port in ports:
        return []
    wrong = f"Service {picker.name} has no port {port}; it has {', '.join(map(str, ports)) or 'none'}"
    return [f"endpointPickerRef: {wrong}: write the port of ext_proc"]


def _read_pool(document: Mapping[str, object]) -> _FoundPool:
    pool = read_inference_pool(document)
    try:
        return _FoundPool(pool, convert(document, _PickerReference))
    except ValueError:  # the reference is only for gateways
        return _FoundPool(pool, _PickerReference())


_MOST_SENTENCES = 100
_KINDS_OF_POOL_REPORT = frozenset(each.kind for each in (PODS, *POLICIES, pools(POOL_GROUP)))
"""Kinds whose invalid objects are in the report on the pool."""


async def check_objects(api: KubeApi, readers: Iterable[ObjectReader[Any]], namespace: str) -> tuple[str, ...]:
    """Return rejected objects and ignored values, as the plugins that read them report them.

    At most 100 sentences for each plugin, without kinds that cannot be listed. Raises ApiUnreachableError.
    """
    found: dict[str, None] = {}
    for reader in readers:
        await reader.objects_changed([await _objects(api, reader, kind, namespace) for kind in reader.kinds])
        new = [sentence for sentence in reader.inputs.sentences if sentence not in found]
        found |= dict.fromkeys(new[:_MOST_SENTENCES])
        if (more := len(new) - _MOST_SENTENCES) > 0:
            found[f"cluster: and {more} more object problems of {reader.name}"] = None
    return tuple(found)


async def _objects(api: KubeApi, reader: ObjectReader[Any], kind: ObjectKind, namespace: str) -> ObjectsOfKind:
    """Return the objects that a picker would read."""
    resource, items = resource_of(kind), tuple[Item[Any], ...]()
    places = [""] if resource.everywhere or not resource.namespaced else [namespace]
    if resource.everywhere and not kind.everywhere:
        places.append(namespace)
    for place in places:
        try:
            items = await list_objects(api, resource, reader.decode, namespace=place)
            break
        except ApiError as error:
            if error.status != FORBIDDEN:
                break
    objects = {item.id: item.object for item in items if item.object is not None}
    problems = tuple(
        InputProblem("cluster", f"{kind.kind} {item.id}", item.problem)
        for item in items
        if item.problem and kind.kind not in _KINDS_OF_POOL_REPORT
    )
    return ObjectsOfKind(kind, objects, frozenset(objects), problems)
