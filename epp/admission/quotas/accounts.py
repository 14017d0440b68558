# SPDX-License-Identifier: Apache-2.0
"""Accounts of all tenants, sums of several of them, and alerts on limits that are almost used up."""

from bisect import bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from itertools import chain, islice

from epp.admission.quotas.account import Account, brief
from epp.admission.quotas.reservation import QuotaObserver
from epp.admission.quotas.usage import LimitKey

MOST_IDLE = 10_000
"""Largest number of idle accounts, which are kept for their usage in a minute or a day."""
_WEIGHTS = (1e-3, 0.01, 0.1, 0.5)
"""Boundaries between classes of accounts with similar weights."""
MARGIN_PERCENT = 10.0
"""Points below the threshold at which an alert may end."""
CALM_SECONDS = 60.0
"""Time below the threshold after which an alert may end, since usage of a small limit changes with each request."""
_PERCENT = 100.0


class Accounts:
    """Accounts by tenant: busy ones, with requests in flight, and idle ones.

    The number of idle accounts is limited, since clients may choose the names of tenants. The account with the least
    weight is dropped; among accounts with similar weights, the one that has been idle longest.
    """

    def __init__(self, weigh: Callable[[Account], float], forget: Callable[[Account], None]) -> None:
        self._weigh = weigh
        """Returns the weight of an idle account; 0 to drop the account."""
        self._forget = forget
        self._busy: dict[str, Account] = {}
        self._idle: OrderedDict[str, tuple[Account, OrderedDict[str, Account]]] = OrderedDict()
        """Idle accounts and their weight classes, by tenant."""
        self._classes: list[OrderedDict[str, Account]] = [OrderedDict() for _ in range(len(_WEIGHTS) + 1)]
        """Weight classes of idle accounts, in ascending order."""

    def __len__(self) -> int:
        return len(self._busy) + len(self._idle)

    def __iter__(self) -> Iterator[Account]:
        return chain(self._busy.values(), (account for account, _ in self._idle.values()))

    def get(self, tenant: str) -> Account | None:
        name = brief(tenant)
        return self._busy.get(name) or self._idle.get(name, (None, None))[0]

    def busy(self, account: Account) -> None:
        """Keep an account when one of its requests begins."""
        tenant = account.tenant
        if tenant not in self._busy:
            self._remove_idle(tenant)
            self._busy[tenant] = account

    def release(self, account: Account) -> None:
        """Keep an account as idle if it has weight, since its last request has ended."""
        self._busy.pop(account.tenant, None)
        self._remove_idle(account.tenant)
        self._keep_idle(account)
        if len(self._idle) > MOST_IDLE:
            least = next(alike for alike in self._classes if alike)
            dropped = next(iter(least.values()))
            self._remove_idle(dropped.tenant)
            self._forget(dropped)

    def tidy(self, most: int) -> None:
        """Weigh some of the idle accounts again, and drop those without weight."""
        for account, _ in list(islice(self._idle.values(), most)):
            self._remove_idle(account.tenant)
            self._keep_idle(account)

    def _keep_idle(self, account: Account) -> None:
        weight = self._weigh(account)
        if weight <= 0:
            self._forget(account)
            return
        alike = self._classes[bisect_right(_WEIGHTS, weight)]
        alike[account.tenant] = account
        self._idle[account.tenant] = account, alike

    def _remove_idle(self, tenant: str) -> None:
        found = self._idle.pop(tenant, None)
        if found is not None:
            del found[1][tenant]


class JointMemory:
    """Accelerator memory of the requests of several tenants together."""

    def __init__(self, accounts: Accounts, today: Callable[[], int]) -> None:
        self._accounts = accounts
        self._today = today
        self._sums: dict[frozenset[str], float] = {}
        self._sets: defaultdict[str, list[frozenset[str]]] = defaultdict(list)
        """Sets with a sum, by tenant."""

    def of_others(self, tenants: frozenset[str], tenant: str) -> float:
        """Return the sum of these tenants except one, at all pickers."""
        if tenants not in self._sums:
            self._sums[tenants] = sum(map(self._used, tenants))
            for each in tenants:
                self._sets[each].append(tenants)
        return self._sums[tenants] - self._used(tenant)

    def add(self, tenant: str, accelerator_bytes: float) -> None:
        for tenants in self._sets.get(tenant, ()):
            self._sums[tenants] += accelerator_bytes

    def clear(self) -> None:
        """Drop all sums, since sums of floats drift."""
        self._sums.clear()
        self._sets.clear()

    def _used(self, tenant: str) -> float:
        account = self._accounts.get(tenant)
        if account is None:
            return 0.0
        return account.in_flight.accelerator_bytes + account.used_by_peers(self._today()).accelerator_bytes


class Alerts:
    """Alerts on limits of all tenants that are almost used up; the start and end of each alert are reported."""

    def __init__(self, observer: QuotaObserver) -> None:
        self._observer = observer
        self._alerting: OrderedDict[str, Account] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(account.alerts) for account in self._alerting.values())

    def check(self, account: Account, now: float, today: int) -> None:
        """Start alerts of an account after its usage has grown."""
        share = account.quota.alert_percent / _PERCENT
        for key, used, limit in account.uses(now, today):
            if used >= limit * share and used > 0:
                self._alerting[account.tenant] = account
                if key not in account.alerts:
                    self._observer.alert(account.tenant, key.value, used, limit, is_over=False)
                account.alerts[key] = now

    def sweep(self, now: float, today: int, most: int) -> None:
        """End alerts whose usage has been low for some time; checks at most `most` accounts."""
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
        for key in list(account.alerts):
            self._end(account, key, 0.0, 0.0)

    def _end(self, account: Account, key: LimitKey, used: float, limit: float) -> None:
        del account.alerts[key]
        if not account.alerts:
            self._alerting.pop(account.tenant, None)
        self._observer.alert(account.tenant, key.value, used, limit, is_over=True)
