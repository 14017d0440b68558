# SPDX-License-Identifier: Apache-2.0
"""Pickers that share the use of quotas, and exchange batches by hand."""

from itertools import count

from epp.admission.quotas import Blocked, Reservation, WhenAlone
from epp.framework.quotas import Quota
from epp.sharing.exchange import Exchange
from tests.support.quotas import Desk, TwoClocks

_ids = count()


class QuotaPicker(Desk):
    """One picker: its quotas, its requests, and its part of the exchange."""

    def __init__(self, clock: TwoClocks, quotas: dict[str, Quota], when_alone=WhenAlone.LAST_KNOWN_SHARE, **endpoints):
        super().__init__(quotas, clock=clock, **endpoints)
        name = f"p{next(_ids)}"
        shared = self.quotas.share(name, when_alone)
        self.exchange = Exchange(name, lambda: (shared,), lambda: self.pool.snapshot, clock, salt=7)
        self.under_way: list[Reservation] = []

    def send(self, number: int = 1, tenant: str = "a", **size: int) -> int:
        """Send requests; return how many are admitted."""
        found = [self.take(tenant, **size) for _ in range(number)]
        admitted = [each for each in found if not isinstance(each, Blocked)]
        self.under_way += admitted
        return len(admitted)

    def end(self, number: int = 1, **what) -> None:
        for _ in range(number):
            self.under_way.pop().release(**what)


def tell(*pickers: QuotaPicker, to: tuple[QuotaPicker, ...] = ()) -> None:
    """Let each picker tell its news to all others, or to some of them."""
    for one in pickers:
        batch = one.exchange.collect()
        for other in (to or pickers) if batch is not None else ():
            other.exchange.apply(batch, 0.0)


def meet(*pickers: QuotaPicker) -> None:
    """Let pickers hear of each other, and that the others have heard of them."""
    for _ in range(4):
        tell(*pickers)
