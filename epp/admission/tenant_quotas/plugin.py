# SPDX-License-Identifier: Apache-2.0
"""The plugin `tenant-quotas`: what tenants may take, by a configuration and by objects of a cluster."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import structlog

from epp.admission.tenant_quotas.gpu_quotas import quotas_by_namespace
from epp.admission.tenant_quotas.parameters import QuotaParameters, TenantQuotaParameters
from epp.framework import Parameters
from epp.framework.cluster import ObjectKind, ObjectReader, ObjectsOfKind
from epp.framework.datalayer import AffectedEndpoints, Follower, no_endpoint
from epp.framework.limits import Count
from epp.framework.plugin_status import InputState
from epp.framework.quotas import Quota, QuotaSource
from epp.kube.objects.decode import Kinds, decode_object
from epp.kube.objects.followed import Change, FollowedObjects
from epp.kube.objects.last_good import ObjectsByKind
from epp.kube.objects.tensor_fusion import GpuResourceQuota

_KINDS: Kinds = frozenset({("tensor-fusion.ai", "GPUResourceQuota")})
_GRACE_PERIOD = "5m"
"""Time for which a file that is missing keeps its objects: as for accelerator objects, by default."""

_log = structlog.get_logger()


class TenantQuotasParameters(Parameters, frozen=True):
    """Quotas, and where more of them come from."""

    quotas: tuple[TenantQuotaParameters, ...] = ()
    """Quotas of single tenants. One that limits nothing lets its tenant take whatever it wants."""
    default: QuotaParameters | None = None
    """Quota of each tenant that has no other; without it, such a tenant may take whatever it wants."""
    gpu_resource_quotas: bool = False
    """Hold the tenant of a namespace's name to the GPUResourceQuota objects of TensorFusion there: maxWorkers limits
    its requests under way; vram and tflops, of requests or limits, whichever is less, their share of accelerators;
    maxGPUCount, the devices of an endpoint. Of several objects the smallest limit counts. A quota of the configuration
    takes the place of those of objects as a whole."""
    paths: tuple[str, ...] = ()
    """Files, or directories of files (.yaml, .yml, .json), with these objects, besides those of the cluster and of
    `--objects`; new versions apply at once. Of two objects with one name, the one in a file counts."""
    requests_per_endpoint: Count = 256
    """Requests that an endpoint serves at once: one of them takes this part of its memory and TFLOPS."""

    def __post_init__(self) -> None:
        """Refuse two quotas for one tenant, and files that are not read."""
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


class _Next(NamedTuple):
    change: Change
    by_namespace: Mapping[str, Quota]
    objects: ObjectsByKind


class TenantQuotas(
    QuotaSource[TenantQuotasParameters], ObjectReader[TenantQuotasParameters], Follower[TenantQuotasParameters]
):
    """Limits what the requests of a tenant take: each by itself (`single`), and all together (`total`).

    The tenant of a request is that which the plugin `tenants` finds, or else its fairness id. What has no limit of its
    own costs nothing. A limit of memory, TFLOPS or devices counts where the hardware of an endpoint is known, and one
    of dollars where its price is.

    A GPUResourceQuota whose new version is invalid stays as it was: the log and `/healthz` have the reason. A value
    that no quota can have is left out, and the rest of the object counts. An object that is being deleted does not.
    """

    plugin_type = "tenant-quotas"
    is_for_any_pool = True
    decode = staticmethod(decode_object)

    def setup(self) -> None:
        """Read the files for the first time; raises ConfigurationError or ValueError for an invalid path."""
        self.requests_per_endpoint = self.parameters.requests_per_endpoint
        default = self.parameters.default
        self._default = None if default is None else default.quota(f"default of {self.name}")
        self._written = {each.tenant: each.quota(f"quotas of {self.name}") for each in self.parameters.quotas}
        self._quotas: Mapping[str, Quota] = self._written
        self._found = ObjectsByKind(())
        self._objects = FollowedObjects(
            self.parameters.paths, owner=self.name, grace_period=_GRACE_PERIOD, kinds=_KINDS
        )
        self._changing = asyncio.Lock()
        """Files and cluster change the objects one after the other."""
        self._read_first()

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
        """What it does without prices; empty where it limits no dollars."""
        return "its limits in dollars let everything through" if self.limits_dollars else ""

    @property
    def inputs(self) -> InputState:
        """Files and objects that are not in effect, and values of objects that are ignored."""
        return replace(self._objects.inputs, ignored=self._found.ignored, remarks=self._found.problems)

    @property
    def kinds(self) -> Sequence[ObjectKind]:
        """GPUResourceQuota, where it is read."""
        return tuple(ObjectKind(*kind) for kind in _KINDS) if self.parameters.gpu_resource_quotas else ()

    def can_read(self, kind: ObjectKind) -> bool:
        """Return whether it is a GPUResourceQuota, and these count."""
        return self.parameters.gpu_resource_quotas and (kind.group, kind.kind) in _KINDS

    def read_files(self, paths: Sequence[str]) -> None:
        """Read these files after those of the parameters."""
        if paths and self.parameters.gpu_resource_quotas:
            self._objects.read_also(paths, "--objects")
            self._read_first()

    async def follow_files(self) -> None:
        """Apply new versions of the files until cancelled."""
        if not self._objects.paths:
            return
        async for _ in self._objects.changes():
            await self.look()

    async def look(self) -> bool:
        """Read the files; return whether any of them, or its objects in effect, changed."""
        async with self._changing:
            following = await asyncio.to_thread(self._read)
            if following is not None:
                self._apply(following)
        return following is not None

    async def objects_changed(self, kinds: Sequence[ObjectsOfKind]) -> AffectedEndpoints:
        """Take objects of the cluster; they bear on requests, not on tags."""
        async with self._changing:
            self._apply(await asyncio.to_thread(self._with_cluster, kinds))
        return no_endpoint

    def _read_first(self) -> None:
        if (following := self._read()) is not None:
            self._apply(following)

    def _read(self) -> _Next | None:
        """Return what follows; None if nothing changed. Runs in a thread, so it changes no state."""
        change = self._objects.read(self.clock.now())
        return None if change is None else _built(change)

    def _with_cluster(self, kinds: Sequence[ObjectsOfKind]) -> _Next:
        return _built(self._objects.take(kinds))

    def _apply(self, following: _Next) -> None:
        change, by_namespace, self._found = following
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


def _built(change: Change) -> _Next:
    objects = ObjectsByKind(change.files)
    return _Next(change, quotas_by_namespace(objects.of(GpuResourceQuota).values()), objects)
