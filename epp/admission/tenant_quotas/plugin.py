# SPDX-License-Identifier: Apache-2.0
"""The plugin `tenant-quotas`: quotas from the configuration, and from GPUResourceQuota objects of TensorFusion."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial

import structlog

from epp.admission.tenant_quotas.parameters import QuotaParameters, TenantQuotaParameters
from epp.framework import Parameters
from epp.framework.cluster import ObjectKind, ObjectsOfKind
from epp.framework.datalayer import AffectedEndpoints, Follower, no_endpoint
from epp.framework.limits import Count
from epp.framework.plugin_status import InputState
from epp.framework.quotas import ALERT_PERCENT, Quota, QuotaSource, SingleLimits, TotalLimits
from epp.kube.objects.decode import Kinds
from epp.kube.objects.followed import Change, Effect, FollowedObjects, FollowsObjects
from epp.kube.objects.last_good import ObjectsByKind
from epp.kube.objects.tensor_fusion import Amount, GpuResourceQuota

_KINDS: Kinds = frozenset({("tensor-fusion.ai", "GPUResourceQuota")})
_GRACE_PERIOD = "5m"
"""Time for which the objects of a missing file stay in effect."""
_log = structlog.get_logger()


def quotas_by_namespace(objects: Iterable[GpuResourceQuota]) -> Mapping[str, Quota]:
    """Return a quota for each namespace with limits; of several objects the smallest value of each limit counts.

    Limits on workers limit requests in flight. If an object has both requests and limits of an amount, the smaller one
    counts. Amounts of compute percent apply to pods and are ignored.
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


class TenantQuotasParameters(Parameters, frozen=True):
    """Quotas of the configuration, and sources of further quotas."""

    quotas: tuple[TenantQuotaParameters, ...] = ()
    """Quotas of single tenants. A quota without limits exempts its tenant from `default`."""
    default: QuotaParameters | None = None
    """Quota of each tenant without another quota. By default such tenants are not limited."""
    gpu_resource_quotas: bool = False
    """Apply the GPUResourceQuota objects of TensorFusion in a namespace to the tenant of that name: maxWorkers limits
    its requests in flight; vram and tflops, the smaller of requests and limits, their share of accelerators; and
    maxGPUCount the devices of an endpoint. If a namespace has several objects, the smallest limit counts. A quota of
    the configuration replaces those of objects as a whole."""
    paths: tuple[str, ...] = ()
    """Files, or directories of files (.yaml, .yml, .json), with these objects, in addition to those of the cluster
    and of `--objects`; new versions apply at once. If two objects have the same name, the one in a file counts."""
    requests_per_endpoint: Count = 256
    """Concurrent requests of an endpoint: each of them uses an equal part of its memory and TFLOPS."""

    def __post_init__(self) -> None:
        """Refuse two quotas for one tenant, and files that would not be read; raises ValueError."""
        counts = Counter(each.tenant for each in self.quotas)
        for index, each in enumerate(self.quotas):
            if counts[each.tenant] > 1:
                raise ValueError(
                    f"quotas[{index}].tenant is {each.tenant!r}, as that of another entry: keep one of them"
                )
        if self.paths and not self.gpu_resource_quotas:
            raise ValueError(
                "paths has no effect without gpuResourceQuotas: set gpuResourceQuotas to true, or remove it"
            )


class TenantQuotas(
    QuotaSource[TenantQuotasParameters], FollowsObjects[TenantQuotasParameters], Follower[TenantQuotasParameters]
):
    """Limits each request of a tenant (`single`), and all requests of a tenant together (`total`).

    The plugin `tenants` identifies the tenant of a request; without it, the fairness id does. Limits on memory, TFLOPS
    and devices apply at endpoints whose hardware is known, limits on dollars at endpoints whose price is known.

    An invalid new version of a GPUResourceQuota changes nothing: the log and `/healthz` have the reason. An invalid
    value is ignored, and the rest of the object counts. An object that is being deleted does not count.
    """

    plugin_type = "tenant-quotas"
    is_for_any_pool = True

    def setup(self) -> None:
        """Read the files for the first time; raises ConfigurationError or ValueError for an invalid path."""
        self.requests_per_endpoint = self.parameters.requests_per_endpoint
        default = self.parameters.default
        self._default = None if default is None else default.quota(f"default of {self.name}")
        self._written = {each.tenant: each.quota(f"quotas of {self.name}") for each in self.parameters.quotas}
        self._quotas: Mapping[str, Quota] = self._written
        self._found = ObjectsByKind(())
        self.start_following(
            FollowedObjects(self.parameters.paths, owner=self.name, grace_period=_GRACE_PERIOD, kinds=_KINDS)
        )

    def quota_of(self, tenant: str) -> Quota | None:
        """Return the quota of the configuration, of objects, or the default."""
        return self._quotas.get(tenant, self._default)

    @property
    def named_quotas(self) -> Mapping[str, Quota]:
        """Quotas by tenant, without the default."""
        return self._quotas

    @property
    def default_quota(self) -> Quota | None:
        """The quota of all other tenants."""
        return self._default

    @property
    def asks_to_wait(self) -> bool:
        """Whether a quota says `Wait`."""
        given: Iterable[QuotaParameters | None] = (*self.parameters.quotas, self.parameters.default)
        return any(each is not None and each.when_exceeded == "Wait" for each in given)

    @property
    def without_prices(self) -> str:
        """The effect of missing prices; empty without limits on dollars."""
        return "its limits in dollars let everything through" if self.limits_dollars else ""

    @property
    def inputs(self) -> InputState:
        """Files and objects that are not in effect, and ignored values of objects."""
        return replace(self._objects.inputs, ignored=self._found.ignored, remarks=self._found.problems)

    @property
    def kinds(self) -> Sequence[ObjectKind]:
        """GPUResourceQuota, if `gpuResourceQuotas` is set."""
        return tuple(ObjectKind(*kind) for kind in _KINDS) if self.parameters.gpu_resource_quotas else ()

    def can_read(self, kind: ObjectKind) -> bool:
        """Return whether the kind is GPUResourceQuota, and `gpuResourceQuotas` is set."""
        return self.parameters.gpu_resource_quotas and (kind.group, kind.kind) in _KINDS

    def read_files(self, paths: Sequence[str]) -> None:
        """Read these files after those of the parameters."""
        if self.parameters.gpu_resource_quotas:
            super().read_files(paths)

    async def follow(self) -> None:
        """Apply new versions of the files until cancelled."""
        if self._objects.paths:
            async for _ in self._objects.changes():
                await self.look()

    def effect_of(self, change: Change, kinds: Sequence[ObjectsOfKind] = ()) -> Effect:  # noqa: ARG002  no tags
        """Return the quotas of these objects, which do not change tags."""
        objects = ObjectsByKind(change.files)
        return partial(self._apply, change, objects, quotas_by_namespace(objects.of(GpuResourceQuota).values()))

    def _apply(self, change: Change, objects: ObjectsByKind, by_namespace: Mapping[str, Quota]) -> AffectedEndpoints:
        self._found = objects
        self._objects.apply(change)
        self._quotas = {**by_namespace, **self._written}
        inputs = self.inputs
        self._objects.tell((*map(str, (*inputs.problems, *inputs.ignored)), *inputs.remarks))
        _log.info(
            "quotas of objects updated",
            plugin=self.name,
            namespaces=len(by_namespace),
            problems=len(inputs.problems) + len(inputs.ignored),
        )
        return no_endpoint
