# SPDX-License-Identifier: Apache-2.0
"""The plugins `tenants`, which identifies the tenant of a request, and `tenant-quotas`, with quotas of tenants."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from types import MappingProxyType

import structlog

from epp.admission.tenant_parameters import (
    KeyTable,
    PriorityParameters,
    TenantsParameters,
    digest_of,
    key_in,
    read_digest,
    read_key_file,
)
from epp.admission.tenant_quota_objects import QuotaParameters, TenantQuotaParameters, quotas_by_namespace
from epp.framework import Parameters, RequestHeaders, headers
from epp.framework.cluster_objects import ObjectsOfKind
from epp.framework.datalayer import AffectedEndpoints, Follower, no_endpoint
from epp.framework.errors import UnknownApiKeyError, UnknownClientError, WithoutApiKeyError
from epp.framework.limits import Count
from epp.framework.messages import quoted
from epp.framework.plugin_status import InputState, PluginMetric, Sample
from epp.framework.quotas import TENANT, Quota, QuotaSource, Tenant
from epp.framework.request import AGENT_IDENTITY, DEFAULT_FLOW, Request
from epp.kube.objects.decode import MEMORY_QUOTA_KINDS, Kinds
from epp.kube.objects.followed import Change, Effect, FollowsObjects
from epp.kube.objects.last_good import ObjectsByKind
from epp.runtime.followed_files import LastGoodFile, changes

NO_KEYS = KeyTable(MappingProxyType({}), MappingProxyType({}))

_MOST_REMARKS = 20
_REQUESTS = PluginMetric(
    "tenant_requests", "Requests by the way in which their tenant was identified.", ("identified_by",), is_counter=True
)
_UNKNOWN_KEYS = PluginMetric(
    "tenant_unknown_api_keys", "Requests with an unknown API key, refused or not.", is_counter=True
)
_log = structlog.get_logger()


class Directory:
    """All tenants in the configuration and in a file of keys; immutable."""

    def __init__(self, parameters: TenantsParameters, keys: KeyTable = NO_KEYS) -> None:
        self._parameters = parameters
        listed = {each.name: self._tenant(each.name, each) for each in parameters.tenants}
        unlisted = {name: self._tenant(name, parameters.default) for name in keys.lines if name not in listed}
        self._tenants = listed | unlisted
        owners = {
            digest: each.name
            for each in parameters.tenants
            for text in each.api_keys
            if (digest := read_digest(str(text))) is not None
        }
        self._by_digest = {digest: self._tenants[name] for digest, name in {**keys.tenants, **owners}.items()}
        self.by_namespace = {name: listed[each.name] for each in parameters.tenants for name in each.namespaces}
        self.by_fairness_id = {name: listed[each.name] for each in parameters.tenants for name in each.fairness_ids}
        self._unnamed = self._tenant(parameters.default.name or DEFAULT_FLOW, parameters.default)
        self.remarks = tuple(_remarks(parameters, unlisted, owners, keys))

    @property
    def keys(self) -> int:
        return len(self._by_digest)

    def of_key(self, key: str) -> Tenant | None:
        digest = digest_of(key)
        return None if digest is None else self._by_digest.get(digest)

    def none(self, fairness_id: str) -> Tenant:
        """Return the tenant of an unidentified request, which is never a configured one."""
        if self._parameters.default.name or fairness_id in self._tenants or fairness_id == DEFAULT_FLOW:
            return self._unnamed
        return self._tenant(fairness_id, self._parameters.default)

    def _tenant(self, name: str, given: PriorityParameters) -> Tenant:
        return Tenant(
            name=name,
            priority=self._parameters.priority_of(given),
            highest_priority=given.highest_priority,
            qos=given.qos or "",
        )


def _remarks(
    parameters: TenantsParameters, unlisted: dict[str, Tenant], owners: dict[bytes, str], keys: KeyTable
) -> Iterator[str]:
    """Yield problems with keys and tenants, at most 20 of each kind."""
    pairs = {(keys.lines[keys.tenants[digest]], owner) for digest, owner in owners.items() if digest in keys.tenants}
    not_listed = [
        f"line {keys.lines[name]}: its tenant is not in tenants, and therefore has the priority of default: add it "
        "there, or correct the name"
        for name in unlisted
    ]
    repeated = [
        f"a key of the tenant in line {line} is also in apiKeys of {quoted(owner)}, which applies: remove one"
        for line, owner in sorted(pairs)
        if line != keys.lines.get(owner)
    ]
    unidentified = [
        f"tenant {quoted(each.name)} cannot be identified, because it has no key: add a key, or fairnessIds"
        for each in parameters.tenants
        if parameters.api_key_file and each.name not in keys.lines and not each.has_identifiers
    ]
    for sentences in (not_listed, repeated, unidentified):
        yield from sentences[:_MOST_REMARKS]
        if (more := len(sentences) - _MOST_REMARKS) > 0:
            yield f"and {more} more like these"


class By(StrEnum):
    """Evidence that identified the tenant of a request."""

    API_KEY = "api-key"
    NAMESPACE = "namespace"
    FAIRNESS_ID = "fairness-id"
    NOTHING = "nothing"
    """No tenant was identified, and the request is not refused."""


class Tenants(RequestHeaders[TenantsParameters], Follower[TenantsParameters]):
    """Identifies the tenant of a request, and sets the fairness id of the request to its name.

    The API key takes precedence over the namespace header, which takes precedence over the fairness id. The fairness id
    is the header of the request, or else its agent identity. The priority of the tenant applies if the request has no
    known objective; `highestPriority` limits the priority that an objective can give. An unidentified request keeps its
    fairness id, unless that is the name of a tenant.

    Keys are stored as digests and never shown. An invalid version of `apiKeyFile` is ignored; the log, `/healthz` and
    `llm_d_epp_input_problems` report the reason.
    """

    plugin_type = "tenants"
    may_read = (AGENT_IDENTITY,)
    writes = (TENANT,)
    metrics = (_REQUESTS, _UNKNOWN_KEYS)

    def setup(self) -> None:
        given = self.parameters
        self._key_headers = tuple(map(str.lower, given.api_key_headers))
        self._namespace_header = given.namespace_header.lower()
        if given.remove_api_key:
            self.sets_headers = self._key_headers
        self._uses_keys, self._refuses = given.uses_keys, given.unknown == "Refuse"
        self._requires_key = self._uses_keys and self._refuses
        self._file: LastGoodFile[KeyTable] | None = None
        if given.api_key_file:
            self._file = LastGoodFile.first(given.api_key_file, "apiKeyFile", read_key_file)
        self.directory = self._directory()
        self._counts = dict.fromkeys(By, 0)
        self._unknown_keys = 0

    @property
    def inputs(self) -> InputState:
        if self._file is None:
            return InputState()
        path = str(self._file.path)
        remarks = tuple(f"{path}: {remark}" for remark in self.directory.remarks)
        return InputState(self._file.problems, {path: self._file.rejected}, remarks=remarks)

    @property
    def warnings(self) -> Sequence[str]:
        given = self.parameters
        found = []
        if not given.namespace_header and any(tenant.namespaces for tenant in given.tenants):
            found.append("namespaces have no effect without namespaceHeader: name the header")
        if not given.api_key_headers and given.uses_keys:
            found.append("API keys have no effect, because apiKeyHeaders is empty: name the headers")
        found += [
            f"tenant {tenant.name!r} cannot be identified: add apiKeys, namespaces or fairnessIds, such as "
            f"fairnessIds: [{tenant.name}]"
            for tenant in given.tenants
            if not (given.api_key_file or tenant.has_identifiers)
        ]
        return found

    @property
    def samples(self) -> Sequence[Sample]:
        return (
            *(Sample(_REQUESTS, count, (by.value,)) for by, count in self._counts.items()),
            Sample(_UNKNOWN_KEYS, self._unknown_keys),
        )

    def request_headers(self, request: Request) -> None:
        """Publish the tenant; raises UnauthorizedError for a request that must be refused."""
        tenant, by = self._identified(request)
        self._counts[by] += not request.dry_run
        request.put(TENANT, tenant)

    def _identified(self, request: Request) -> tuple[Tenant, By]:
        directory, fields = self.directory, request.headers
        has_key = False
        for name in self._key_headers:
            value = fields.get(name)
            key = "" if value is None else key_in(name, value)
            if not key:
                continue
            tenant = directory.of_key(key)
            if tenant is not None:
                return tenant, By.API_KEY
            has_key = True
        self._unknown_keys += has_key and self._uses_keys and not request.dry_run
        if has_key and self._requires_key:
            raise UnknownApiKeyError
        if self._namespace_header:
            tenant = directory.by_namespace.get(fields.get(self._namespace_header, ""))
            if tenant is not None:
                return tenant, By.NAMESPACE
        if self._requires_key:
            raise WithoutApiKeyError(self._key_headers[0] if self._key_headers else headers.AUTHORIZATION)
        fairness_id = fields.first_of(*headers.FAIRNESS_ID) or request.get(AGENT_IDENTITY) or DEFAULT_FLOW
        tenant = directory.by_fairness_id.get(fairness_id)
        if tenant is not None:
            return tenant, By.FAIRNESS_ID
        if self._refuses:
            raise UnknownClientError
        return directory.none(fairness_id), By.NOTHING

    async def follow(self, changed: Callable[[AffectedEndpoints], None]) -> None:  # noqa: ARG002  no tags
        if self._file is None:
            return
        async for _ in changes():
            await self.check()

    async def check(self) -> bool:
        """Read the file; return whether its content or state changed."""
        if self._file is None:
            return False
        following = await asyncio.to_thread(self._file.after, self.clock.now())
        if following is self._file:
            return False
        self._file, before = following, self._file
        if following.parsed is not before.parsed:
            self.directory = await asyncio.to_thread(self._directory)
            _log.info("API keys updated", plugin=self.name, keys=self.directory.keys)
        for problem in self.inputs.sentences:
            _log.warning("problem with API keys", plugin=self.name, problem=problem)
        return True

    def _directory(self) -> Directory:
        keys = NO_KEYS if self._file is None or self._file.parsed is None else self._file.parsed.value
        return Directory(self.parameters, keys)


_GPU_QUOTAS: Kinds = frozenset({("tensor-fusion.ai", "GPUResourceQuota")})


class TenantQuotasParameters(Parameters, frozen=True):
    """Quotas of the configuration, and sources of further quotas."""

    quotas: tuple[TenantQuotaParameters, ...] = ()
    """Quotas of single tenants. A quota without limits exempts its tenant from `default`."""
    default: QuotaParameters | None = None
    """Quota of each tenant without another quota. By default, such tenants are not limited."""
    gpu_resource_quotas: bool = False
    """Apply the GPUResourceQuota objects of TensorFusion in a namespace to the tenant with that name: maxWorkers limits
    its requests in flight; vram and tflops, the smaller of requests and limits, limit their share of accelerators; and
    maxGPUCount limits the devices of an endpoint. If a namespace has several objects, the smallest limit applies. A
    quota in the configuration completely replaces those of objects."""
    accelerator_memory_quotas: bool = False
    """Apply quotas of the memory of MIG slices (InstaSlice), `instaslice.redhat.com/accelerator-memory-quota` or
    `gpu.das.openshift.io/mem`, to the tenant with the name of the namespace. Their sources are ResourceQuota objects,
    and the ClusterQueues of Kueue that its LocalQueues name, including the quota that they can borrow. They limit the
    accelerator memory of its requests in flight; a ClusterQueue limits the sum over all namespaces that its
    namespaceSelector selects. The smallest limit applies. A quota in the configuration completely replaces those of
    objects."""
    paths: tuple[str, ...] = ()
    """Files, or directories of files (.yaml, .yml, .json), with these objects, in addition to those in the cluster
    and of `--objects`; new versions apply within a second. If two objects have the same name, the one in a file is
    used."""
    requests_per_endpoint: Count = 256
    """Concurrent requests of an endpoint; each of them uses an equal part of its memory and TFLOPS."""

    def __post_init__(self) -> None:
        counts = Counter(each.tenant for each in self.quotas)
        for index, each in enumerate(self.quotas):
            if counts[each.tenant] > 1:
                raise ValueError(
                    f"quotas[{index}].tenant is {each.tenant!r}, the same as in another entry: keep one of them"
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


class TenantQuotas(QuotaSource[TenantQuotasParameters], FollowsObjects[TenantQuotasParameters]):
    """Limits each request of a tenant (`single`), and all requests of a tenant together (`total`).

    The plugin `tenants` identifies the tenant of a request; without it, the fairness id is the tenant. Limits on
    memory, TFLOPS and devices apply at endpoints with known hardware, limits on dollars at endpoints with known price.

    An invalid new version of an object is ignored; the log and `/healthz` report the reason. If only a value is
    invalid, the rest of the object applies. Objects that are being deleted are ignored.
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
        return "its limits in dollars have no effect" if self.limits_dollars else ""

    @property
    def inputs(self) -> InputState:
        remarks = (*self._found.problems, *self._remarks)
        return replace(self._objects.inputs, ignored=self._found.ignored, remarks=remarks)

    def read_files(self, paths: Sequence[str]) -> None:
        """Read these files after those of the parameters."""
        if self.parameters.kinds:
            super().read_files(paths)

    def effect_of(self, change: Change, kinds: Sequence[ObjectsOfKind] = ()) -> Effect:  # noqa: ARG002  no tags
        objects = ObjectsByKind(change.files)
        return partial(self._assign, objects, *quotas_by_namespace(objects))

    def _assign(
        self, objects: ObjectsByKind, by_namespace: Mapping[str, Quota], remarks: tuple[str, ...]
    ) -> AffectedEndpoints:
        self._found, self._remarks = objects, remarks
        self._quotas = {**by_namespace, **self._written}
        return no_endpoint
