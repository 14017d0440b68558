# SPDX-License-Identifier: Apache-2.0
"""Whatever comes and goes: no request ends for one of equal or lower priority, twice, or with more than are needed."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from epp.admission.flow_control.in_flight_eviction import CONFIRMATION_SECONDS, MOST_AT_ONCE
from tests.support.evictable_requests import GRACE, Bench


class EvictionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(2, 1, 3)
        self.told: list = []

    @rule(priority=st.integers(-3, 3), only=st.sampled_from([None, None, [0], [1, 2]]))
    def send(self, priority, only):
        self.bench.send(priority, only=only)

    @precondition(lambda self: any(each.place is not None for each in self.bench.inside))
    @rule(data=st.data(), told=st.booleans())
    def end(self, data, told):
        placed = [each for each in self.bench.inside if each.place is not None]
        of_those = [each for each in placed if each.eviction is not None] if told else placed
        self.bench.end(data.draw(st.sampled_from(of_those or placed)))

    @precondition(lambda self: any(each.place is not None for each in self.bench.inside))
    @rule(data=st.data())
    def answer(self, data):
        placed = [each for each in self.bench.inside if each.place is not None]
        data.draw(st.sampled_from(placed)).is_answered = True

    @precondition(lambda self: any(each.place is None for each in self.bench.inside))
    @rule(data=st.data())
    def leave(self, data):
        waiting = data.draw(st.sampled_from([each for each in self.bench.inside if each.place is None]))
        self.bench.inside.remove(waiting)
        self.bench.flow.leave(waiting)

    @rule(seconds=st.sampled_from([0.0, GRACE / 2, GRACE, CONFIRMATION_SECONDS]))
    def pass_time(self, seconds):
        self.bench.pass_time(seconds)

    @invariant()
    def those_told_since_were_lower_than_one_that_waits_and_could_go_there(self):
        """No request is told twice: `Working.evict` checks that."""
        new = [each for each in self.bench.told_to_end() if each not in self.told]
        self.told = [each for each in self.told if each in self.bench.inside] + new
        waiting = [each for each in self.bench.inside if each.place is None]
        for one in new:
            assert one.request.priority < 0
            assert any(each.request.priority > one.request.priority and (each.fits(one.place)) for each in waiting)

    @invariant()
    def one_decision_takes_no_more_than_are_needed(self):
        for target, issued, _ in self.bench.heard.decisions:
            assert issued <= min(target, MOST_AT_ONCE)
            assert target == 1  # no endpoint is ever above its ceiling here

    @invariant()
    def one_at_a_time_is_waited_for(self):
        assert self.bench.evictions.pending <= 1

    @invariant()
    def nothing_is_remembered_of_requests_that_have_ended(self):
        inside = {each for each in self.bench.inside if each.place is not None}
        assert self.bench.evictions.known <= inside

    def teardown(self):
        for each in [one for one in self.bench.inside if one.place is None]:
            self.bench.inside.remove(each)
            self.bench.flow.leave(each)
        for each in list(self.bench.inside):
            self.bench.end(each)
        evictions = self.bench.evictions
        assert not evictions.known
        assert not evictions.may_decide(9)
        assert not evictions.pending


TestEviction = EvictionMachine.TestCase
