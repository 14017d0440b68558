# SPDX-License-Identifier: Apache-2.0
"""Policies of eviction that raise or return nonsense: the request is spared, or ended as the usual order has it."""

import math

import pytest

from epp.admission.flow_control.guarded import GuardedEvictionFilter, GuardedEvictionOrder
from epp.framework import Parameters, Request
from epp.framework.flow_control import EvictionFilter, EvictionOrder, UnderWay
from epp.framework.plugin import Guard, PluginObserver


class Counted(PluginObserver):
    def __init__(self) -> None:
        self.failed: list[str] = []

    def plugin_failed(self, plugin: str, error: Exception, problem: str) -> None:
        self.failed.append(plugin)


class Anybody(EvictionFilter[Parameters]):
    plugin_type = "anybody"
    after_first_token = True

    def evictable(self, request):
        return True


class Broken(EvictionFilter[Parameters]):
    plugin_type = "broken"

    def evictable(self, request):
        raise RuntimeError


class Order(EvictionOrder[Parameters]):
    plugin_type = "order"

    def __init__(self, key) -> None:
        super().__init__()
        self._key = key

    def key(self, under_way):
        return self._key()


UNDER_WAY = UnderWay(Request("r", priority=-3), dispatched_at=7.0)


def test_filter_that_fails_spares_the_request():
    counted = Counted()
    assert not GuardedEvictionFilter(Broken(), Guard(counted)).evictable(UNDER_WAY.request)
    assert counted.failed == ["broken"]


@pytest.mark.parametrize("key", [lambda: 1 / 0, lambda: (math.nan,), lambda: ("a",), lambda: None])
def test_order_without_a_usable_key_goes_by_priority_and_ends_the_last_first(key):
    counted = Counted()
    assert GuardedEvictionOrder(Order(key), Guard(counted)).key(UNDER_WAY) == (-3, -7.0)
    assert counted.failed == ["order"]


def test_policies_that_work_are_asked_as_they_are():
    guard = Guard(Counted())
    filtering = GuardedEvictionFilter(Anybody(), guard)
    assert filtering.evictable(UNDER_WAY.request)
    assert filtering.after_first_token
    assert GuardedEvictionOrder(Order(lambda: (4.0, 2.0)), guard).key(UNDER_WAY) == (4.0, 2.0)
