# SPDX-License-Identifier: Apache-2.0
"""Which quota a tenant has: one set at run time, else that of the first source that knows the tenant."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from epp.framework.arrays import ResultError
from epp.framework.errors import ConfigurationError
from epp.framework.guard import Failure, Guard
from epp.framework.messages import quoted
from epp.framework.quotas import Quota, QuotaSource


class LimitKey(StrEnum):
    """A limit, as breaches and reports name it."""

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


MOST_SET = 10_000
"""Tenants whose quota is set at run time."""
_MOST_CHECKED = 4_096
"""Quotas that are known to be right; each is looked at once."""


class Allowance(NamedTuple):
    """The quota of a tenant, if it has one."""

    quota: Quota
    requests_per_endpoint: int


class Allowances:
    """Sources of quotas, and what was set since."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._sources: tuple[QuotaSource[Any], ...] = ()
        self._set: dict[str, Quota] = {}
        self._checked: dict[int, Quota] = {}
        self._requests_per_endpoint = QuotaSource.requests_per_endpoint
        self.is_active = False
        """Whether any tenant may have a quota."""

    def twin(self, guard: Guard, sources: Sequence[QuotaSource[Any]]) -> "Allowances":
        """Return allowances by other sources, asked behind another guard, and the same quotas set at run time."""
        other = Allowances(guard)
        other._set = self._set
        other.use(sources)
        return other

    @property
    def set_quotas(self) -> Mapping[str, Quota]:
        """Those that were set at run time, by tenant."""
        return MappingProxyType(self._set)

    def use(self, sources: Sequence[QuotaSource[Any]]) -> None:
        """Ask these from now on, in this order."""
        self._sources = tuple(sources)
        self._requests_per_endpoint = QuotaSource.requests_per_endpoint
        for source in self._sources[:1]:
            found = self._guard.call(QuotaSource.role, source, _requests_of, source)
            if not isinstance(found, Failure):
                self._requests_per_endpoint = found
        self.is_active = bool(self._sources or self._set)

    def check(self, tenant: str, quota: Quota | None) -> None:
        """Refuse a quota that cannot be, or one more than are kept; raises ConfigurationError."""
        if quota is not None and (problem := problem_of(quota)):
            raise ConfigurationError(f"the quota of {quoted(tenant)} {problem}", remedy="write a number of 0 or more")
        if quota is not None and tenant not in self._set and len(self._set) >= MOST_SET:
            raise ConfigurationError(
                f"{MOST_SET} tenants have a quota that was set at run time, the most that are kept",
                remedy="take some back, or write them into the configuration",
            )

    def set(self, tenant: str, quota: Quota | None) -> None:
        """Set the quota of a tenant, whatever sources say, or go by these again; raises as `check` does."""
        self.check(tenant, quota)
        if quota is None:
            self._set.pop(tenant, None)
        else:
            self._set[tenant] = quota
        self.is_active = bool(self._sources or self._set)

    def of(self, tenant: str) -> Allowance | None:
        """Return what a tenant may take; None for whatever it wants."""
        found = self._set.get(tenant)
        return self.of_sources(tenant) if found is None else Allowance(found, self._requests_per_endpoint)

    def of_sources(self, tenant: str) -> Allowance | None:
        """Return what the sources say; one that fails says nothing."""
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
    """Return what cannot be right in a quota; empty for nothing."""
    if not isinstance(quota, Quota):
        return f"is {type(quota).__name__} instead of a Quota"
    limits = {**msgspec.structs.asdict(quota.single), **msgspec.structs.asdict(quota.total)}
    for name, limit in (*limits.items(), ("alert_percent", quota.alert_percent)):
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 <= limit < inf:
            return f"has a limit {name} of {limit!r:.40}"
    return ""


def _requests_of(source: QuotaSource[Any]) -> int:
    return max(1, int(source.requests_per_endpoint))
