# SPDX-License-Identifier: Apache-2.0
"""Pickers that exchange batches by hand."""

from array import array
from dataclasses import dataclass, field
from itertools import count

from epp.framework import Endpoint, ManualClock
from epp.framework.sharing import Shareable
from epp.framework.snapshot import IN_FLIGHT, IN_FLIGHT_TOKENS
from epp.plugins.prefix_cache.producer import ApproxPrefixCacheProducer, Placed
from epp.routing.datastore import Datastore, SharedWork
from epp.sharing.exchange import Exchange

ENDPOINTS = tuple(Endpoint(f"e{number}", f"10.0.0.{number + 1}", 8000) for number in range(4))
_ids = count()


@dataclass
class Picker:
    """One picker, with its pool in an order of its own."""

    clock: ManualClock
    order: tuple[Endpoint, ...] = ENDPOINTS
    defers: bool = False
    """Whether it routes no requests."""
    store: Datastore = field(init=False)
    exchange: Exchange = field(init=False)
    prefixes: ApproxPrefixCacheProducer = field(init=False)
    tickets: list = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = Datastore(self.clock)
        self.store.replace(self.order)
        self.prefixes = ApproxPrefixCacheProducer(clock=self.clock)
        work = SharedWork(self.store)

        def parts() -> tuple[Shareable, ...]:
            return work, self.prefixes

        self.exchange = Exchange(f"p{next(_ids)}", parts, self.store.snapshot, self.clock, salt=7, defers=self.defers)

    def slot(self, endpoint: Endpoint) -> int:
        slot = self.store.slot_of(endpoint)
        assert slot is not None
        return slot

    def send(self, endpoint: Endpoint, tokens: int) -> None:
        self.tickets.append(self.store.ledger.open(self.slot(endpoint), tokens))

    def place(self, endpoint: Endpoint, hashes: list[int]) -> None:
        """Record a chain as a request does."""
        chain = array("Q", hashes)
        self.prefixes._index.record(self.slot(endpoint), chain, 1000)
        self.prefixes._outbox.add(Placed.of(endpoint, chain))

    def matched(self, endpoint: Endpoint, hashes: list[int]) -> int:
        return int(self.prefixes._index.match(array("Q", hashes), 4)[self.slot(endpoint)])

    @property
    def in_flight(self) -> dict[str, tuple[float, float]]:
        """Requests and tokens of endpoints that have any."""
        snapshot = self.store.snapshot()
        found = {
            one.name: (snapshot.column(IN_FLIGHT)[self.slot(one)], snapshot.column(IN_FLIGHT_TOKENS)[self.slot(one)])
            for one in self.store.endpoints
        }
        return {name: work for name, work in found.items() if work != (0, 0)}

    def tell(self, *others: "Picker") -> bytes | None:
        batch = self.exchange.collect()
        for other in others if batch is not None else ():
            other.exchange.apply(batch, 0.0)
        return batch
