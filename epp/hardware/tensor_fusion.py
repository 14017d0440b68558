# SPDX-License-Identifier: Apache-2.0
"""Quotas of namespaces in TensorFusion, and placement templates."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

import msgspec

from epp.framework.accelerators.arrays import PlacementMode, PlacementTemplate
from epp.framework.plugin_status import PluginMetric, Sample
from epp.kube.objects.tensor_fusion import Amount, GpuFilter, GpuPool, GpuResourceQuota, SchedulingConfigTemplate

_MOST_SHOWN = 100
"""Maximum number of quotas with metrics."""

_LABELS = ("namespace", "quota", "resource")
_LIMIT = PluginMetric("gpu_quota_limit", "Limit of a GPUResourceQuota of TensorFusion; memory in bytes.", _LABELS)
_USED = PluginMetric("gpu_quota_used", "Use of a GPUResourceQuota of TensorFusion; memory in bytes.", _LABELS)
_ALERT = PluginMetric(
    "gpu_quota_alert",
    "1 if less is left of a GPUResourceQuota of TensorFusion than its alert threshold allows, else 0.",
    _LABELS,
)
QUOTA_METRICS = (_LIMIT, _USED, _ALERT)
CONNECTIONS, ZONE = "avoidTooMuchConnectionsOnSameGPU", "avoidDifferentZone"
"""Types of GPU filters."""
_DEFAULT_ZONE = "topology.kubernetes.io/zone"
_MODES = {mode.value: mode for mode in PlacementMode}
_DIGITS = 18


class QuotaLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    limit: float
    """TFLOPS, bytes, or workers."""
    used: float | None = None
    """None if unknown."""
    alert: bool = False
    """Whether the alert threshold is reached."""


class QuotaReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    namespace: str
    name: str
    total: Mapping[str, QuotaLine]
    """Limited resources: `requests.tflops`, `requests.vram`, `limits.tflops`, `limits.vram`, `workers`."""
    single: Mapping[str, float]
    """Limits of one workload: `maxRequests.tflops`, `maxLimits.vram`, `maxGPUCount` and so on."""
    alert_threshold_percent: int


def quota_reports(quotas: Iterable[GpuResourceQuota]) -> tuple[QuotaReport, ...]:
    """Return limits and use of each quota, sorted by namespace and name."""
    return tuple(_report(each) for each in sorted(quotas, key=lambda quota: quota.id))


def quota_samples(quotas: Iterable[GpuResourceQuota]) -> Sequence[Sample]:
    """Return the metrics of the first 100 quotas by namespace and name."""
    found: list[Sample] = []
    for report in quota_reports(quotas)[:_MOST_SHOWN]:
        for resource, line in report.total.items():
            labels = (report.namespace, report.name, resource)
            found += [Sample(_LIMIT, line.limit, labels), Sample(_ALERT, float(line.alert), labels)]
            if line.used is not None:
                found.append(Sample(_USED, line.used, labels))
    return found


def _report(quota: GpuResourceQuota) -> QuotaReport:
    total, used, single = quota.total, quota.used, quota.single
    percent = total.alert_threshold_percent
    limits = _by_resource(requests=total.requests, limits=total.limits) | {"workers": total.max_workers}
    taken = _by_resource(requests=used.requests, limits=used.limits) | {"workers": used.workers}
    singles = _by_resource(maxRequests=single.max_requests, maxLimits=single.max_limits)
    singles["maxGPUCount"] = single.max_gpu_count
    lines: dict[str, QuotaLine] = {}
    for resource, limit in limits.items():
        if limit:  # 0 stands for no limit
            of = taken[resource]
            alert = of is not None and 100 * (limit - of) / limit < 100 - percent
            lines[resource] = QuotaLine(limit=float(limit), used=None if of is None else float(of), alert=alert)
    return QuotaReport(
        namespace=quota.metadata.namespace,
        name=quota.name,
        total=lines,
        single={resource: float(value) for resource, value in singles.items() if value},
        alert_threshold_percent=percent,
    )


def _by_resource(**amounts: Amount) -> dict[str, Fraction | int | None]:
    """Return TFLOPS and memory of each amount: `requests.tflops`, `requests.vram`."""
    return {f"{name}.{unit}": getattr(each, unit) for name, each in amounts.items() for unit in ("tflops", "vram")}


def placement_faults(
    templates: Mapping[str, SchedulingConfigTemplate], pools: Iterable[GpuPool]
) -> Iterator[tuple[str, str, str]]:
    """Yield kind and name of a template or pool, and field, value and remedy of each invalid value or template name."""
    for each in templates.values():
        yield from (("SchedulingConfigTemplate", each.id, fault) for fault in read_template(each)[1])
    for pool in pools:
        name = pool.template
        if name and name not in templates:
            remedy = "add such a SchedulingConfigTemplate, or correct the name"
            yield "GPUPool", pool.id, f"spec.schedulingConfigTemplate is {name!r}: {remedy}"


def read_template(each: SchedulingConfigTemplate) -> tuple[PlacementTemplate, tuple[str, ...]]:
    """Return the template without invalid values, and field, value and remedy of each invalid value."""
    faults = []
    mode = _MODES.get(each.mode)
    if mode is None:
        mode = PlacementMode.NODE_COMPACT
        *others, last = _MODES
        choice = f"{', '.join(others)} or {last}"
        faults.append(f"spec.placement.mode is {each.mode!r}: write {choice}, the default being {mode.value}")
    template = PlacementTemplate(name=each.name, mode=mode, allow_local_gpu=each.allow_using_local_gpu)
    for number, one in enumerate(each.gpu_filters):
        try:
            template = _with_filter(template, one)
        except ValueError as error:
            faults.append(f"spec.placement.gpuFilters[{number}].{error}")
    return template, tuple(faults)


def _with_filter(template: PlacementTemplate, given: GpuFilter) -> PlacementTemplate:
    """Return the template with a filter; the stricter limit or the last zone label applies."""
    if given.type == CONNECTIONS:
        most = _count(given.params.get("connectionNum"))
        before = template.most_connections
        return msgspec.structs.replace(template, most_connections=most if before is None else min(most, before))
    if given.type == ZONE:
        label = given.params.get("topologyKey", _DEFAULT_ZONE)
        if not isinstance(label, str) or not label:
            raise ValueError(f"params.topologyKey is {label!r}: write a label of nodes, such as {_DEFAULT_ZONE}")
        return msgspec.structs.replace(template, zone_label=label)
    raise ValueError(f"type is {given.type!r}: write {CONNECTIONS} or {ZONE}")


def _count(value: object) -> int:
    """Return a whole number of at least 1, with or without quotes; raises ValueError."""
    text = str(value)
    is_number = text.isascii() and text.isdecimal() and len(text) <= _DIGITS
    if not is_number or isinstance(value, bool) or int(text) == 0:
        shown = "missing" if value is None else repr(value)[:60]
        raise ValueError(f"params.connectionNum is {shown}: write a whole number of at least 1")
    return int(text)
