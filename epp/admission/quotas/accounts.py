# SPDX-License-Identifier: Apache-2.0
"""Accounts of all tenants, and alerts on limits that are almost used up."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Protocol

from epp.admission.quotas.account import Account, brief
from epp.admission.quotas.allowances import LimitKey

MOST_RESTING = 10_000
"""Accounts without a request under way, kept for what was taken of a minute or a day."""
_WEIGHTS = (1e-3, 0.01, 0.1, 0.5)
"""Between these, accounts matter alike."""


class Accounts:
    """By tenant: those with requests under way, and those at rest.

    Of too many at rest, one of those that matter least goes, and of these the one that has rested longest.
    """

    def __init__(self, weigh: Callable[[Account], float], forget: Callable[[Account], None]) -> None:
        self._weigh = weigh
        """How much an account without requests matters; 0 for nothing."""
        self._forget = forget
        self._busy: dict[str, Account] = {}
        self._resting: OrderedDict[str, tuple[Account, OrderedDict[str, Account]]] = OrderedDict()
        """Each with those that matter like it."""
        self._alike: list[OrderedDict[str, Account]] = [OrderedDict() for _ in range(len(_WEIGHTS) + 1)]
        """From those that matter least."""

    def __len__(self) -> int:
        return len(self._busy) + len(self._resting)

    def __iter__(self) -> Iterator[Account]:
        return chain(self._busy.values(), (account for account, _ in self._resting.values()))

    def get(self, tenant: str) -> Account | None:
        """Return the account of a tenant, if there is one."""
        name = brief(tenant)
        account = self._busy.get(name)
        if account is None:
            found = self._resting.get(name)
            return None if found is None else found[0]
        return account

    def busy(self, account: Account) -> None:
        """Keep an account, as a request begins."""
        tenant = account.tenant
        if tenant not in self._busy:
            self._take_out(tenant)
            self._busy[tenant] = account

    def rest(self, account: Account) -> None:
        """Keep an account whose last request has ended, if it matters."""
        self._busy.pop(account.tenant, None)
        self._put(account)
        if len(self._resting) > MOST_RESTING:
            least = next(alike for alike in self._alike if alike)
            self._drop(next(iter(least.values())))

    def tidy(self, most: int) -> None:
        """Look at some of those at rest, and drop those that do not matter any more."""
        for account, _ in list(islice(self._resting.values(), most)):
            self._take_out(account.tenant)
            self._put(account)

    def _put(self, account: Account) -> None:
        weight = self._weigh(account)
        if weight <= 0:
            self._forget(account)
            return
        alike = self._alike[bisect_right(_WEIGHTS, weight)]
        alike[account.tenant] = account
        self._resting[account.tenant] = account, alike

    def _take_out(self, tenant: str) -> None:
        found = self._resting.pop(tenant, None)
        if found is not None:
            del found[1][tenant]

    def _drop(self, account: Account) -> None:
        self._take_out(account.tenant)
        self._forget(account)


MARGIN_PERCENT = 10.0
"""Points below the threshold at which an alert may end."""
CALM_SECONDS = 60.0
"""Time for which use has to have been below the threshold: that of a small limit goes up and down with each request."""
_PERCENT = 100.0


class AlertObserver(Protocol):
    """Is told of alerts."""

    def alert(self, tenant: str, key: str, used: float, limit: float, *, is_over: bool) -> None:
        """Record that a limit is almost used up, or that this is over."""


class Alerts:
    """Of all tenants."""

    def __init__(self, observer: AlertObserver) -> None:
        self._observer = observer
        self._alerting: OrderedDict[str, Account] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(account.alerts) for account in self._alerting.values())

    def look(self, account: Account, now: float, today: int) -> None:
        """Begin alerts, as a request has been charged."""
        share = account.quota.alert_percent / _PERCENT
        for key, used, limit in account.uses(now, today):
            if used >= limit * share and used > 0:
                self._alerting[account.tenant] = account
                if key not in account.alerts:
                    self._observer.alert(account.tenant, key.value, used, limit, is_over=False)
                account.alerts[key] = now

    def sweep(self, now: float, today: int, most: int) -> None:
        """End alerts of limits that have not been almost used up for a while; look at so many accounts."""
        for account in list(islice(self._alerting.values(), most)):
            self._alerting.move_to_end(account.tenant)
            lowest = (account.quota.alert_percent - MARGIN_PERCENT) / _PERCENT
            uses = {key: (used, limit) for key, used, limit in account.uses(now, today)}
            for key, last in list(account.alerts.items()):
                used, limit = uses.get(key, (0.0, 0.0))
                if limit > 0 and used >= limit * account.quota.alert_percent / _PERCENT:
                    account.alerts[key] = now
                elif now - last >= CALM_SECONDS and used <= limit * max(lowest, 0.0):
                    self._end(account, key, used, limit)

    def forget(self, account: Account) -> None:
        """End the alerts of an account that is dropped."""
        for key in list(account.alerts):
            self._end(account, key, 0.0, 0.0)

    def _end(self, account: Account, key: LimitKey, used: float, limit: float) -> None:
        del account.alerts[key]
        if not account.alerts:
            self._alerting.pop(account.tenant, None)
        self._observer.alert(account.tenant, key.value, used, limit, is_over=True)
