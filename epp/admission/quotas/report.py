# SPDX-License-Identifier: Apache-2.0
"""Report of quota usage, for people and metrics."""

import msgspec

from epp.admission.quotas.account import Account
from epp.framework.errors import Breach
from epp.framework.quotas import Quota


class QuotaUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One limit on the total of a tenant, and what is used of it."""

    tenant: str
    key: str
    """Name of the limit."""
    used: float
    limit: float
    is_alerting: bool = False
    """Whether it is almost used up, or was a short time ago."""
    is_set: bool = False
    """Whether the quota was set at run time."""
    origin: str = ""
    """Who says so, for people."""
    uncounted: int = 0
    """Requests that took nothing of it, as the hardware or price of their endpoint is not known."""

    @property
    def headroom(self) -> float:
        """What is left; negative for a debt, or a limit that was lowered below its use."""
        return self.limit - self.used

    @property
    def available_percent(self) -> float:
        """Share of the limit that is left, from 0 to 100."""
        return max(0.0, 100.0 * self.headroom / self.limit)


class Adjustment(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a quota at run time, and what it means now."""

    tenant: str
    before: Quota | None
    """The quota so far; None for whatever the tenant wants."""
    after: Quota | None
    lines: tuple[QuotaUsage, ...]
    """Use and headroom of each limit of the quota after."""
    breaches: tuple[Breach, ...]
    """Limits that are below what is used now: new requests are refused until that has ended."""
    is_applied: bool
    """Whether it is in effect; not for a dry run."""


def lines(account: Account, now: float, today: int, *, is_set: bool) -> tuple[QuotaUsage, ...]:
    """Return a line for each limit of an account's quota."""
    return tuple(
        [
            QuotaUsage(
                tenant=account.tenant,
                key=key.value,
                used=used,
                limit=limit,
                is_alerting=key in account.alerts,
                is_set=is_set,
                origin=account.quota.origin,
                uncounted=account.uncounted.get(key, 0),
            )
            for key, used, limit in account.uses(now, today)
        ]
    )


def breaches(found: tuple[QuotaUsage, ...]) -> tuple[Breach, ...]:
    """Return those of the limits that are below what is used."""
    return tuple([Breach(line.tenant, line.key, line.used, line.limit) for line in found if line.used > line.limit])
