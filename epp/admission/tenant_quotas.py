# SPDX-License-Identifier: Apache-2.0
"""The plugin `tenant-quotas`: quotas from the configuration, and from objects of a cluster."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import structlog

from epp.admission.tenant_quota_objects import QuotaParameters, TenantQuotaParameters, quotas_by_namespace
from epp.framework import Parameters
from epp.framework.cluster import ObjectsOfKind
from epp.framework.datalayer import AffectedEndpoints, Follower, no_endpoint
from epp.framework.limits import Count
from epp.framework.plugin_status import InputState
from epp.framework.quotas import Quota, QuotaSource
from epp.kube.objects.decode import MEMORY_QUOTA_KINDS, Kinds
from epp.kube.objects.followed import Change, Effect, FollowsObjects
from epp.kube.objects.last_good import ObjectsByKind

_GPU_QUOTAS: Kinds = frozenset({("tensor-fusion.ai", "GPUResourceQuota")})
_log = structlog.get_logger()


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
    accelerator_memory_quotas: bool = False
    """Apply quotas of the memory of MIG slices (InstaSlice), `instaslice.redhat.com/accelerator-memory-quota` or
    `gpu.das.openshift.io/mem`, to the tenant with the name of the namespace: those of ResourceQuota objects, and those
    of the ClusterQueues of Kueue that its LocalQueues name, with what such a queue may borrow. They limit the
    accelerator memory of its requests in flight; a ClusterQueue limits that of all namespaces together which its
    namespaceSelector selects. The smallest limit counts, and a quota of the configuration replaces those of objects as
    a whole."""
    paths: tuple[str, ...] = ()
    """Files, or directories of files (.yaml, .yml, .json), with these objects, in addition to those of the cluster
    and of `--objects`; new versions apply at once. If two objects have the same name, the one in a file counts."""
    requests_per_endpoint: Count = 256
    """Concurrent requests of an endpoint: each of them uses an equal part of its memory and TFLOPS."""

    def __post_init__(self) -> None:
        counts = Counter(each.tenant for each in self.quotas)
        for index, each in enumerate(self.quotas):
            if counts[each.tenant] > 1:
                raise ValueError(
                    f"quotas[{index}].tenant is {each.tenant!r}, as that of another entry: keep one of them"
                )
        if self.paths and not self.kinds:
            raise ValueError(
                "paths has no effect without gpuResourceQuotas or acceleratorMemoryQuotas: set one of them to true, or "
                "remove it"
            )

    @property
    def kinds(self) -> Kinds:
        return (_GPU_QUOTAS if self.gpu_resource_quotas else frozenset()) | (
            MEMORY_QUOTA_KINDS if self.accelerator_memory_quotas else frozenset()
        )


class TenantQuotas(
    QuotaSource[TenantQuotasParameters], FollowsObjects[TenantQuotasParameters], Follower[TenantQuotasParameters]
):
    """Limits each request of a tenant (`single`), and all requests of a tenant together (`total`).

    The plugin `tenants` identifies the tenant of a request; without it, the fairness id does. Limits on memory, TFLOPS
    and devices apply at endpoints whose hardware is known, limits on dollars at endpoints whose price is known.

    An invalid new version of an object changes nothing: the log and `/healthz` have the reason. An invalid
    value is ignored, and the rest of the object counts. An object that is being deleted does not count.
    """

    plugin_type = "tenant-quotas"
    is_for_any_pool = True

    def setup(self) -> None:
        self.requests_per_endpoint = self.parameters.requests_per_endpoint
        default = self.parameters.default
        self._default = None if default is None else default.quota(f"default of {self.name}")
        self._written = {each.tenant: each.quota(f"quotas of {self.name}") for each in self.parameters.quotas}
        self._quotas: Mapping[str, Quota] = self._written
        self._found = ObjectsByKind(())
        self._remarks: tuple[str, ...] = ()
        self.start_following(self.parameters.paths, self.parameters.kinds)

    def quota_of(self, tenant: str) -> Quota | None:
        return self._quotas.get(tenant, self._default)

    @property
    def named_quotas(self) -> Mapping[str, Quota]:
        return self._quotas

    @property
    def default_quota(self) -> Quota | None:
        return self._default

    @property
    def asks_to_wait(self) -> bool:
        given: Iterable[QuotaParameters | None] = (*self.parameters.quotas, self.parameters.default)
        return any(each is not None and each.when_exceeded == "Wait" for each in given)

    @property
    def without_prices(self) -> str:
        return "its limits in dollars let everything through" if self.limits_dollars else ""

    @property
    def inputs(self) -> InputState:
        remarks = (*self._found.problems, *self._remarks)
        return replace(self._objects.inputs, ignored=self._found.ignored, remarks=remarks)

    def read_files(self, paths: Sequence[str]) -> None:
        """Read these files after those of the parameters."""
        if self.parameters.kinds:
            super().read_files(paths)

    async def follow(self) -> None:
        """Apply new versions of the files until cancelled."""
        await self.follow_files(lambda _: None)

    def effect_of(self, change: Change, kinds: Sequence[ObjectsOfKind] = ()) -> Effect:  # noqa: ARG002  no tags
        objects = ObjectsByKind(change.files)
        return partial(self._apply, change, objects, *quotas_by_namespace(objects))

    def _apply(
        self, change: Change, objects: ObjectsByKind, by_namespace: Mapping[str, Quota], remarks: tuple[str, ...]
    ) -> AffectedEndpoints:
        self._found, self._remarks = objects, remarks
        self._objects.apply(change)
        self._quotas = {**by_namespace, **self._written}
        inputs = self.inputs
        self._objects.tell((*map(str, (*inputs.problems, *inputs.ignored)), *inputs.remarks))
        return no_endpoint
