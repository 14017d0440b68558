# SPDX-License-Identifier: Apache-2.0
"""Quotas of tenants from objects of a cluster: GPUResourceQuota, ResourceQuota, ClusterQueue and LocalQueue."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from msgspec.structs import asdict

from epp.framework.quotas import ALERT_PERCENT, Quota, SingleLimits, TotalLimits
from epp.kube.objects.last_good import ObjectsByKind
from epp.kube.objects.memory_quotas import ClusterQueue, LocalQueue, ResourceQuota, queue_bytes
from epp.kube.objects.tensor_fusion import Amount, GpuResourceQuota


def quotas_by_namespace(objects: ObjectsByKind) -> Mapping[str, Quota]:
    """Return a quota for each namespace with limits; of several objects the smallest value of each limit counts.

    Limits on workers of a GPUResourceQuota limit requests in flight. If an object has both requests and limits of an
    amount, the smaller one counts. Amounts of compute percent apply to pods and are ignored.

    ResourceQuota and ClusterQueue limit the memory of accelerators; a ClusterQueue limits each namespace with a
    LocalQueue that leads to it, and several queues of a namespace add up.
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
    for namespace, quota_of_queues in _queue_quotas(objects).items():
        found[namespace].append(quota_of_queues)
    quotas = {namespace: _smallest(several) for namespace, several in found.items()}
    return {namespace: quota for namespace, quota in quotas.items() if _limits_anything(quota)}


def _queue_quotas(objects: ObjectsByKind) -> Mapping[str, Quota]:
    """Return the quotas of the namespaces with LocalQueues."""
    queues = {name: each for name, each in objects.of(ClusterQueue).items() if not each.metadata.is_terminating}
    names: defaultdict[str, set[str]] = defaultdict(set)
    for local in objects.of(LocalQueue).values():
        if not local.metadata.is_terminating:
            names[local.metadata.namespace].add(local.cluster_queue)
    found: dict[str, Quota] = {}
    for namespace, of_namespace in names.items():
        sizes = {
            name: size
            for name in sorted(of_namespace & queues.keys())
            if (size := queue_bytes(queues[name], queues.values())) is not None
        }
        if sizes:
            found[namespace] = _of_memory(sum(sizes.values()), f"ClusterQueue {', '.join(sizes)}")
    return found


def _of_memory(size: int, origin: str) -> Quota:
    """Return a quota of the memory of a namespace; a request that needs all of it and more never fits."""
    limit = float(max(size, 1))  # 0 would mean no limit
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
        origin=", ".join(each.origin for each in quotas),
    )


def _smallest_limits(limits: Sequence[SingleLimits | TotalLimits]) -> dict[str, Any]:
    """Return the smallest value other than 0 of each limit; 0 for no limit."""
    plain = [asdict(each) for each in limits]
    return {name: min((each[name] for each in plain if each[name]), default=0) for name in plain[0]}


def _limits_anything(quota: Quota) -> bool:
    return (quota.single, quota.total) != (SingleLimits(), TotalLimits())


def _quota(objects: list[GpuResourceQuota]) -> Quota:
    totals = [each.total for each in objects]
    singles = [each.single for each in objects]
    amounts = [amount for total in totals for amount in (total.requests, total.limits)]
    of_one = [amount for single in singles for amount in (single.max_requests, single.max_limits)]
    names = ", ".join(each.id for each in objects)
    return Quota(
        single=SingleLimits(
            accelerator_bytes=_least_memory(of_one),
            tflops=_least_tflops(of_one),
            devices=int(_least(single.max_gpu_count for single in singles)),
        ),
        total=TotalLimits(
            requests=int(_least(total.max_workers for total in totals)),
            accelerator_bytes=_least_memory(amounts),
            tflops=_least_tflops(amounts),
        ),
        alert_percent=_least(total.alert_threshold_percent for total in totals) or ALERT_PERCENT,
        origin=f"GPUResourceQuota {names}",
    )


def _least_memory(amounts: Iterable[Amount]) -> float:
    return _least(amount.vram for amount in amounts)


def _least_tflops(amounts: Iterable[Amount]) -> float:
    return _least(amount.tflops for amount in amounts)


def _least(values: Iterable[Fraction | int | None]) -> float:
    """Return the smallest value other than 0; 0 for no limit."""
    return float(min((value for value in values if value), default=0))
