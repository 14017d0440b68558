# SPDX-License-Identifier: Apache-2.0
"""The accounts of tenants, whose names clients may choose: few are kept of those that nothing is charged to now."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain, islice

from epp.quotas.account import Account

MOST_RESTING = 10_000
"""Accounts without a request under way, kept for what was taken of a minute or a day."""
_COMPARED = 8
"""Resting accounts of which the one that matters least goes, when there are too many."""


class Accounts:
    """By tenant: those with requests under way, and those at rest."""

    def __init__(self, weigh: Callable[[Account], float], forget: Callable[[Account], None]) -> None:
        self._weigh = weigh
        """How much an account without requests matters; 0 for nothing."""
        self._forget = forget
        self._busy: dict[str, Account] = {}
        self._resting: OrderedDict[str, Account] = OrderedDict()

    def __len__(self) -> int:
        return len(self._busy) + len(self._resting)

    def __iter__(self) -> Iterator[Account]:
        return chain(self._busy.values(), self._resting.values())

    @property
    def resting(self) -> int:
        """Number of those without a request under way."""
        return len(self._resting)

    def get(self, tenant: str) -> Account | None:
        """Return the account of a tenant, if there is one."""
        account = self._busy.get(tenant)
        return self._resting.get(tenant) if account is None else account

    def busy(self, account: Account) -> None:
        """Keep an account, as a request begins."""
        self._resting.pop(account.tenant, None)
        self._busy[account.tenant] = account

    def rest(self, account: Account) -> None:
        """Keep an account whose last request has ended, if it matters."""
        self._busy.pop(account.tenant, None)
        if self._weigh(account) <= 0:
            self._forget(account)
            return
        self._resting[account.tenant] = account
        if len(self._resting) > MOST_RESTING:
            oldest = list(islice(self._resting.values(), _COMPARED))
            weights = [self._weigh(each) for each in oldest]
            least = weights.index(min(weights))
            for position, each in enumerate(oldest):
                if position == least:
                    del self._resting[each.tenant]
                    self._forget(each)
                else:
                    self._resting.move_to_end(each.tenant)

    def tidy(self, most: int) -> None:
        """Look at some of those at rest, and drop those that do not matter any more."""
        for account in list(islice(self._resting.values(), most)):
            if self._weigh(account) > 0:
                self._resting.move_to_end(account.tenant)
            else:
                del self._resting[account.tenant]
                self._forget(account)
