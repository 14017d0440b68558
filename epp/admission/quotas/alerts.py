# SPDX-License-Identifier: Apache-2.0
"""Limits that are almost used up: told once as that begins, and once as it is over for good."""

from collections import OrderedDict
from itertools import islice
from typing import Protocol

from epp.admission.quotas.account import Account
from epp.admission.quotas.allowances import LimitKey

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
