# SPDX-License-Identifier: Apache-2.0
"""The quota of each tenant: one set at run time, else that of the first source with a quota for the tenant."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from epp.framework.arrays import ResultError
from epp.framework.errors import ConfigurationError
from epp.framework.messages import quoted
from epp.framework.plugin import Failure, Guard
from epp.framework.quotas import Quota, QuotaSource

MOST_SET = 10_000
"""Tenants whose quota is set at run time."""
_MOST_CHECKED = 4_096
"""Quotas whose validity is remembered."""


class LimitKey(StrEnum):
    """Name of a limit in breaches and reports."""

    PROMPT_TOKENS = "single.max.promptTokens"
    OUTPUT_TOKENS = "single.max.outputTokens"
    ACCELERATOR_BYTES = "single.max.vram.request"
    TFLOPS = "single.max.tflops.request"
    DEVICES = "single.max.gpuCount.limit"
    DOLLARS = "single.max.dollars"
    TOTAL_REQUESTS = "total.max.workers.limit"
    TOTAL_TOKENS = "total.max.tokens"
    TOTAL_TOKENS_PER_MINUTE = "total.max.tokensPerMinute"
    TOTAL_ACCELERATOR_BYTES = "total.max.vram.request"
    TOTAL_TFLOPS = "total.max.tflops.request"
    TOTAL_DEVICE_SECONDS = "total.max.deviceSecondsPerDay"
    TOTAL_DOLLARS = "total.max.dollarsPerDay"


class Allowance(NamedTuple):
    """The quota of a tenant, and the number of requests that share an endpoint."""

    quota: Quota
    requests_per_endpoint: int


class Allowances:
    """Sources of quotas, and the quotas that were set at run time."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._sources: tuple[QuotaSource[Any], ...] = ()
        self._set: dict[str, Quota] = {}
        self._checked: dict[int, Quota] = {}
        self._requests_per_endpoint = QuotaSource.requests_per_endpoint
        self.is_active = False
        """Whether any tenant may have a quota."""

    def twin(self, guard: Guard, sources: Sequence[QuotaSource[Any]]) -> "Allowances":
        """Return allowances with other sources and another guard, and the same quotas set at run time."""
        other = Allowances(guard)
        other._set = self._set
        other.use(sources)
        return other

    @property
    def set_quotas(self) -> Mapping[str, Quota]:
        """Quotas that were set at run time, by tenant."""
        return MappingProxyType(self._set)

    def use(self, sources: Sequence[QuotaSource[Any]]) -> None:
        """Replace the sources, in order of precedence."""
        self._sources = tuple(sources)
        self._requests_per_endpoint = QuotaSource.requests_per_endpoint
        for source in self._sources[:1]:
            found = self._guard.call(QuotaSource.role, source, _requests_of, source)
            if not isinstance(found, Failure):
                self._requests_per_endpoint = found
        self.is_active = bool(self._sources or self._set)

    def check(self, tenant: str, quota: Quota | None) -> None:
        """Raise ConfigurationError for an invalid quota, or if too many are set."""
        if quota is not None and (problem := problem_of(quota)):
            raise ConfigurationError(f"the quota of {quoted(tenant)} {problem}", remedy="write a number of 0 or more")
        if quota is not None and tenant not in self._set and len(self._set) >= MOST_SET:
            raise ConfigurationError(
                f"{MOST_SET} tenants have a quota that was set at run time, the most that are kept",
                remedy="take some back, or write them into the configuration",
            )

    def set(self, tenant: str, quota: Quota | None) -> None:
        """Set the quota of a tenant, which overrides the sources; None to remove it. Raises as `check`."""
        self.check(tenant, quota)
        if quota is None:
            self._set.pop(tenant, None)
        else:
            self._set[tenant] = quota
        self.is_active = bool(self._sources or self._set)

    def of(self, tenant: str) -> Allowance | None:
        """Return the allowance of a tenant; None without a quota."""
        found = self._set.get(tenant)
        return self.of_sources(tenant) if found is None else Allowance(found, self._requests_per_endpoint)

    def of_sources(self, tenant: str) -> Allowance | None:
        """Return the allowance by the sources alone; a source that fails is skipped."""
        for source in self._sources:
            found = self._guard.call(QuotaSource.role, source, self._ask, source, tenant)
            if found is not None and not isinstance(found, Failure):
                return found
        return None

    def _ask(self, source: QuotaSource[Any], tenant: str) -> Allowance | None:
        quota = source.quota_of(tenant)
        if quota is None:
            return None
        if self._checked.get(id(quota)) is not quota:
            if problem := problem_of(quota):
                raise ResultError(f"returned a quota that {problem}")
            if len(self._checked) >= _MOST_CHECKED:
                self._checked.clear()
            self._checked[id(quota)] = quota
        return Allowance(quota, _requests_of(source))


def problem_of(quota: object) -> str:
    """Return the reason why a quota is invalid; empty if it is valid."""
    if not isinstance(quota, Quota):
        return f"is {type(quota).__name__} instead of a Quota"
    limits = {**msgspec.structs.asdict(quota.single), **msgspec.structs.asdict(quota.total)}
    shared = [("shared", each.accelerator_bytes) for each in quota.shared]
    for name, limit in (*limits.items(), *shared, ("alert_percent", quota.alert_percent)):
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 <= limit < inf:
            return f"has a limit {name} of {limit!r:.40}"
    return ""


def _requests_of(source: QuotaSource[Any]) -> int:
    return max(1, int(source.requests_per_endpoint))
