# SPDX-License-Identifier: Apache-2.0
"""Quotas of namespaces in TensorFusion, as it reports them: limits, and what workloads use of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

import msgspec

from epp.framework.plugin_status import PluginMetric, Sample
from epp.kube.objects.tensor_fusion import Amount, GpuResourceQuota

_MOST_SHOWN = 100
"""Quotas with metrics."""

_LABELS = ("namespace", "quota", "resource")
_LIMIT = PluginMetric("gpu_quota_limit", "Limit of a GPUResourceQuota of TensorFusion; memory in bytes.", _LABELS)
_USED = PluginMetric("gpu_quota_used", "Use of a GPUResourceQuota of TensorFusion; memory in bytes.", _LABELS)
_ALERT = PluginMetric(
    "gpu_quota_alert",
    "1 if less is left of a GPUResourceQuota of TensorFusion than its alert threshold allows, else 0.",
    _LABELS,
)
QUOTA_METRICS = (_LIMIT, _USED, _ALERT)


class QuotaLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One resource of a quota."""

    limit: float
    """TFLOPS, bytes, or workers."""
    used: float | None = None
    """None if it is not reported."""
    alert: bool = False
    """Whether the alert threshold is reached."""


class QuotaReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A quota of a namespace."""

    namespace: str
    name: str
    total: Mapping[str, QuotaLine]
    """By resource: `requests.tflops`, `requests.vram`, `limits.tflops`, `limits.vram`, `workers`; without those that
    have no limit."""
    single: Mapping[str, float]
    """Limits of one workload: `maxRequests.tflops`, `maxLimits.vram`, `maxGPUCount` and so on."""
    alert_threshold_percent: int


def quota_reports(quotas: Iterable[GpuResourceQuota]) -> tuple[QuotaReport, ...]:
    """Return limits and use of each quota, by namespace and name."""
    return tuple(_report(each) for each in sorted(quotas, key=lambda quota: quota.id))


def quota_samples(quotas: Iterable[GpuResourceQuota]) -> Sequence[Sample]:
    """Return the metrics of the first quotas by namespace and name."""
    found: list[Sample] = []
    for report in quota_reports(quotas)[:_MOST_SHOWN]:
        for resource, line in report.total.items():
            labels = (report.namespace, report.name, resource)
            found += [Sample(_LIMIT, line.limit, labels), Sample(_ALERT, float(line.alert), labels)]
            if line.used is not None:
                found.append(Sample(_USED, line.used, labels))
    return found


def _report(quota: GpuResourceQuota) -> QuotaReport:
    percent = quota.spec.total.alert_threshold_percent
    used = {place.removeprefix("status.used."): value for place, value in _used(quota)}
    lines: dict[str, QuotaLine] = {}
    for place, limit in _limits(quota):
        resource = place.removeprefix("spec.total.").replace("maxWorkers", "workers")
        if not limit:  # 0 stands for no limit
            continue
        taken = used[resource]
        alert = taken is not None and 100 * (limit - taken) / limit < 100 - percent
        lines[resource] = QuotaLine(limit=float(limit), used=None if taken is None else float(taken), alert=alert)
    return QuotaReport(
        namespace=quota.metadata.namespace,
        name=quota.name,
        total=lines,
        single={place.removeprefix("spec.single."): float(value) for place, value in _singles(quota) if value},
        alert_threshold_percent=percent,
    )


def _limits(quota: GpuResourceQuota) -> Iterator[tuple[str, Fraction | int | None]]:
    total = quota.spec.total
    yield from _amounts("spec.total.requests", total.requests)
    yield from _amounts("spec.total.limits", total.limits)
    yield "spec.total.maxWorkers", total.max_workers


def _singles(quota: GpuResourceQuota) -> Iterator[tuple[str, Fraction | int | None]]:
    single = quota.spec.single
    yield from _amounts("spec.single.maxRequests", single.max_requests)
    yield from _amounts("spec.single.maxLimits", single.max_limits)
    yield "spec.single.maxGPUCount", single.max_gpu_count


def _used(quota: GpuResourceQuota) -> Iterator[tuple[str, Fraction | int | None]]:
    used = quota.status.used
    yield from _amounts("status.used.requests", used.requests)
    yield from _amounts("status.used.limits", used.limits)
    yield "status.used.workers", used.workers


def _amounts(place: str, amount: Amount) -> Iterator[tuple[str, Fraction | None]]:
    yield f"{place}.tflops", amount.tflops
    yield f"{place}.vram", amount.vram
