# SPDX-License-Identifier: Apache-2.0
"""Whatever comes, goes, leaves and changes: nobody is lost, served twice or overtaken, and no place stays empty."""

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from epp.admission.flow_control.settings import BandSettings, Limits
from epp.framework.errors import RequestError
from epp.framework.refusals import QueueFullError
from epp.plugins.flow_policies import EdfOrdering, FcfsOrdering, GlobalStrictFairness, RoundRobinFairness
from tests.support.queued_requests import Front, Standing

PLACES = (1, 1, 1)
LIMITS = Limits(requests=12, size_bytes=60)
BAND = Limits(requests=8, size_bytes=50)


def flow_of(standing: Standing) -> tuple[str, int]:
    return standing.request.fairness_id, standing.request.priority


class FlowControlMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.front = Front(*PLACES)
        self.inside: list[Standing] = []
        """Those that wait or have a place."""
        self.patch = pytest.MonkeyPatch()

    @initialize(
        fair=st.booleans(), share=st.sampled_from([None, None, 0, 1, 2]), refused_at_once=st.sampled_from([1, 2, 32])
    )
    def begin(self, fair, share, refused_at_once):
        self.patch.setattr("epp.admission.flow_control.control._REFUSED", refused_at_once)
        fairness = RoundRobinFairness() if fair else GlobalStrictFairness()
        self.front = Front(*PLACES, band=BAND, limits=LIMITS, ttl=20.0, fairness=fairness)
        if share is not None:
            self.front.places.shares["a"] = share

    @rule(
        requests=st.lists(
            st.tuples(
                st.sampled_from("ab"),
                st.sampled_from([0, 0, 1, -1]),
                st.integers(0, 12),
                st.sampled_from([None, None, None, [0], [1, 2]]),
            ),
            min_size=1,
            max_size=6,
        )
    )
    def send(self, requests):
        for flow, priority, size, only in requests:
            before = self.waiting()
            queues = self.front.flow.queues
            has_surplus = not queues.limits.allow(queues.requests, queues.size_bytes)
            try:
                self.inside.append(self.front.send(flow, priority, size=size, only=only))
            except RequestError:
                assert before  # there is room for the first that waits
                assert all(each.error is None for each in before)
                self.longer_flows_were_in_nobodys_way(flow, priority, size)
            else:
                if not has_surplus:  # otherwise some give way to an earlier request
                    self.only_longer_flows_gave_way(before, self.inside[-1])

    @property
    def is_fair(self) -> bool:
        return isinstance(self.front.settings.default_band.fairness, RoundRobinFairness)

    def takes(self, flow: str, priority: int) -> tuple[int, int]:
        """Return the requests of a flow that wait, and their bytes."""
        found = [each.request for each in self.waiting() if each.request.fairness_id == flow]
        sizes = [each.size_bytes for each in found if each.priority == priority]
        return len(sizes), sum(sizes)

    def longer_flows_were_in_nobodys_way(self, flow: str, priority: int, size: int) -> None:
        """Check that a request was not refused for the sake of a flow that has more, where flows share."""
        band = [each.request.size_bytes for each in self.waiting() if each.request.priority == priority]
        everything = [each.request.size_bytes for each in self.waiting()]
        are_bytes_left = sum(band) + size <= BAND.size_bytes and sum(everything) + size <= LIMITS.size_bytes
        if self.is_fair and are_bytes_left:
            other = "b" if flow == "a" else "a"
            assert self.takes(other, priority)[0] - 1 < self.takes(flow, priority)[0] + 1

    def only_longer_flows_gave_way(self, before: list[Standing], newcomer: Standing) -> None:
        """Check which requests were refused as another one came."""
        request = newcomer.request
        for gone in (each for each in before if each.error is not None):
            assert gone.request.priority <= request.priority
            flow = gone.request.fairness_id, gone.request.priority
            if self.is_fair:
                last = max(self.inside.index(each) for each in before if flow_of(each) == flow)
                left = [self.inside.index(each) for each in self.waiting() if flow_of(each) == flow]
                assert not left or max(left) < last
            if gone.request.priority == request.priority:
                assert self.is_fair
                assert isinstance(gone.error, QueueFullError)
                theirs, own = self.takes(*flow), self.takes(request.fairness_id, request.priority)
                assert theirs[0] >= own[0] or theirs[1] >= own[1]

    @precondition(lambda self: any(each.place is not None for each in self.inside))
    @rule(data=st.data())
    def end(self, data):
        standing = data.draw(st.sampled_from([each for each in self.inside if each.place is not None]))
        self.inside.remove(standing)
        before = self.waiting()
        self.front.end(standing)
        strict = isinstance(self.front.settings.default_band.fairness, GlobalStrictFairness)
        if strict and not self.front.places.shares:
            self.nobody_was_overtaken(before)

    def nobody_was_overtaken(self, before: list[Standing]) -> None:
        """Check that none of those who could have gone came before one who did, both policies being strict."""
        anywhere = [each for each in before if each.only is None and each.error is None]
        left = [each for each in anywhere if each.place is None]
        for went in (each for each in anywhere if each.place is not None):
            assert all(each.request.priority <= went.request.priority for each in left)
            equals = [each for each in left if each.request.priority == went.request.priority]
            assert all(self.inside.index(went) < self.inside.index(each) for each in equals)

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def leave(self, data):
        standing = data.draw(st.sampled_from(self.waiting()))
        self.inside.remove(standing)
        self.front.flow.leave(standing)

    @rule(seconds=st.floats(0.0, 15.0))
    def pass_time(self, seconds):
        self.front.clock.advance(seconds)
        for _ in range(LIMITS.requests + 1):  # a round may refuse one alone of those that have waited for too long
            self.front.flow.dispatch()

    @rule(order=st.sampled_from([FcfsOrdering(), EdfOrdering()]), fair=st.booleans())
    def other_settings(self, order, fair):
        fairness = RoundRobinFairness() if fair else GlobalStrictFairness()
        band = BandSettings(BAND, 20.0, order, fairness)
        self.front.settings = replace(self.front.settings, default_band=band, negative_band=band)
        self.front.flow.use(self.front.settings)

    def waiting(self) -> list[Standing]:
        return [each for each in self.inside if each.place is None and each.error is None]

    @rule(share=st.integers(0, 2))
    def other_share(self, share):
        if self.front.places.shares:
            self.front.places.shares["a"] = share
            self.front.flow.resume("a")

    @invariant()
    def held_requests_are_counted(self):
        for band in self.front.flow.queues.bands.values():
            in_queues = [each for each in band.arrivals.values() if not each.is_set_aside]
            assert band.throttled_requests == sum(each.flow in band.throttled for each in in_queues)

    @invariant()
    def everybody_is_somewhere(self):
        self.inside = [each for each in self.inside if each.error is None]
        queues = self.front.flow.queues
        held = self.waiting()
        assert set(queues) == set(held)
        assert queues.requests == len(held)
        assert queues.size_bytes == sum(each.request.size_bytes for each in held)
        assert all(band.settings.limits.allow(len(band), band.size_bytes) for band in queues.bands.values())

    @invariant()
    def limits_hold_but_for_one_that_came_ahead_of_those_that_give_way(self):
        queues = self.front.flow.queues
        for _ in range(LIMITS.requests):
            if queues.limits.allow(queues.requests, queues.size_bytes):
                break
            lowest = min(each.request.priority for each in self.waiting())
            assert any(
                queues.limits.allow(queues.requests - 1, queues.size_bytes - each.request.size_bytes)
                for each in self.waiting()
                if each.request.priority > lowest
            )
            self.front.flow.dispatch()
        assert queues.limits.allow(queues.requests, queues.size_bytes)
        self.inside = [each for each in self.inside if each.error is None]

    @invariant()
    def no_place_is_taken_twice(self):
        taken = [each.place for each in self.inside if each.place is not None]
        assert [taken.count(slot) for slot in range(len(PLACES))] == self.front.places.taken
        assert all(count <= places for count, places in zip(self.front.places.taken, PLACES, strict=True))

    @invariant()
    def no_place_stays_empty_for_somebody_who_can_use_any(self):
        for _ in range(8):  # a round sets few aside
            self.front.flow.dispatch()
        free = any(taken < places for taken, places in zip(self.front.places.taken, PLACES, strict=True))
        assert not (free and any(each.only is None and each.blocked() is None for each in self.waiting()))

    def teardown(self):
        self.patch.undo()
        for each in [one for one in self.inside if one.place is not None]:
            self.inside.remove(each)
            self.front.end(each)
        self.front.flow.stop()
        assert self.front.flow.queues.requests == 0
        assert not list(self.front.flow.queues)


TestFlowControl = FlowControlMachine.TestCase
