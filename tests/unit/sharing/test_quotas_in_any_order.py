# SPDX-License-Identifier: Apache-2.0
"""Whatever is late, lost or restarted: all pickers together use a quota, and no more than the slices beside it."""

from collections import deque
from itertools import permutations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from epp.admission.quotas.usage import MinuteUse
from tests.support.quotas import TwoClocks, quota
from tests.unit.sharing.quota_pickers import QuotaPicker

PICKERS = 3
REQUESTS, TOKENS, MINUTE = 12, 600, 1500
LARGEST = 60
"""Tokens of a request."""
MOST_LOST = 2
"""Batches in a row from one picker to another: with five, it would be silent for five seconds."""
LATEST_SECONDS = 2.0
WHO = st.integers(0, PICKERS - 1)


def bound(limit: float, one_request: float) -> float:
    """Return the most that all use together: the limit, and the slices of the other pickers."""
    return limit + (PICKERS - 1) * max(one_request, limit / PICKERS)


class World(RuleBasedStateMachine):
    """Three pickers of one tenant, and a queue of batches from each to each other one."""

    def __init__(self):
        super().__init__()
        self.clock = TwoClocks()
        self.pickers = [self.new() for _ in range(PICKERS)]
        self.history: list[tuple[bytes, float]] = []
        self.queues = {pair: deque() for pair in permutations(range(PICKERS), 2)}
        self.lost = dict.fromkeys(self.queues, 0)
        self.minute = MinuteUse()
        self.is_restarted = False
        for _ in range(3):
            self.settle()

    def new(self) -> QuotaPicker:
        return QuotaPicker(self.clock, {"a": quota(requests=REQUESTS, tokens=TOKENS, tokens_per_minute=MINUTE)})

    def settle(self):
        """Let all tell and hear all."""
        for who in range(PICKERS):
            self.tell(who)
        for pair, queue in self.queues.items():
            self.deliver(pair, len(queue))

    def hear(self, pair):
        batch, sent_at = self.queues[pair].popleft()
        self.lost[pair] = 0
        self.pickers[pair[1]].exchange.apply(batch, self.clock.now() - sent_at)

    @rule(
        order=st.permutations(range(PICKERS)),
        number=st.sampled_from([1, 3, REQUESTS]),
        tokens=st.sampled_from([0, LARGEST]),
    )
    def send(self, order, number, tokens):
        """Send requests to one picker after the other."""
        for who in order:
            admitted = self.pickers[who].send(number, prompt=tokens)
            self.minute.add(admitted * tokens, MINUTE, self.clock.now())
            self.check()

    def check(self):
        under_way = [each for picker in self.pickers for each in picker.under_way]
        assert len(under_way) <= bound(REQUESTS, 1)
        assert sum(each.charged.tokens for each in under_way) <= bound(TOKENS, LARGEST)
        if not self.is_restarted:
            assert self.minute.taken(MINUTE, self.clock.now()) <= bound(MINUTE, LARGEST)

    @rule(who=WHO, number=st.integers(1, 6))
    def end(self, who, number):
        self.pickers[who].end(min(number, len(self.pickers[who].under_way)))

    @rule(who=WHO)
    def tell(self, who):
        batch = self.pickers[who].exchange.collect()
        if batch is not None:
            self.history.append((batch, self.clock.now()))
            for pair, queue in self.queues.items():
                if pair[0] == who:
                    queue.append(self.history[-1])

    @rule(pair=st.sampled_from(list(permutations(range(PICKERS), 2))), number=st.integers(1, 3))
    def deliver(self, pair, number):
        for _ in range(min(number, len(self.queues[pair]))):
            self.hear(pair)

    @rule(pair=st.sampled_from(list(permutations(range(PICKERS), 2))))
    def lose(self, pair):
        if self.queues[pair] and self.lost[pair] < MOST_LOST:
            self.queues[pair].popleft()
            self.lost[pair] += 1

    @rule(seconds=st.sampled_from([0.02, 0.2, 1.0]))
    def wait(self, seconds):
        self.clock.advance(seconds)
        for who, picker in enumerate(self.pickers):
            self.tell(who)
            picker.exchange.sweep()
        for pair, queue in self.queues.items():
            while queue and self.clock.now() - queue[0][1] > LATEST_SECONDS:
                self.hear(pair)

    @rule(who=WHO)
    def restart(self, who):
        """Lose a picker with its requests; the next one reads the history before it is ready."""
        self.is_restarted = True
        self.pickers[who] = self.new()
        for pair, queue in self.queues.items():
            if who in pair:
                queue.clear()
        for batch, sent_at in self.history:
            self.pickers[who].exchange.apply(batch, self.clock.now() - sent_at)

    def teardown(self):
        """Let all be told: then the use of each is what all know."""
        for _ in range(8):
            self.clock.advance(1.0)
            self.settle()
            for picker in self.pickers:
                picker.exchange.sweep()
        total = sum(len(picker.under_way) for picker in self.pickers)
        assert [picker.used("total.max.workers.limit") for picker in self.pickers] == [total] * PICKERS
        assert [picker.exchange.counts["refused"] for picker in self.pickers] == [0] * PICKERS


TestQuotas = World.TestCase
TestQuotas.settings = settings(stateful_step_count=60)
