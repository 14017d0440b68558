# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from epp.framework import Candidates, Endpoint, ManualClock
from epp.framework.snapshot import FAILED, IN_FLIGHT, IN_FLIGHT_TOKENS, LAST_PICKED, SERVED
from epp.routing.datastore import Datastore, Flow


@pytest.fixture
def store() -> Datastore:
    store = Datastore(ManualClock())
    store.replace([Endpoint("a", "10.0.0.1", 8000), Endpoint("b", "10.0.0.2", 8000)])
    return store


def read(store: Datastore, column) -> list[float]:
    snapshot = store.snapshot()
    return Candidates(snapshot, snapshot.slots).values(column).tolist()


def test_own_work_is_credited_at_once_and_tokens_go_with_the_first_token(store):
    ticket = store.ledger.open(0, tokens=500)
    assert (read(store, IN_FLIGHT), read(store, IN_FLIGHT_TOKENS)) == ([1, 0], [500, 0])
    ticket.first_token()
    assert (read(store, IN_FLIGHT), read(store, IN_FLIGHT_TOKENS)) == ([1, 0], [0, 0])
    ticket.close()
    assert (read(store, IN_FLIGHT), read(store, SERVED)) == ([0, 0], [1, 0])


def test_closing_twice_gives_back_once(store):
    ticket = store.ledger.open(0, tokens=5)
    for end in (ticket.close, ticket.close, ticket.first_token):
        end()
        assert (read(store, IN_FLIGHT), read(store, IN_FLIGHT_TOKENS), read(store, SERVED)) == ([0, 0], [0, 0], [1, 0])


def test_last_picked_grows_with_every_pick(store):
    store.ledger.open(1)
    store.ledger.open(0)
    assert read(store, LAST_PICKED) == [2, 1]


def test_ticket_of_an_endpoint_that_left_does_not_touch_the_next_one_in_its_slot(store):
    ticket = store.ledger.open(0, 7, Flow("x", 0))
    store.replace([Endpoint("b", "10.0.0.2", 8000), Endpoint("c", "10.0.0.3", 8000)])  # c takes slot 0
    assert by_flow(store) == {}
    store.ledger.open(0, 3, Flow("y", 0))
    ticket.close()
    assert (read(store, IN_FLIGHT), read(store, IN_FLIGHT_TOKENS)) == ([1, 0], [3, 0])
    assert by_flow(store) == {(0, "y"): (1, 3)}


def test_request_that_went_elsewhere_is_credited_there_and_counted_once(store):
    ticket = store.ledger.open(0, tokens=9)
    ticket.move(1)
    assert (read(store, IN_FLIGHT), read(store, IN_FLIGHT_TOKENS)) == ([0, 1], [0, 9])
    ticket.close(failed=True)
    ticket.move(0)  # too late
    assert (read(store, IN_FLIGHT), read(store, SERVED), read(store, FAILED)) == ([0, 0], [0, 1], [0, 1])


def by_flow(store: Datastore) -> dict[tuple[int, str], tuple[int, int]]:
    return {
        (place.slot, place.flow.fairness_id): (work.requests, work.tokens)
        for place, work in store.ledger.by_flow.items()
    }


def test_work_is_known_by_flow_for_as_long_as_it_is_under_way(store):
    one, two = store.ledger.open(0, 7, Flow("x", 0)), store.ledger.open(0, 2, Flow("x", 0))
    other = store.ledger.open(1, 5, Flow("y", 0))
    assert by_flow(store) == {(0, "x"): (2, 9), (1, "y"): (1, 5)}
    one.first_token()
    other.move(0)
    assert by_flow(store) == {(0, "x"): (2, 2), (0, "y"): (1, 5)}
    for ticket in (one, two, other, other):
        ticket.close()
    assert by_flow(store) == {}


class LedgerMachine(RuleBasedStateMachine):
    """Any order of opening, first tokens, endings and pool changes: the books balance at every step."""

    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.store = Datastore(ManualClock())
        self.names = ["a", "b", "c"]
        self.epoch = dict.fromkeys(self.names, 0)
        self.open: dict[int, tuple[str, int, int]] = {}
        self.count = 0
        self._replace(self.names)

    def _replace(self, names: list[str]) -> None:
        self.present = list(names)
        self.store.replace([Endpoint(n, f"10.0.0.{'abc'.index(n) + 1}", 8000) for n in names])
        self.slot = {e.name: i for i, e in enumerate(self.store.snapshot().endpoints.values) if e is not None}

    @rule(target=tickets, pick=st.integers(0, 99), tokens=st.integers(0, 1000))
    def open_ticket(self, pick: int, tokens: int):
        if not self.present:
            return None
        name = self.present[pick % len(self.present)]
        self.count += 1
        self.open[self.count] = (name, self.epoch[name], tokens)
        return self.count, self.store.ledger.open(self.slot[name], tokens)

    @rule(ticket=tickets)
    def first_token(self, ticket):
        if ticket is not None:
            number, real = ticket
            real.first_token()
            if number in self.open:
                name, epoch, _ = self.open[number]
                self.open[number] = (name, epoch, 0)

    @rule(ticket=tickets, pick=st.integers(0, 99))
    def move(self, ticket, pick: int):
        if ticket is None or not self.present:
            return
        number, real = ticket
        name = self.present[pick % len(self.present)]
        stays = self.slot[name] == real.slot
        real.move(self.slot[name])
        if number in self.open and not stays:
            self.open[number] = (name, self.epoch[name], self.open[number][2])

    @rule(ticket=consumes(tickets), times=st.integers(1, 3))
    def close(self, ticket, times: int):
        if ticket is not None:
            number, real = ticket
            for _ in range(times):
                real.close()
            self.open.pop(number, None)

    @rule(names=st.sets(st.sampled_from("abc")))
    def change_pool(self, names: set[str]):
        for name in set(self.present) - names:
            self.epoch[name] += 1
        self._replace(sorted(names))

    @invariant()
    def books_balance(self):
        snapshot = self.store.snapshot()
        for name in self.present:
            mine = [tokens for n, epoch, tokens in self.open.values() if n == name and epoch == self.epoch[name]]
            assert snapshot.column(IN_FLIGHT)[self.slot[name]] == len(mine)
            assert snapshot.column(IN_FLIGHT_TOKENS)[self.slot[name]] == sum(mine)
            works = [work for place, work in self.store.ledger.by_flow.items() if place.slot == self.slot[name]]
            assert [(work.requests, work.tokens) for work in works] == ([(len(mine), sum(mine))] if mine else [])


TestLedgerMachine = LedgerMachine.TestCase
