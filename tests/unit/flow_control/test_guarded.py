# SPDX-License-Identifier: Apache-2.0
"""Policies of flow control that raise or return nonsense: each time is counted, and the queue goes on.

A request is spared by a filter of evictions that fails, and ended by the usual order where the order fails.
"""

from collections.abc import Callable
from dataclasses import replace
from math import nan
from typing import Any

import numpy as np
import pytest

from epp.admission.flow_control.guarded import (
    GuardedDetector,
    GuardedEvictionFilter,
    GuardedEvictionOrder,
    GuardedFairness,
    GuardedOrdering,
    GuardedUsageLimits,
    guarded,
)
from epp.admission.flow_control.settings import Limits as WaitingLimits
from epp.framework import Parameters, Request
from epp.framework.flow_control import (
    EvictionFilter,
    EvictionOrder,
    FairnessPolicy,
    FlowOrder,
    HeadOrder,
    OrderingPolicy,
    SaturationDetector,
    UnderWay,
    UsageLimitPolicy,
)
from epp.framework.plugin import Guard, PluginObserver
from epp.plugins.flow_policies import RoundRobinFairness
from tests.support.queued_requests import Front, waiting


class Counted(PluginObserver):
    def __init__(self) -> None:
        self.failed: list[str] = []

    def plugin_failed(self, plugin: str, error: Exception, problem: str) -> None:
        self.failed.append(plugin)


def raising(*_: object) -> Any:
    raise RuntimeError("broken")


def returning(value: object) -> Callable[..., Any]:
    return lambda *_: value


class Detector(SaturationDetector[Parameters]):
    plugin_type = "detector"

    def fullness(self, candidates):
        raise NotImplementedError


class Limits(UsageLimitPolicy[Parameters]):
    plugin_type = "limits"

    def ceilings(self, priorities, saturation):
        raise NotImplementedError


class Ordering(OrderingPolicy[Parameters]):
    plugin_type = "ordering"

    def key(self, queued):
        raise NotImplementedError


class Fairness(FairnessPolicy[Parameters]):
    plugin_type = "fairness"

    def order(self):
        raise NotImplementedError


def front_of(*places: int, **policies: Any) -> tuple[Front, Counted]:
    """Return a front with these policies behind a guard."""
    front, counted = Front(*places), Counted()
    of_band = {name: policies.pop(name) for name in ("ordering", "fairness") if name in policies}
    band = replace(front.settings.default_band, **of_band)
    settings = replace(front.settings, default_band=band, negative_band=band, bands={3: band}, **policies)
    front.flow.use(guarded(settings, Guard(counted)))
    return front, counted


@pytest.mark.parametrize(
    "broken",
    [
        raising,
        returning(None),
        returning(np.array([1.0])),
        returning(np.array([[1.0, 1.0]])),
        returning(np.array([np.nan, 1.0])),
        returning("full"),
    ],
)
def test_broken_detector_means_room_everywhere(broken, monkeypatch):
    monkeypatch.setattr(Detector, "fullness", broken)
    front, counted = front_of(1, 1, detector=Detector())
    sent = [front.send() for _ in range(5)]
    assert not waiting(*sent)
    assert len(counted.failed) >= 5
    assert set(counted.failed) == {"detector"}


@pytest.mark.parametrize(
    "broken", [raising, returning(None), returning([0.5]), returning([float("nan")] * 2), returning(["x", "y"])]
)
def test_broken_usage_limits_leave_endpoints_that_are_not_full(broken, monkeypatch):
    monkeypatch.setattr(Limits, "ceilings", broken)
    front, counted = front_of(1, 1, usage_limits=Limits())
    sent = [front.send() for _ in range(3)]
    assert waiting(*sent) == [sent[2]]
    front.end(sent[0])
    assert sent[2].place == 0
    assert set(counted.failed) == {"limits"}


@pytest.mark.parametrize("broken", [raising, returning(None), returning(float("nan")), returning([1])])
def test_requests_without_a_usable_key_go_in_the_order_of_arrival(broken, monkeypatch):
    monkeypatch.setattr(Ordering, "key", broken)
    front, counted = front_of(1, ordering=Ordering())
    running = front.send()
    queued = []
    for _ in range(3):
        front.clock.advance(1.0)
        queued.append(front.send())
    front.assert_order(running, queued)
    assert counted.failed == ["ordering"] * 3


@pytest.mark.parametrize("broken", [raising, returning(None), returning(object())])
def test_without_a_usable_order_flows_go_in_the_order_of_arrival(broken, monkeypatch):
    monkeypatch.setattr(Fairness, "order", broken)
    front, counted = front_of(1, fairness=Fairness())
    running = front.send()
    queued = [front.send(flow) for flow in "aaba"]
    front.assert_order(running, queued)
    assert counted.failed == ["fairness"]


@pytest.mark.parametrize("method", ["head", "empty", "first", "dispatched"])
def test_order_of_flows_that_breaks_halfway_goes_on_in_the_order_of_arrival(method, monkeypatch):
    policy = RoundRobinFairness()
    front, counted = front_of(1, fairness=policy)
    running = front.send()
    queued = [front.send(flow) for flow in ("a", "a", "b", "c")]
    front.end(running)
    assert queued[0].place == 0
    order = type(policy.order())
    monkeypatch.setattr(order, method, raising)
    running = queued[0]
    queued.append(front.send("new"))  # a flow that the policy does not know, where it is `head` that raises
    rest = queued[1:]
    for _ in rest:
        front.end(running)
        running = next(each for each in rest if each.place is not None and each is not running)
        rest = [each for each in rest if each is not running]
    assert not rest
    assert counted.failed == [policy.name]


def test_order_that_names_a_flow_of_which_nothing_waits_is_replaced(monkeypatch):
    policy = RoundRobinFairness()
    front, counted = front_of(1, fairness=policy)
    running = front.send()
    queued = [front.send(flow) for flow in "ab"]
    monkeypatch.setattr(type(policy.order()), "first", returning("nobody"))
    front.assert_order(running, queued)
    assert counted.failed == [policy.name]


def test_reload_that_changes_no_policy_queues_nothing_anew():
    class Counting(OrderingPolicy[Parameters]):
        plugin_type = "counting"
        keys = 0

        def key(self, queued):
            self.keys += 1
            return queued.number

    ordering, fairness = Counting(), RoundRobinFairness()
    front, counted = front_of(1, ordering=ordering, fairness=fairness)
    running, *queued = [front.send(flow) for flow in "aaab"]
    begun = ordering.keys
    for limit in (2, 9):  # each time behind a guard of its own
        limits = WaitingLimits(requests=limit)
        band = replace(front.settings.default_band, limits=limits, ordering=ordering, fairness=fairness)
        front.flow.use(guarded(replace(front.settings, default_band=band), Guard(counted)))
        assert front.flow.queues.settings(0).limits.requests == limit
    assert ordering.keys == begun
    front.end(running)
    assert waiting(*queued) == queued[1:]
    other = replace(front.settings, default_band=replace(band, ordering=Counting()))
    front.flow.use(guarded(other, Guard(counted)))
    assert waiting(*queued) == queued[1:]
    assert other.default_band.ordering.keys == len(queued) - 1


@pytest.mark.parametrize(
    ("role", "wrapper"),
    [
        (SaturationDetector, GuardedDetector),
        (UsageLimitPolicy, GuardedUsageLimits),
        (OrderingPolicy, GuardedOrdering),
        (FairnessPolicy, GuardedFairness),
        (FlowOrder, None),
    ],
)
def test_guard_knows_all_methods_of_a_role(role: type, wrapper: type | None):
    methods = {name for name, value in vars(role).items() if callable(value) and not name.startswith("_")}
    methods.discard("rehearse")  # trials are without a guard
    if wrapper is None:  # that of a policy's order is made by the policy
        wrapper = type(GuardedFairness(RoundRobinFairness(), Guard(Counted())).order())
    assert methods
    assert methods <= vars(wrapper).keys()


class Anybody(EvictionFilter[Parameters]):
    plugin_type = "anybody"
    after_first_token = True

    def evictable(self, request):
        return True


class Order(EvictionOrder[Parameters]):
    plugin_type = "order"

    def __init__(self, key) -> None:
        super().__init__()
        self._key = key

    def key(self, under_way):
        return self._key()


UNDER_WAY = UnderWay(Request("r", priority=-3), dispatched_at=7.0)


def test_filter_of_evictions_that_fails_spares_the_request(monkeypatch):
    counted = Counted()
    guarded_filter = GuardedEvictionFilter(Anybody(), Guard(counted))
    assert guarded_filter.evictable(UNDER_WAY.request)
    assert guarded_filter.after_first_token
    monkeypatch.setattr(Anybody, "evictable", raising)
    assert not guarded_filter.evictable(UNDER_WAY.request)
    assert counted.failed == ["anybody"]


@pytest.mark.parametrize("key", [lambda: 1 / 0, lambda: (nan,), lambda: ("a",), lambda: None])
def test_order_of_evictions_without_a_usable_key_goes_by_priority_and_ends_the_last_first(key):
    counted = Counted()
    assert GuardedEvictionOrder(Order(lambda: (4.0, 2.0)), Guard(counted)).key(UNDER_WAY) == (4.0, 2.0)
    assert GuardedEvictionOrder(Order(key), Guard(counted)).key(UNDER_WAY) == (-3, -7.0)
    assert counted.failed == ["order"]


def test_of_thousands_of_flows_some_are_ordered_anew_each_time(monkeypatch):
    policy = RoundRobinFairness()
    front, counted = front_of(1, fairness=policy)
    running = front.send()
    queued = [front.send(f"flow-{number}") for number in range(300)]
    monkeypatch.setattr(type(policy.order()), "first", raising)
    ordered, head = [], HeadOrder.head

    def counted_head(order, flow, *given):
        ordered.append(flow)
        head(order, flow, *given)

    monkeypatch.setattr(HeadOrder, "head", counted_head)
    gone = queued.pop(0)
    front.flow.leave(gone)
    for expected in queued:
        before = len(ordered)
        front.end(running)
        assert len(ordered) - before <= 200  # it looks a few times
        assert expected.place == 0
        running = expected
    assert sorted(ordered) == sorted(each.request.fairness_id for each in queued)
    assert counted.failed == [policy.name]
