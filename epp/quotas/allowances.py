# SPDX-License-Identifier: Apache-2.0
"""Which quota a tenant has: one set at run time, else that of the first source that knows the tenant."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from epp.framework.arrays import ResultError
from epp.framework.errors import ConfigurationError
from epp.framework.quotas import Quota, QuotaSource
from epp.scheduling import Failure, Guard

MOST_SET = 10_000
"""Tenants whose quota is set at run time."""


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
        self._requests_per_endpoint = QuotaSource.requests_per_endpoint
        self.is_active = False
        """Whether any tenant may have a quota."""

    @property
    def set_quotas(self) -> Mapping[str, Quota]:
        """Those that were set at run time, by tenant."""
        return MappingProxyType(self._set)

    def use(self, sources: Sequence[QuotaSource[Any]]) -> None:
        """Ask these from now on, in this order."""
        self._sources = tuple(sources)
        known = QuotaSource.requests_per_endpoint if not sources else sources[0].requests_per_endpoint
        self._requests_per_endpoint = max(1, known)
        self.is_active = bool(self._sources or self._set)

    def set(self, tenant: str, quota: Quota | None) -> None:
        """Set the quota of a tenant, whatever sources say, or go by these again."""
        if quota is None:
            self._set.pop(tenant, None)
        elif tenant not in self._set and len(self._set) >= MOST_SET:
            raise ConfigurationError(
                f"{MOST_SET} tenants have a quota that was set at run time, the most that are kept",
                remedy="take some back, or write them into the configuration",
            )
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
            quota = self._guard.call(QuotaSource.role, source, _quota_of, source, tenant)
            if quota is not None and not isinstance(quota, Failure):
                return Allowance(quota, max(1, source.requests_per_endpoint))
        return None


def _quota_of(source: QuotaSource[Any], tenant: str) -> Quota | None:
    quota = source.quota_of(tenant)
    if quota is not None and not isinstance(quota, Quota):
        raise ResultError(f"returned {type(quota).__name__} instead of a Quota")
    return quota
