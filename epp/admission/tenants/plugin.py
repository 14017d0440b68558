# SPDX-License-Identifier: Apache-2.0
"""The plugin `tenants`: says who sends a request."""

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import structlog

from epp.admission.tenants.api_keys import KeyTable, key_in, read_key_file
from epp.admission.tenants.directory import NO_KEYS, Directory
from epp.admission.tenants.parameters import TenantsParameters
from epp.framework import RequestHeaders, headers
from epp.framework.datalayer import Follower
from epp.framework.errors import UnknownApiKeyError, UnknownClientError, WithoutApiKeyError
from epp.framework.plugin_status import InputState, PluginMetric, Sample
from epp.framework.quotas import TENANT, Tenant
from epp.framework.request import AGENT_IDENTITY, DEFAULT_FLOW, Request
from epp.runtime.followed_files import LastGoodFile, changes

_REQUESTS = PluginMetric(
    "tenant_requests", "Requests by what said which tenant sends them.", ("identified_by",), is_counter=True
)
_UNKNOWN_KEYS = PluginMetric(
    "tenant_unknown_api_keys", "Requests with an API key that no tenant has, refused or not.", is_counter=True
)

_log = structlog.get_logger()


class By(StrEnum):
    """What says which tenant sends a request."""

    API_KEY = "api-key"
    NAMESPACE = "namespace"
    FAIRNESS_ID = "fairness-id"
    NOTHING = "nothing"
    """It is of no tenant, and is not refused."""


class Tenants(RequestHeaders[TenantsParameters], Follower[TenantsParameters]):
    """Publishes the tenant of a request, whose name becomes the request's fairness id, and its priority.

    The API key says it, before the header of the namespace, before the fairness id: the request's header, or else its
    agent identity. The tenant's priority holds where the request names no known objective; `highestPriority` is the
    most that an objective can give. A request of no tenant keeps its fairness id, unless that is the name of a tenant.

    Keys are held as digests, and shown nowhere. An invalid version of `apiKeyFile` changes nothing: the log, `/healthz`
    and `llm_d_epp_input_problems` have the reason.
    """

    plugin_type = "tenants"
    may_read = (AGENT_IDENTITY,)
    writes = (TENANT,)
    metrics = (_REQUESTS, _UNKNOWN_KEYS)

    def setup(self) -> None:
        """Read the file for the first time; raises ValueError for one that says nothing."""
        given = self.parameters
        self._key_headers = tuple(map(str.lower, given.api_key_headers))
        self._namespace_header = given.namespace_header.lower()
        if given.remove_api_key:
            self.sets_headers = self._key_headers
        self._uses_keys, self._refuses = given.uses_keys, given.unknown == "Refuse"
        self._wants_key = self._uses_keys and self._refuses
        self._file: LastGoodFile[KeyTable] | None = None
        if given.api_key_file:
            self._file = LastGoodFile.first(given.api_key_file, "apiKeyFile", read_key_file)
        self.directory = self._directory()
        self._counts = dict.fromkeys(By, 0)
        self._unknown_keys = 0

    @property
    def inputs(self) -> InputState:
        """The file of keys, and what of it is not in effect."""
        if self._file is None:
            return InputState()
        path = str(self._file.path)
        remarks = tuple(f"{path}: {remark}" for remark in self.directory.remarks)
        return InputState(self._file.problems, {path: self._file.rejected}, remarks=remarks)

    @property
    def warnings(self) -> Sequence[str]:
        """Tenants that no request can be of, and parameters without effect."""
        given = self.parameters
        found = []
        if not given.namespace_header and any(tenant.namespaces for tenant in given.tenants):
            found.append("namespaces have no effect without namespaceHeader: name the header in which they come")
        if not given.api_key_headers and given.uses_keys:
            found.append("API keys have no effect, as apiKeyHeaders is empty: name the headers in which they come")
        found += [
            f"no request can be of tenant {tenant.name!r}: give apiKeys, namespaces or fairnessIds, such as "
            f"fairnessIds: [{tenant.name}]"
            for tenant in given.tenants
            if not (given.api_key_file or tenant.is_known_otherwise)
        ]
        return found

    @property
    def samples(self) -> Sequence[Sample]:
        """Requests so far."""
        return (
            *(Sample(_REQUESTS, count, (by.value,)) for by, count in self._counts.items()),
            Sample(_UNKNOWN_KEYS, self._unknown_keys),
        )

    def request_headers(self, request: Request) -> None:
        """Publish the tenant; raises UnauthorizedError for a request that is to be refused."""
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
        if has_key and self._wants_key:
            raise UnknownApiKeyError
        if self._namespace_header:
            tenant = directory.of_namespace(fields.get(self._namespace_header, ""))
            if tenant is not None:
                return tenant, By.NAMESPACE
        if self._wants_key:
            raise WithoutApiKeyError(self._key_headers[0] if self._key_headers else headers.AUTHORIZATION)
        fairness_id = fields.first_of(*headers.FAIRNESS_ID) or request.get(AGENT_IDENTITY) or DEFAULT_FLOW
        tenant = directory.of_fairness_id(fairness_id)
        if tenant is not None:
            return tenant, By.FAIRNESS_ID
        if self._refuses:
            raise UnknownClientError
        return directory.none(fairness_id), By.NOTHING

    async def follow_files(self) -> None:
        """Apply new versions of the file until cancelled."""
        if self._file is None:
            return
        async for _ in changes(Path(self.parameters.api_key_file)):
            await self.look()

    async def look(self) -> bool:
        """Read the file; return whether it changed, or whether it can be read."""
        if self._file is None:
            return False
        following = await asyncio.to_thread(self._file.after, self.clock.now())
        if following is self._file:
            return False
        self._file, before = following, self._file
        if following.parsed is not before.parsed:
            self.directory = await asyncio.to_thread(self._directory)
            _log.info("API keys updated", plugin=self.name, keys=self.directory.keys)
        for problem in (*following.problems, *self.inputs.remarks):
            _log.warning("problem with API keys", plugin=self.name, problem=str(problem))
        return True

    def _directory(self) -> Directory:
        keys = NO_KEYS if self._file is None or self._file.parsed is None else self._file.parsed.value
        return Directory(self.parameters, keys)
