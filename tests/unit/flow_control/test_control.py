# SPDX-License-Identifier: Apache-2.0
"""Requests wait for room, go in turn, and are refused when they have waited too long or nothing more may wait."""

from dataclasses import replace

import pytest

from epp.admission.flow_control.guarded import guarded
from epp.admission.flow_control.settings import Limits, Outcome
from epp.framework import Headers, Request
from epp.framework.flow_control import Queued
from epp.framework.plugin import Guard, SchedulingObserver
from epp.framework.refusals import (
    EvictedError,
    QueueFullError,
    QueueFullNoEndpointsError,
    QueueTimeoutError,
    QueueTimeoutNoEndpointsError,
    ShuttingDownError,
    TargetMissedError,
)
from epp.plugins.flow_policies import (
    EdfOrdering,
    PriorityHoldback,
    PriorityHoldbackParameters,
    RoundRobinFairness,
    SloDeadlineOrdering,
    SoftReflectiveCeiling,
    StaticUsageLimit,
)
from tests.support.queued_requests import Front, Heard, Places, waiting


def test_request_goes_at_once_while_there_is_room_and_waits_then():
    front = Front(1, 1)
    first, second, third = (front.send() for _ in range(3))
    assert (first.place, second.place, third.place) == (0, 1, None)
    front.end(first)
    assert third.place == 0


def test_higher_priority_goes_first_and_nothing_overtakes_it():
    front = Front(1)
    running = front.send()
    low, high, middle = front.send(priority=-1), front.send(priority=9), front.send(priority=3)
    front.assert_order(running, (high, middle, low))


def test_flows_take_turns_and_a_flood_delays_nobody():
    front = Front(1, fairness=RoundRobinFairness())
    running = front.send()
    flood = [front.send("flood") for _ in range(50)]
    calm = [front.send("calm") for _ in range(3)]
    order = []
    for _ in range(6):
        front.end(running)
        running = next(each for each in (*flood, *calm) if each.place is not None and each not in order)
        order.append(running)
    assert [each.request.fairness_id for each in order] == ["flood", "calm"] * 3
    assert order[::2] == flood[:3]


def test_earliest_deadline_goes_first_whoever_came_first():
    front = Front(1, ordering=SloDeadlineOrdering())
    running = front.send()
    patient = front.send(headers=Headers([("x-llm-d-slo-ttft-ms", "9000")]))
    anybody = front.send()
    urgent = front.send(headers=Headers([("x-llm-d-slo-ttft-ms", "500")]))
    front.assert_order(running, (urgent, patient, anybody))


def test_earliest_end_of_patience_goes_first():
    assert EdfOrdering().key(Queued(Request("r"), 1, 0.0, deadline=7.0)) == 7.0


def test_request_that_waited_too_long_is_refused_and_told_when_to_come_back():
    front = Front(1, ttl=10.0)
    running = front.send()
    late = [front.send() for _ in range(4)]
    for _ in range(2):  # one goes in three seconds
        front.clock.advance(3.0)
        front.end(running)
        running = next(each for each in late if each.place is not None and each is not running)
    front.clock.advance(4.0)
    front.flow.dispatch()
    errors = [each.error for each in late[2:]]
    assert all(isinstance(error, QueueTimeoutError) for error in errors)
    assert [error.retry_after_seconds for error in errors] == [10, 5]  # a place in five seconds so far
    assert not waiting(*late)


def test_full_band_refuses_and_other_bands_do_not_care():
    front = Front(1, band=Limits(requests=2, size_bytes=100))
    front.send()
    front.send(size=60)
    with pytest.raises(QueueFullError) as refused:
        front.send(size=60)
    assert (refused.value.status, refused.value.reason) == (429, "rejected-saturated")
    front.send(size=40)
    with pytest.raises(QueueFullError):
        front.send(size=0)
    assert waiting(front.send(priority=1, size=60))


def test_tf_11_what_waits_at_lower_priority_makes_way_and_no_more_of_it_than_necessary():
    front = Front(1, limits=Limits(requests=4, size_bytes=100))
    front.send()
    low, newer, middle = (
        front.send(priority=-2, size=30),
        front.send(priority=-2, size=10),
        front.send(priority=-1, size=50),
    )
    high = front.send(priority=5, size=20)
    assert newer.error is not None
    assert isinstance(newer.error, EvictedError)
    assert newer.error.reason == "evicted-queue-pressure"
    assert newer.error.retry_after_seconds is not None
    assert waiting(low, middle, high) == [low, middle, high]
    with pytest.raises(QueueFullError):  # equal priority is never in the way
        front.send(priority=-2, size=30)
    with pytest.raises(QueueFullError):  # and nobody makes way for what has no room even then
        front.send(priority=5, size=81)
    assert waiting(low, middle, high) == [low, middle, high]


def test_empty_pool_is_a_waiting_room_with_a_patience_of_its_own():
    front = Front(0, ttl=10.0, no_endpoint_ttl=100.0)
    front.flow.pool_changed(has_endpoints=False)
    early = front.send()
    front.clock.advance(99.0)
    late = front.send()
    front.flow.dispatch()
    assert waiting(early, late) == [early, late]
    front.clock.advance(1.5)
    front.flow.dispatch()
    assert isinstance(early.error, QueueTimeoutNoEndpointsError)
    front.flow.pool_changed(has_endpoints=True)  # patience starts anew
    front.clock.advance(9.0)
    front.flow.dispatch()
    assert waiting(late)
    front.clock.advance(1.0)
    front.flow.dispatch()
    assert isinstance(late.error, QueueTimeoutError)


def test_full_queue_of_an_empty_pool_is_unavailable_rather_than_busy():
    front = Front(limits=Limits(requests=1))
    front.send()
    with pytest.raises(QueueFullNoEndpointsError) as refused:
        front.send()
    assert refused.value.status == 503


def test_request_that_needs_a_full_endpoint_is_in_nobody_s_way():
    front = Front(1, 1)
    holders = [front.send(), front.send()]
    picky = [front.send(f"p{number}", only=[0]) for number in range(40)]
    other = front.send("other")
    front.end(holders[1])
    for _ in range(5):
        front.flow.dispatch()
    assert other.place == 1
    front.end(holders[0])
    assert [each.place for each in picky].count(0) == 1


def test_client_that_leaves_is_out_of_the_queue_at_once():
    front = Front(1, observer=(heard := Heard()))
    running = front.send()
    gone, next_one = front.send(), front.send()
    front.flow.leave(gone)
    assert front.flow.queues.requests == 1
    front.end(running)
    assert (gone.place, next_one.place) == (None, 0)
    assert [outcome for _, outcome, _ in heard.outcomes] == [
        Outcome.DISPATCHED, Outcome.EVICTED_CONTEXT_CANCELLED, Outcome.DISPATCHED,
    ]  # fmt: skip


def test_end_of_the_picker_refuses_what_waits_and_what_would_have_to():
    front = Front(1)
    front.send()
    held = front.send()
    front.flow.stop()
    assert isinstance(held.error, ShuttingDownError)
    with pytest.raises(ShuttingDownError):
        front.send()


def test_other_settings_keep_what_waits_and_order_it_anew():
    front = Front(1)
    running = front.send()
    flood = [front.send("flood") for _ in range(3)]
    calm = front.send("calm")
    fair = Front(fairness=RoundRobinFairness()).settings.default_band
    front.flow.use(replace(front.settings, default_band=fair))
    front.end(running)
    front.end(flood[0])
    assert calm.place == 0
    assert waiting(*flood) == flood[1:]


def wants(milliseconds):
    return {"headers": Headers([("x-llm-d-slo-ttft-ms", str(milliseconds))])}


def leave_in_turn(front, requests, *, every):
    """Let all but the last of them have the only place and end, at a steady rate."""
    for each in requests[:-1]:
        front.clock.advance(every)
        front.end(each)


def test_request_whose_target_passes_while_it_waits_is_told_at_once():
    heard = Heard()
    front = Front(1, observer=heard)
    front.send()
    hasty, patient, anybody = front.send(**wants(2000)), front.send(**wants(9000)), front.send()
    assert front.flow.next_deadline() == 2.0
    front.clock.advance(1.9)
    front.flow.dispatch()
    assert waiting(hasty, patient, anybody) == [hasty, patient, anybody]
    front.clock.advance(0.1)
    front.flow.dispatch()
    assert isinstance(hasty.error, TargetMissedError)
    assert (hasty.error.status, hasty.error.reason) == (429, "rejected-ttl-expired")
    assert "first token within the requested time: it has waited 2.0 s" in hasty.error.message
    assert hasty.error.retry_after_seconds == 1
    assert waiting(hasty, patient, anybody) == [patient, anybody]
    assert heard.outcomes[-1] == (hasty.request.id, Outcome.EVICTED_TTL, 2.0)
    assert front.flow.next_deadline() == 9.0


def test_time_before_the_queue_counts_towards_the_target():
    front = Front(1)
    front.send()
    front.clock.advance(10.0)
    late = front.send(received_at=8.5, **wants(2000))  # 0.5 s are left
    front.clock.advance(0.5)
    front.flow.dispatch()
    assert isinstance(late.error, TargetMissedError)


def test_request_that_cannot_meet_its_target_is_refused_as_it_comes():
    front = Front(1)
    requests = [front.send() for _ in range(41)]
    leave_in_turn(front, requests[:21], every=0.5)  # 2 leave in a second, and 20 wait: 10 s
    now = front.clock.now()
    with pytest.raises(TargetMissedError, match=r"it would have to wait 10\.0 s") as refused:
        front.send(received_at=now, **wants(5000))
    assert refused.value.retry_after_seconds == 10
    assert front.send(received_at=now, **wants(15000)).error is None
    assert front.send(received_at=now).error is None
    assert front.send(received_at=now, priority=1, **wants(5000)).error is None


def test_flood_of_one_flow_does_not_refuse_another_where_they_take_turns():
    front = Front(1, fairness=RoundRobinFairness())
    requests = [front.send("flood") for _ in range(41)]
    leave_in_turn(front, requests[:21], every=0.5)
    now = front.clock.now()
    with pytest.raises(TargetMissedError):
        front.send("flood", received_at=now, **wants(5000))
    assert front.send("calm", received_at=now, **wants(5000)).error is None


def test_urgent_request_that_overtakes_is_not_refused_for_those_it_overtakes():
    front = Front(1, ordering=SloDeadlineOrdering())
    requests = [front.send() for _ in range(41)]
    leave_in_turn(front, requests[:21], every=0.5)
    assert front.send(received_at=front.clock.now(), **wants(1000)).error is None


def test_request_that_misses_its_target_in_front_of_an_empty_pool_is_told_of_that():
    front = Front(1)
    front.send()
    late = front.send(**wants(1000))
    front.flow.pool_changed(has_endpoints=False)
    front.clock.advance(1.0)
    front.flow.dispatch()
    assert isinstance(late.error, QueueTimeoutNoEndpointsError)


def test_targets_of_requests_that_went_or_left_are_forgotten():
    front = Front(1)
    running = front.send()
    first, second = front.send(**wants(1000)), front.send(**wants(1000))
    front.end(running)
    front.flow.leave(second)
    assert first.place == 0
    assert front.flow.next_deadline() is None
    front.clock.advance(5.0)
    front.flow.dispatch()
    assert first.error is second.error is None


class Counted(Places):
    """Counts how often it is asked how full the pool is."""

    asked = 0

    def saturation(self, candidates):
        self.asked += 1
        return super().saturation(candidates)


@pytest.mark.parametrize(
    ("limits", "asked"),
    [
        (StaticUsageLimit(), 0),
        (PriorityHoldback(PriorityHoldbackParameters(min_ceiling=0.5)), 0),
        (SoftReflectiveCeiling(), 1),
    ],
    ids=lambda each: type(each).__name__,
)
def test_only_ceilings_that_depend_on_the_pool_have_it_measured(limits, asked):
    detector = Counted(2, 2)
    settings = replace(Front(1).settings, detector=detector, usage_limits=limits)
    assert guarded(settings, Guard(SchedulingObserver())).ceiling(0, detector.candidates()) == 1.0
    assert detector.asked == asked
