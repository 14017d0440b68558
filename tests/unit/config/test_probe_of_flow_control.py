# SPDX-License-Identifier: Apache-2.0
"""Plugins of flow control are tried before they serve: undeclared reads and unusable results are refused."""

from collections import Counter
from itertools import count

import numpy as np
import pytest

from epp.framework.flow_control import (
    EvictionFilter,
    EvictionOrder,
    FairnessPolicy,
    FlowOrder,
    OrderingPolicy,
    SaturationDetector,
    UsageLimitPolicy,
)
from epp.framework.registry import Registry
from epp.framework.request import PROMPT_TOKENS
from epp.framework.snapshot import WAITING

NUMBER = count()


def plugin(role, reads=(), **methods):
    """Return a plugin class of a role whose methods return these values, or do what these functions do."""
    made = {
        name: value if callable(value) else (lambda self, *_, found=value: found) for name, value in methods.items()
    }
    return type("Mine", (role,), {"plugin_type": "mine", "__module__": f"mine{next(NUMBER)}", "reads": reads, **made})


class Turns(FlowOrder):
    """Counts turns, and chooses the flow that it is given, or the first of all."""

    def __init__(self, chosen=None):
        self.chosen, self.flows, self.turns = chosen, {}, Counter()

    def head(self, flow, key, queued):
        self.flows[flow] = queued

    def empty(self, flow):
        del self.flows[flow]

    def first(self):
        return self.chosen or min(self.flows)

    def dispatched(self, flow):
        self.turns[flow] += 1


def waiting(_, candidates):
    return np.nan_to_num(candidates.values(WAITING))


DETECTOR, LIMITS, ORDERING = SaturationDetector, UsageLimitPolicy, OrderingPolicy
MINE = "plugins: [{type: mine}]"


def registered(cls):
    registry = Registry()
    registry.register(cls)
    return registry


@pytest.mark.parametrize(
    ("cls", "problem"),
    [
        (plugin(DETECTOR, fullness=0.5), "returned float64 of shape () instead of one fullness for each of 2 cand"),
        (plugin(DETECTOR, fullness=lambda self, pool: ["full"] * len(pool)), "returned a value that is not an array"),
        (plugin(DETECTOR, fullness=lambda self, pool: np.full(len(pool), np.nan)), "returned NaN for an endpoint"),
        (plugin(DETECTOR, fullness=lambda _, pool: np.ones(len(pool)), saturation=None), "returned NoneType instead"),
        (plugin(LIMITS, ceilings=[]), "returned 0 ceilings for 1 priorities"),
        (plugin(LIMITS, ceilings=[0.9]), "returned 1 ceilings for 3 priorities"),
        (plugin(LIMITS, ceilings=0.9), "returned float instead of numbers"),
        (plugin(LIMITS, ceilings=lambda self, each, _: ["1"] * len(each)), "returned str instead of a num"),
        (plugin(ORDERING, key=None), "returned NoneType instead of a number"),
        (plugin(ORDERING, key=float("nan")), "returned NaN instead of a number"),
        (plugin(FairnessPolicy, order="turns"), "returned str instead of a FlowOrder"),
        (plugin(FairnessPolicy, order=lambda self: Turns("nobody")), "chose flow 'nobody', which is empty"),
        (plugin(FairnessPolicy, order=lambda self: Turns("probe-1")), "chose flow 'probe-1', which is empty"),
        (plugin(EvictionFilter, evictable=None), "returned NoneType instead of true or false"),
        (plugin(EvictionOrder, key=1.0), "returned float instead of numbers"),
        (plugin(EvictionOrder, key=(1.0, "a")), "returned str instead of a number"),
    ],
)
def test_policy_whose_result_no_request_could_use_is_refused(refused, cls, problem):
    found = refused(MINE, registry=registered(cls))
    assert str(found[0]).startswith(f"c.yaml:3:11: plugins[0]: plugin 'mine' {problem}")


@pytest.mark.parametrize(
    ("cls", "datum"),
    [
        (plugin(DETECTOR, fullness=waiting), "waiting"),
        (plugin(ORDERING, key=lambda self, queued: queued.request.get(PROMPT_TOKENS).count), "prompt-tokens"),
        (plugin(EvictionFilter, evictable=lambda self, request: request.get(PROMPT_TOKENS) is None), "prompt-tokens"),
    ],
)
def test_policy_that_reads_what_it_does_not_declare_is_refused(refused, cls, datum):
    assert str(refused(MINE, registry=registered(cls))[0]) == (
        f"c.yaml:3:11: plugins[0]: plugin 'mine' reads {datum!r} without declaring it: add it to `reads` or `may_read` "
        "of Mine"
    )


@pytest.mark.parametrize(
    "cls",
    [
        plugin(DETECTOR, reads=(WAITING,), fullness=waiting),
        plugin(LIMITS, ceilings=lambda self, each, _: np.ones(len(each))),
        plugin(ORDERING, key=np.float32(3)),
        plugin(FairnessPolicy, order=lambda self: Turns()),
        plugin(EvictionFilter, evictable=np.True_),
        plugin(EvictionOrder, key=(1, 2.5)),
    ],
)
def test_policies_that_serve_pass(warned, cls):
    assert not any("made-up" in one for one in warned(MINE, registry=registered(cls)))


def test_policy_that_raises_is_warned_of(warned):
    failing = plugin(ORDERING, key=lambda self, queued: 1 / 0)
    (found,) = [one for one in warned(MINE, registry=registered(failing)) if "made-up" in one]
    assert "plugin 'mine' failed on made-up endpoints: ZeroDivisionError" in found
