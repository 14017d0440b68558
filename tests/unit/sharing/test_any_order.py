# SPDX-License-Identifier: Apache-2.0
"""Whatever was lost, repeated or late: in the end, all pickers know what one picker would that had all requests."""

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from epp.framework import ManualClock
from epp.routing.datastore import shared_work
from epp.sharing.exchange import SILENCE_SECONDS
from tests.unit.sharing.pickers import ENDPOINTS, Picker

WHO = st.integers(0, 2)
PLACE = st.sampled_from(ENDPOINTS)
PATH = st.lists(st.integers(1, 3), min_size=1, max_size=3)


def chain_of(path: list[int]) -> list[int]:
    """Return hashes that each stand for a block and all before it."""
    return [hash(tuple(path[: end + 1])) % 2**64 for end in range(len(path))]


class World(RuleBasedStateMachine):
    """Three pickers with the endpoints in different slots, and all batches so far."""

    def __init__(self):
        super().__init__()
        self.clock = ManualClock(100.0)
        self.pickers = [self.new(shift) for shift in range(3)]
        self.sent: list[bytes] = []

    def new(self, shift: int) -> Picker:
        return Picker(self.clock, ENDPOINTS[shift:] + ENDPOINTS[:shift])

    def tell_all(self) -> list[bytes]:
        batches = [batch for picker in self.pickers if (batch := picker.tell()) is not None]
        self.sent += batches
        return batches

    @rule(who=WHO, endpoint=PLACE, tokens=st.integers(0, 9))
    def send(self, who, endpoint, tokens):
        self.pickers[who].send(endpoint, tokens)

    @rule(who=WHO, which=st.integers(0, 20))
    def end(self, who, which):
        if tickets := self.pickers[who].tickets:
            tickets.pop(which % len(tickets)).close()

    @rule(who=WHO)
    def tell(self, who):
        if (batch := self.pickers[who].tell()) is not None:
            self.sent.append(batch)

    @rule(seconds=st.sampled_from([0.02, 0.5, 1.0]))
    def wait(self, seconds):
        self.clock.advance(seconds)


class AnyOrder(World):
    """Batches come in any order, again or never; pickers restart without a word."""

    @precondition(lambda self: self.sent)
    @rule(who=WHO, which=st.integers(0, 30))
    def deliver(self, who, which):
        self.pickers[who].exchange.apply(self.sent[which % len(self.sent)], 0.0)

    @rule(who=WHO)
    def restart(self, who):
        self.pickers[who] = self.new(who)

    def heal(self):
        """Deliver the next batches of all to all."""
        batches = self.tell_all()
        for picker in self.pickers:
            for batch in batches:
                picker.exchange.apply(batch, 0.0)
            picker.exchange.sweep()

    def teardown(self):
        self.clock.advance(SILENCE_SECONDS + 0.1)  # what ended without a word is forgotten
        self.heal()
        expected: Counter[str] = Counter()
        tokens: Counter[str] = Counter()
        for picker in self.pickers:
            for ticket in picker.tickets:
                name = picker.store.snapshot().endpoints.values[ticket.slot].name
                expected[name] += 1
                tokens[name] += ticket._tokens
        one_picker = {name: (expected[name], tokens[name]) for name in expected}
        assert [picker.in_flight for picker in self.pickers] == [one_picker] * 3


class AnyOrderInTurn(AnyOrder):
    """The same where a batch has room for two of the four endpoints, and tells one of them again."""

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(shared_work, "_MOST_ENTRIES", 2)
        self.patch.setattr(shared_work, "_RENEWED", 1)

    def heal(self):
        for _ in range(2 * len(ENDPOINTS)):
            super().heal()
            self.clock.advance(1.0)

    def teardown(self):
        try:
            super().teardown()
        finally:
            self.patch.undo()


class InOrder(World):
    """Batches come late, but all and in order, as through a stream; a picker that starts reads it whole."""

    def __init__(self):
        super().__init__()
        self.read = [0, 0, 0]
        self.placed: list[tuple] = []

    @rule(who=WHO, endpoint=PLACE, path=PATH)
    def place(self, who, endpoint, path):
        self.pickers[who].place(endpoint, chain_of(path))
        self.placed.append((endpoint, chain_of(path)))

    @rule(who=WHO)
    def catch_up(self, who):
        for batch in self.sent[self.read[who] :]:
            self.pickers[who].exchange.apply(batch, 0.0)
        self.read[who] = len(self.sent)

    @rule(who=WHO)
    def restart_after_telling_all(self, who):
        self.tell(who)
        self.pickers[who], self.read[who] = self.new(who), 0

    def teardown(self):
        self.tell_all()
        for who in range(3):
            self.catch_up(who)
        for endpoint, chain in self.placed:
            assert [picker.matched(endpoint, chain) for picker in self.pickers] == [len(chain)] * 3


TestAnyOrder = AnyOrder.TestCase
TestAnyOrderInTurn = AnyOrderInTurn.TestCase
TestInOrder = InOrder.TestCase
