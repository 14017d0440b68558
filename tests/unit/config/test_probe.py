# SPDX-License-Identifier: Apache-2.0
"""A plugin is tried before it serves: unusable results are refused, errors are warned of."""

import re
import sys
import threading
from functools import partial
from typing import ClassVar

import numpy as np
import pytest

from epp.config.probe import in_time
from epp.framework import Admitter, Aggregator, Destination, Filter, Picker, Producer, ProfilePicker, Scorer
from epp.framework.refusals import SaturatedError
from epp.framework.registry import Registry


class Slow(Scorer):
    """Takes as many milliseconds as `takes` says, call by call, on the clock that it is given."""

    plugin_type = "slow"
    takes: ClassVar[list[int]]

    def score(self, request, candidates):
        self.clock.advance(self.takes.pop(0) / 1000)
        return np.ones(len(candidates))


class Holds(Admitter):
    plugin_type = "holds"

    async def admit(self, request, candidates):
        raise AssertionError("a trial does not wait")


def raising(error):
    def raise_it(*_):
        raise error

    return raise_it


ANSWERS = [
    (Scorer, "score", "three-numbers", lambda request, candidates: np.array([0.1, 0.2, 0.3])),
    (Scorer, "score", "words", lambda request, candidates: ["good"] * len(candidates)),
    (Scorer, "score", "nans", lambda request, candidates: np.full(len(candidates), np.nan)),
    (Scorer, "score", "percent", lambda request, candidates: np.full(len(candidates), 50.0)),
    (Scorer, "score", "raises", raising(LookupError("no such column"))),
    (Filter, "filter", "plain-list", lambda request, candidates: [at == 0 for at in range(len(candidates))]),
    (Filter, "filter", "indexes", lambda request, candidates: np.flatnonzero(np.ones(len(candidates)))),
    (Picker, "pick", "outside", lambda request, candidates, totals, draw: np.array([len(candidates)])),
    (Admitter, "admit", "refuses", raising(SaturatedError())),
    (Producer, "produce", "fails", raising(ZeroDivisionError("1 / 0"))),
    (ProfilePicker, "pick_profiles", "picks-a-string", lambda request, profiles, results: "" if results else "default"),
    (ProfilePicker, "pick_profiles", "picks-unknown", lambda request, profiles, results: ["nope"]),
    (ProfilePicker, "pick_profiles", "touches-nothing", lambda request, profiles, results: results["default"].targets),
    (
        Aggregator,
        "aggregate",
        "undeclared",
        lambda _, results: Destination(results["default"], headers={"x-mine": "1"}),
    ),
    (Aggregator, "aggregate", "tuple", lambda _, results: results["default"].targets),
    (Aggregator, "aggregate", "careless", lambda _, results: Destination(results["default"].primary)),
]
"""Plugins of one method each: role, method, type and what the method returns."""


def plugin_class(role, method, kind, answer):
    return type(kind.title(), (role,), {"plugin_type": kind, method: lambda _, *given: answer(*given)})


class Hangs(Scorer):
    plugin_type = "hangs"
    end = threading.Event()

    def score(self, request, candidates):
        self.end.wait()
        return np.zeros(len(candidates))


@pytest.fixture
def registry():
    registry = Registry()
    for cls in (Slow, Holds, *(plugin_class(*row) for row in ANSWERS)):
        registry.register(cls)
    return registry


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("three-numbers", "returned float64 of shape (3,) instead of one score for each of 2 candidates"),
        ("words", "returned a value that is not an array of numbers: could not convert string to float: 'good'"),
        ("indexes", "returned int64 of shape (2,) instead of one bool for each of 2 candidates"),
        ("outside", "returned positions [2] among 2 candidates, counted from 0"),
    ],
)
def test_plugin_whose_result_no_request_could_use_is_refused(refused, registry, kind, problem):
    found = refused(f"plugins: [{{type: {kind}}}]", registry=registry)
    assert str(found[0]) == f"c.yaml:3:11: plugins[0]: plugin {kind!r} {problem}"


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("raises", r"LookupError: no such column \(.*test_probe\.py:\d+\)"),
        ("fails", r"ZeroDivisionError: 1 / 0 \(.*test_probe\.py:\d+\)"),
        ("nans", r"ValueError: returned \[nan, nan\]: NaN and infinity count as 0"),
        ("percent", r"ValueError: returned \[50\.0, 50\.0\]: values below 0 and above 1 count as these"),
    ],
)
def test_plugin_that_raises_is_warned_of_with_what_it_raised(warned, registry, kind, problem):
    found = [one for one in warned(f"plugins: [{{type: {kind}}}]", registry=registry) if "made-up" in one]
    start = f"c.yaml:3:11: plugins[0]: plugin {kind!r} failed on made-up endpoints: "
    assert re.fullmatch(re.escape(start) + problem, found[0])


@pytest.mark.parametrize("kind", ["plain-list", "refuses", "holds"])
def test_list_of_bools_refusals_and_holds_are_fine(warned, registry, kind):
    assert not any("made-up" in one for one in warned(f"plugins: [{{type: {kind}}}]", registry=registry))


@pytest.mark.parametrize(
    ("takes", "milliseconds"),
    [
        ([20] * 10, 20),
        ([90, 30, 25, 40, 50, *[1] * 5], 25),  # the least of five counts; the second pool is quick
        ([2000, 1500, 1, 1], 1500),  # nobody waits for more of these
        ([3000, 1, 1], None),  # the first call loads something
        ([15, 15, 15, 15, 9, 1], None),  # the machine was busy
        ([1] * 2, None),
    ],
)
def test_plugin_that_no_request_can_wait_for_is_warned_of(warned, registry, takes, milliseconds):
    Slow.takes = takes
    found = [one for one in warned("plugins: [{type: slow}]", registry=registry) if "request waits" in one]
    assert len(found) == (milliseconds is not None)
    assert all(f"plugin 'slow' takes {milliseconds} ms for a few made-up endpoints" in one for one in found)


def test_plugin_that_never_returns_is_refused_by_name(refused, registry, monkeypatch):
    monkeypatch.setattr(sys.modules["epp.config.assemble"], "in_time", partial(in_time, limit_seconds=0.01))
    registry.register(Hangs)
    (found,) = refused("plugins: [{type: hangs}]", registry=registry)
    Hangs.end.set()
    assert str(found).startswith("c.yaml:3:11: plugins[0]: plugin 'hangs' did not return within 5 s")


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("picks-a-string", "returned 'default' instead of a list of profiles"),
        ("undeclared", "headers ['x-mine'] are dropped: add them to `sets_headers` of Undeclared"),
        ("tuple", "returned tuple instead of a Destination"),
    ],
)
def test_profile_picker_or_aggregator_of_unusable_results_is_refused(refused, registry, kind, problem):
    (found,) = refused(f"plugins: [{{type: {kind}}}]", registry=registry)
    assert str(found) == f"c.yaml:3:11: plugins[0]: plugin {kind!r} {problem}"


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("picks-unknown", "profile picker 'picks-unknown' chose ['nope'], which are not among the profiles"),
        ("touches-nothing", "KeyError: 'default'"),
        ("careless", "AttributeError: 'ProfileResult' object has no attribute 'primary'"),
    ],
)
def test_profile_picker_or_aggregator_that_raises_is_warned_of(warned, registry, kind, problem):
    found = [one for one in warned(f"plugins: [{{type: {kind}}}]", registry=registry) if "made-up" in one]
    assert problem in found[0]
