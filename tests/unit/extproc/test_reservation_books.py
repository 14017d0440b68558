# SPDX-License-Identifier: Apache-2.0
"""Requests in flight are counted exactly under random events, and are zero after the last one."""

import random
from collections.abc import Callable

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from epp.extproc.exchange import GatewayTraits
from epp.framework import Endpoint
from epp.framework.snapshot import IN_FLIGHT, IN_FLIGHT_TOKENS
from epp.routing.director import Cause
from epp.routing.director.open_requests import RESERVATION_SECONDS
from tests.support.exchanges import (
    BODY,
    Bench,
    Exchange,
    new_bench,
    request_body,
    request_headers,
    response_body,
    response_headers,
)

EVENTS = 10_000
IDS = 12
POOL = [Endpoint(name, f"10.0.0.{number}", 8000) for number, name in enumerate("abcd", 1)]
TOKENS_TOO = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: prefix-cache-affinity-filter}, {type: queue-scorer}]
"""


class Open:
    """One exchange, and how far it is."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.headers_came = False


class Gateway:
    """Sends what a random generator says, and ends what it is told to end."""

    def __init__(self, bench: Bench, chance: random.Random) -> None:
        self.bench = bench
        self.chance = chance
        self.traits = GatewayTraits()
        self.open: list[Open] = []
        self.gone: list[Exchange] = []
        bench.store.replace(POOL)
        self.steps: list[Callable[[], None]] = [
            *[self.request] * 5,
            *[self.retry] * 2,
            *[self.answer] * 4,
            *[self.piece] * 2,
            *[self.leave] * 3,
            *[self.leave_again] * 1,
            *[self.end] * 3,
            self.sweep,
            self.pool_changes,
        ]

    def step(self) -> None:
        self.chance.choice(self.steps)()
        self.check()

    def request(self) -> None:
        """Half of all ids are in use already; some say which attempt they are."""
        attempt = self.chance.choice(["1", "1", "2", "3", None])
        self._send(f"r-{self.chance.randrange(IDS)}", attempt, self.chance.choice([BODY, BODY + b" "]))

    def retry(self) -> None:
        self._send(f"r-{self.chance.randrange(IDS)}", str(self.chance.randrange(2, 9)), BODY)

    def answer(self) -> None:
        if self.open:
            each = self.chance.choice(self.open)
            if not each.headers_came:
                each.headers_came = True
                each.exchange.receive(response_headers(self.chance.choice(["200", "503"])))

    def piece(self) -> None:
        if self.open:
            each = self.chance.choice(self.open)
            each.headers_came = True
            each.exchange.receive(response_body(b"piece"))

    def end(self) -> None:
        if self.open:
            each = self.open.pop(self.chance.randrange(len(self.open)))
            each.exchange.receive(response_body(b"last", end=True))
            each.exchange.close()
            self.gone.append(each.exchange)

    def leave(self) -> None:
        if self.open:
            each = self.open.pop(self.chance.randrange(len(self.open)))
            each.exchange.close(self.chance.choice([Cause.CLIENT_DISCONNECT, Cause.ERROR]))
            self.gone.append(each.exchange)

    def leave_again(self) -> None:
        if self.gone:
            exchange = self.chance.choice(self.gone)
            exchange.close()
            exchange.evict()

    def sweep(self) -> None:
        self.bench.clock.advance(self.chance.choice([30.0, RESERVATION_SECONDS / 2]))
        sum(self.bench.director.reservations.sweep())

    def pool_changes(self) -> None:
        """Some endpoints leave with all that runs there; others take their slots."""
        self.bench.store.replace(self.chance.sample(POOL, self.chance.randrange(1, len(POOL) + 1)))

    def check(self) -> None:
        """End what is to be ended; the books hold no more than what is open then."""
        for each in [each for each in self.open if each.exchange.is_to_end]:
            self.open.remove(each)
            assert len(each.exchange.evict()) == 1
            each.exchange.close()
        snapshot = self.bench.store.snapshot()
        for column in (IN_FLIGHT, IN_FLIGHT_TOKENS):
            assert snapshot.column(column).min() >= 0
        assert snapshot.column(IN_FLIGHT).sum() <= len(self.open)
        assert len(self.bench.director.reservations) <= len(self.open)

    def all_end(self) -> None:
        while self.open:
            self.leave()

    def _send(self, name: str, attempt: str | None, body: bytes) -> None:
        exchange = self.bench.session(traits=self.traits)
        more = {} if attempt is None else {"x-envoy-attempt-count": attempt}
        exchange.receive(request_headers(**{"x-request-id": name, **more}))
        assert exchange.receive(request_body(body))
        self.open.append(Open(exchange))


@pytest.mark.slow
@settings(max_examples=2, deadline=None, phases=[Phase.explicit, Phase.generate])  # nothing is smaller than 10,000
@given(st.integers(0, 2**32))
def test_tf_8_ten_thousand_random_events_leave_zero(seed):
    bench = new_bench(TOKENS_TOO)
    gateway = Gateway(bench, random.Random(seed))
    for _ in range(EVENTS):
        gateway.step()
    assert bench.endings.expired_ids
    assert Cause.SUPERSEDED in bench.endings.causes
    gateway.all_end()
    snapshot = bench.store.snapshot()
    for column in (IN_FLIGHT, IN_FLIGHT_TOKENS):
        assert not snapshot.column(column).any()
    assert len(bench.director.reservations) == 0
    assert len(bench.director.attempts) == 0
