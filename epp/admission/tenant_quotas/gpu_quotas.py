# SPDX-License-Identifier: Apache-2.0
"""GPUResourceQuota objects of TensorFusion as quotas of tenants: that of a namespace is for the tenant of its name."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction

from epp.framework.quotas import ALERT_PERCENT, Quota, SingleLimits, TotalLimits
from epp.kube.objects.tensor_fusion import Amount, GpuResourceQuota


def quotas_by_namespace(objects: Iterable[GpuResourceQuota]) -> Mapping[str, Quota]:
    """Return a quota for each namespace with limits: of several objects the smallest of each limit.

    Requests take the place of workers. Where requests and limits both have an amount, the smaller one counts, since a
    request takes as much as it may. Amounts of compute percent are of pods, and limit no request.
    """
    by_namespace: defaultdict[str, list[GpuResourceQuota]] = defaultdict(list)
    for each in sorted(objects, key=lambda quota: quota.id):
        if not each.metadata.is_terminating:
            by_namespace[each.metadata.namespace].append(each)
    quotas = {namespace: _quota(several) for namespace, several in by_namespace.items()}
    return {namespace: quota for namespace, quota in quotas.items() if _limits_anything(quota)}


def _limits_anything(quota: Quota) -> bool:
    return (quota.single, quota.total) != (SingleLimits(), TotalLimits())


def _quota(objects: list[GpuResourceQuota]) -> Quota:
    totals = [each.spec.total for each in objects]
    singles = [each.spec.single for each in objects]
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
    """Return the smallest that is set, 0 for none; 0 stands for a limit that is not set."""
    return float(min((value for value in values if value), default=0))
