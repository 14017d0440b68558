# SPDX-License-Identifier: Apache-2.0
"""Quotas in configurations, in the API of the admin port, and in objects of a cluster."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import chain
from math import ceil
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, structs

from epp.framework.accelerators.requirements import Memory
from epp.framework.plugin import Parameters
from epp.framework.quantities import parse_memory
from epp.framework.quotas import ALERT_PERCENT, Quota, SharedLimit, SingleLimits, TotalLimits
from epp.kube.objects.last_good import ObjectsByKind
from epp.kube.objects.memory_quotas import ClusterQueue, LocalQueue, Namespace, ResourceQuota, queue_bytes
from epp.kube.objects.tensor_fusion import GpuResourceQuota

_NAME_LABEL = "kubernetes.io/metadata.name"
_MOST_SHARED = 1_000
"""Largest number of limits for several namespaces, those with the fewest queues first."""


def quotas_by_namespace(objects: ObjectsByKind) -> tuple[Mapping[str, Quota], tuple[str, ...]]:
    """Return a quota for each namespace with limits, and problems; the smallest limit of several objects applies.

    Limits on workers in a GPUResourceQuota limit requests in flight. If an object has both requests and limits of an
    amount, the smaller one applies. Amounts of compute percent are for pods and are ignored.

    ResourceQuota and ClusterQueue limit the memory of accelerators. A ClusterQueue limits the sum over all namespaces
    that it selects and that have a LocalQueue for it; the limits of several queues of a namespace are added.
    """
    found: defaultdict[str, list[Quota]] = defaultdict(list)
    by_namespace: defaultdict[str, list[GpuResourceQuota]] = defaultdict(list)
    for each in sorted(objects.of(GpuResourceQuota).values(), key=lambda quota: quota.id):
        if not each.metadata.is_terminating:
            by_namespace[each.metadata.namespace].append(each)
    for namespace, several in by_namespace.items():
        found[namespace].append(_quota(several))
    for quota in sorted(objects.of(ResourceQuota).values(), key=lambda quota: quota.id):
        if quota.memory_bytes is not None and not quota.metadata.is_terminating:
            found[quota.metadata.namespace].append(_of_memory(quota.memory_bytes, f"ResourceQuota {quota.id}"))
    of_queues, problems = _queue_quotas(objects)
    for namespace, quota_of_queues in of_queues.items():
        found[namespace].append(quota_of_queues)
    quotas = {namespace: _smallest(several) for namespace, several in found.items()}
    none = SingleLimits(), TotalLimits()
    return {name: quota for name, quota in quotas.items() if (quota.single, quota.total) != none}, problems


def _queue_quotas(objects: ObjectsByKind) -> tuple[Mapping[str, Quota], tuple[str, ...]]:
    """Return the quotas of the namespaces with LocalQueues, and problems with their selection.

    Namespaces share the memory of the queues that they may use. One limit covers the queues of each namespace; it
    applies to all namespaces that have no other queues. Another limit covers queues that namespaces or cohorts connect.
    """
    queues = {name: each for name, each in objects.of(ClusterQueue).items() if not each.metadata.is_terminating}
    names: defaultdict[str, set[str]] = defaultdict(set)
    problems: dict[str, None] = {}
    for local in objects.of(LocalQueue).values():
        queue = queues.get(local.cluster_queue)
        if queue is None or local.metadata.is_terminating or not queue.memory:
            continue
        is_selected, problem = _selection(queue, local, objects.of(Namespace))
        if problem:
            problems[problem] = None
        if is_selected:
            names[local.metadata.namespace].add(queue.name)
    together = _together({frozenset(each) for each in names.values()}, queues)
    limits = {}
    for used in sorted(together, key=lambda each: (len(each), sorted(each)))[:_MOST_SHARED]:
        tenants = frozenset(namespace for namespace, own in names.items() if own <= used)
        limits[used] = SharedLimit(tenants, float(max(queue_bytes(used, queues.values()) or 0, 1)))
    found = {}
    for namespace, own in names.items():
        shared = tuple(limit for used, limit in limits.items() if own <= used and len(limit.tenants) > 1)
        size, listed = queue_bytes(own, queues.values()) or 0, ", ".join(sorted(own))
        others = max((len(each.tenants) for each in shared), default=1) - 1
        aside = f" (its quota is shared with {others} other namespaces)" if others else ""
        found[namespace] = structs.replace(_of_memory(size, f"ClusterQueue {listed}{aside}"), shared=shared)
    return found, tuple(problems)


def _together(sets: set[frozenset[str]], queues: Mapping[str, ClusterQueue]) -> set[frozenset[str]]:
    """Return these sets of queues, and the largest sets of queues that are connected by them or by cohorts."""
    connected: list[tuple[set[str], set[str]]] = []
    for each in sets:
        joined, links = set(each), {f"{queues[name].cohort}/" if queues[name].cohort else name for name in each} | each
        apart = []
        for others, theirs in connected:
            if theirs & links:
                joined, links = joined | others, links | theirs
            else:
                apart.append((others, theirs))
        connected = [*apart, (joined, links)]
    return sets.union(frozenset(joined) for joined, _ in connected)


def _selection(queue: ClusterQueue, local: LocalQueue, namespaces: Mapping[str, Namespace]) -> tuple[bool, str]:
    """Return whether the quota of the queue applies to the namespace, and the problem; empty if none."""
    name, selector = local.metadata.namespace, queue.namespaces
    known = namespaces.get(name)
    if selector.matches({_NAME_LABEL: name, **(known.metadata.labels if known else {})}):
        return True, ""
    if known is None and {*selector.match_labels, *(test.key for test in selector.match_expressions)} != {_NAME_LABEL}:
        return True, (
            f"ClusterQueue {queue.name} selects namespaces by labels, but the labels of namespace {name} are unknown, "
            f"so its quota applies; allow the picker to list and watch namespaces, or add Namespace {name} to a file"
        )
    return False, (
        f"LocalQueue {local.id} has no effect: namespaceSelector of ClusterQueue {queue.name} does not select its "
        "namespace; change the labels of the namespace, or the selector"
    )


def _of_memory(size: int, origin: str) -> Quota:
    """Return a quota of the memory of a namespace; a request that needs more never fits."""
    limit = float(max(size, 1))  # 0 means no limit
    return Quota(
        single=SingleLimits(accelerator_bytes=limit), total=TotalLimits(accelerator_bytes=limit), origin=origin
    )


def _smallest(quotas: list[Quota]) -> Quota:
    if len(quotas) == 1:
        return quotas[0]
    return Quota(
        single=SingleLimits(**_smallest_limits([each.single for each in quotas])),
        total=TotalLimits(**_smallest_limits([each.total for each in quotas])),
        alert_percent=min(each.alert_percent for each in quotas),
        shared=tuple(chain.from_iterable(each.shared for each in quotas)),
        origin=", ".join(each.origin for each in quotas),
    )


def _smallest_limits(limits: Sequence[SingleLimits | TotalLimits]) -> dict[str, Any]:
    """Return the smallest nonzero value of each limit; 0 for no limit."""
    plain = [structs.asdict(each) for each in limits]
    return {name: min((each[name] for each in plain if each[name]), default=0) for name in plain[0]}


def _quota(objects: list[GpuResourceQuota]) -> Quota:
    totals = [each.total for each in objects]
    singles = [each.single for each in objects]
    amounts = [amount for total in totals for amount in (total.requests, total.limits)]
    of_one = [amount for single in singles for amount in (single.max_requests, single.max_limits)]
    names = ", ".join(each.id for each in objects)
    return Quota(
        single=SingleLimits(
            accelerator_bytes=_least(amount.vram for amount in of_one),
            tflops=_least(amount.tflops for amount in of_one),
            devices=int(_least(single.max_gpu_count for single in singles)),
        ),
        total=TotalLimits(
            requests=int(_least(total.max_workers for total in totals)),
            accelerator_bytes=_least(amount.vram for amount in amounts),
            tflops=_least(amount.tflops for amount in amounts),
        ),
        alert_percent=_least(total.alert_threshold_percent for total in totals) or ALERT_PERCENT,
        origin=f"GPUResourceQuota {names}",
    )


def _least(values: Iterable[Fraction | int | None]) -> float:
    """Return the smallest nonzero value; 0 for no limit."""
    return float(min((value for value in values if value), default=0))


_MOST_BYTES = 2**56
_NOTHING = frozenset({"0", "0Gi", "0Mi", "0Ki", "0G", "0M", "0k"})
"""Spellings of 0, which means no limit."""

_LIMITS = {"accelerator_memory": "accelerator_bytes", "concurrent_requests": "requests", "tokens_in_flight": "tokens"}
"""Names of limits that differ from the parameter."""

Tokens: TypeAlias = Annotated[int, Meta(ge=0, le=10**9)]
Requests: TypeAlias = Annotated[int, Meta(ge=0, le=10**6)]
Devices: TypeAlias = Annotated[int, Meta(ge=0, le=65_536)]
Amount: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
Percent: TypeAlias = Annotated[float, Meta(gt=0, le=100)]
TenantName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=253)]


def _memory_bytes(size: Memory) -> float:
    """Return bytes, 0 for no limit; raises ValueError."""
    written = size.strip() if isinstance(size, str) else size
    if written == 0 or written in _NOTHING:
        return 0.0
    try:
        found = parse_memory(size)
    except ValueError:
        found = 0
    if not 0 < found <= _MOST_BYTES:
        raise ValueError(
            f"acceleratorMemory is {size!r}: write a quantity such as 40Gi, a number of GiB, or 0 for no limit"
        )
    return float(found)


class SingleParameters(Parameters, frozen=True):
    """Limits of one request; 0 for no limit."""

    prompt_tokens: Tokens = 0
    """Largest number of tokens in the prompt; longer ones are refused with 413. For all limits, 0 means no limit."""
    output_tokens: Tokens = 0
    """Largest maximum output in tokens; a larger one is refused with 400, as for all limits below."""
    accelerator_memory: Memory = 0
    """Largest accelerator memory: a quantity such as `40Gi`, or a number of GiB. A request uses the memory of its
    endpoint divided by `requestsPerEndpoint`."""
    tflops: Amount = 0.0
    """Largest number of fp16 TFLOPS. A request uses those of its endpoint divided by `requestsPerEndpoint`."""
    devices: Devices = 0
    """Largest number of accelerator devices of its endpoint."""
    dollars: Amount = 0.0
    """Highest expected price, in US dollars."""

    def __post_init__(self) -> None:
        _memory_bytes(self.accelerator_memory)


class TotalParameters(Parameters, frozen=True):
    """Limits of all requests of a tenant together; 0 for no limit."""

    concurrent_requests: Requests = 0
    """Largest number of requests in flight. For all limits, 0 means no limit."""
    tokens_in_flight: Tokens = 0
    """Largest number of tokens of the requests in flight, in their prompts and their longest possible output."""
    tokens_per_minute: Tokens = 0
    """Largest number of tokens in prompts and output in a minute."""
    accelerator_memory: Memory = 0
    """Largest accelerator memory of the requests in flight, computed as for one request."""
    tflops: Amount = 0.0
    """Largest number of fp16 TFLOPS of the requests in flight, computed as for one request."""
    device_seconds_per_day: Amount = 0.0
    """Largest product of accelerator devices and seconds, from midnight to midnight UTC; concurrent requests of an
    endpoint share its devices."""
    dollars_per_day: Amount = 0.0
    """Highest price of these device seconds, in US dollars."""

    def __post_init__(self) -> None:
        _memory_bytes(self.accelerator_memory)


class QuotaParameters(Parameters, frozen=True):
    """Limits of a tenant."""

    single: SingleParameters = SingleParameters()
    """Limits of one request. A request that exceeds them is refused."""
    total: TotalParameters = TotalParameters()
    """Limits of all requests of the tenant together. A request that exceeds them fits later."""
    when_exceeded: Literal["Wait", "Refuse"] | None = None
    """Treatment of a request that fits later: `Wait`, in a queue of flow control, or `Refuse`, with 429 and
    `retry-after`. By default it waits if flow control is enabled."""
    alert_threshold_percent: Percent = ALERT_PERCENT
    """Usage of a limit at which an alert starts: in the log, on `/healthz` and in the metrics."""

    def quota(self, origin: str) -> Quota:
        return Quota(
            single=SingleLimits(**_limits(self.single)),
            total=TotalLimits(**_limits(self.total)),
            waits=self.when_exceeded != "Refuse",
            alert_percent=self.alert_threshold_percent,
            origin=origin,
        )


class TenantQuotaParameters(QuotaParameters, frozen=True, kw_only=True):
    """Limits of one tenant."""

    tenant: TenantName
    """Name of the tenant, as the plugin `tenants` identifies it, or else the fairness id of its requests."""


def _limits(given: SingleParameters | TotalParameters) -> dict[str, Any]:
    """Return the limits by their names in `SingleLimits` and `TotalLimits`."""
    values = structs.asdict(given) | {"accelerator_memory": _memory_bytes(given.accelerator_memory)}
    return {_LIMITS.get(name, name): value for name, value in values.items()}


def _parameters(limits: SingleLimits | TotalLimits, kind: type[Parameters]) -> dict[str, Any]:
    """Return the parameters by their names; the inverse of `_limits`."""
    found = {name: getattr(limits, _LIMITS.get(name, name)) for name in kind.__struct_fields__}
    return found | {"accelerator_memory": _quantity(limits.accelerator_bytes)}


def written(quota: Quota) -> dict[str, object]:
    """Return a quota as plain data, in the format of a configuration, without unset limits."""
    parameters = QuotaParameters(
        single=SingleParameters(**_parameters(quota.single, SingleParameters)),
        total=TotalParameters(**_parameters(quota.total, TotalParameters)),
        when_exceeded="Wait" if quota.waits else "Refuse",
        alert_threshold_percent=quota.alert_percent,
    )
    plain: dict[str, object] = msgspec.to_builtins(parameters)
    for part in ("single", "total"):
        limits: dict[str, object] = msgspec.to_builtins(getattr(parameters, part))
        plain[part] = {name: value for name, value in limits.items() if value}
    return plain


def _quantity(size_bytes: float) -> Memory:
    """Return a size in the largest binary unit that divides it, rounded up to a whole Ki."""
    whole = ceil(size_bytes)
    for unit, factor in (("Gi", 2**30), ("Mi", 2**20)):
        if whole % factor == 0 and whole:
            return f"{whole // factor}{unit}"
    return f"{ceil(whole / 2**10)}Ki" if whole else 0
