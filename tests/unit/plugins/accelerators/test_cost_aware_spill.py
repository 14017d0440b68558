# SPDX-License-Identifier: Apache-2.0
from math import inf, nan

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Request
from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag, Cost
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates
from epp.plugins.placement import CostAwareSpill
from tests.support.plugins import built


def gpu(model, price=None, count=1, **cost):
    return AcceleratorTag(kind=AcceleratorKind.GPU, model=model, count=count, cost=Cost(per_hour=price, **cost))


L4, A100, H100 = gpu("l4", 0.8), gpu("a100", 2.0), gpu("h100", 4.0)


def build(**parameters):
    return built(CostAwareSpill, parameters)


def opened(plugin, tags, **columns):
    return plugin.filter(Request("r"), candidates(records={ACCELERATOR: tags}, **columns)).tolist()


UNPRICED, TWO_L4 = gpu("mystery"), gpu("l4", 0.8, count=2)  # $1.60 for both
SPOT = gpu("h100", 4.0, spot_per_hour=0.5, spot=True)
CLASSES = [gpu("a100", 2.0), gpu("a100", 8.0), gpu("h100", 4.0)]


@pytest.mark.parametrize(
    ("tags", "waiting", "parameters", "expected"),
    [
        # the cheapest while it has room: full at 5 waiting, and (4 + 5) / 2 / 5 = 0.9 < 1
        ([H100, L4, A100, L4], [0, 4, 0, 5], {}, [False, True, False, True]),
        # the next price when the cheaper ones are full, and all where all are
        ([H100, L4, A100], [0, 5, 0], {}, [False, True, True]),
        ([H100, L4, A100], [0, 5, 7], {}, [True, True, True]),
        ([H100, L4, A100], [9, 9, 9], {}, [True, True, True]),
        # the price is that of the whole endpoint
        ([TWO_L4, L4, gpu("a10", 1.6)], [0, 5, 0], {}, [True, True, True]),
        ([TWO_L4, L4, A100], [0, 5, 0], {}, [True, True, False]),
        # the spot price counts on spot nodes
        ([SPOT, L4], [0, 0], {}, [True, False]),
        ([SPOT, L4], [0, 0], {"spotPreference": "never"}, [False, True]),
        # endpoints without a price come last; without any price, all are kept
        ([UNPRICED, L4], [0, 0], {}, [False, True]),
        ([UNPRICED, L4], [0, 5], {}, [True, True]),
        ([gpu("a"), gpu("b")], [0, 9], {}, [True, True]),
        # an endpoint without metrics neither fills nor empties a group
        ([L4, L4, H100], [5, nan, 0], {}, [True, True, True]),
        ([L4, L4, H100], [4, nan, 0], {}, [True, True, False]),
        ([L4, H100], [nan, 0], {}, [True, False]),
        # groups can be classes, in the order of their cheapest endpoint
        (CLASSES, [0, 0, 0], {"groupBy": "class"}, [True, True, False]),
        (CLASSES, [0, 0, 0], {"groupBy": "price"}, [True, False, False]),
    ],
)
def test_het_1_cheapest_group_with_room_and_all_cheaper_ones_are_open(tags, waiting, parameters, expected):
    assert opened(build(**parameters), tags, waiting=waiting) == expected


@pytest.mark.parametrize(
    ("load", "next_one"),
    [
        ({"waiting": [0, 0], "kv_usage": [0.79, 0]}, False),
        ({"waiting": [0, 0], "kv_usage": [0.80, 0]}, True),
        ({"in_flight": [9, 0]}, False),
        ({"in_flight": [10, 0]}, True),
        ({"running": [8, 0], "waiting": [2, 0]}, True),
    ],
)
def test_het_1_the_fullest_of_queue_cache_and_concurrency_counts(load, next_one):
    assert opened(build(maxConcurrency=10), [L4, H100], **load) == [True, next_one]


def test_het_1_closes_only_once_the_saturation_is_below_the_bound_by_the_hysteresis():
    plugin = build(queueThreshold=10, hysteresis=0.2)  # opens at 10 waiting, closes below 8
    seen = [opened(plugin, [L4, H100], waiting=[waiting, 0]) for waiting in (9, 10, 9, 8, 7, 9)]
    assert [both for _, both in seen] == [False, True, True, True, False, False]
    assert all(cheap for cheap, _ in seen)


LIMIT_OF_MODEL, LIMIT_OF_CLASS = {"l4": {"maxConcurrency": 2}}, {"nvidia-l4-24gb": {"maxConcurrency": 9}}


@pytest.mark.parametrize(("limits", "next_one"), [(LIMIT_OF_MODEL, True), (LIMIT_OF_MODEL | LIMIT_OF_CLASS, False)])
def test_gie_14_limits_of_a_model_hold_where_its_class_has_none(limits, next_one):
    classed = msgspec.structs.replace(L4, classes=("nvidia-l4-24gb",))
    assert opened(build(limits=limits), [classed, H100], in_flight=[2, 0]) == [True, next_one]


@pytest.mark.parametrize(
    ("cheap", "full_at"), [(gpu("h100", 0.5), 40), (L4, 8), (gpu("t4", 0.3), 5)], ids=["h100", "l4", "as all others"]
)
def test_gie_14_defect_24_each_class_is_full_at_its_own_limits(cheap, full_at):
    plugin = build(limits={"H100": {"queueThreshold": 40}, "L4": {"queueThreshold": 8}})
    assert opened(plugin, [cheap, A100], waiting=[full_at - 1, 0]) == [True, False]
    assert opened(plugin, [cheap, A100], waiting=[full_at, 0]) == [True, True]


def test_gie_14_each_class_has_its_own_bound():
    plugin = build(limits={"l4": {"bound": 0.6, "kvThreshold": 1.0, "maxConcurrency": 10}})
    assert opened(plugin, [L4, H100], waiting=[2, 0], kv_usage=[0.5, 0], in_flight=[5, 0]) == [True, False]
    assert opened(plugin, [L4, H100], waiting=[2, 0], kv_usage=[0.6, 0], in_flight=[5, 0]) == [True, True]


def test_het_1_pools_of_other_groups_have_states_of_their_own():
    plugin = build()
    assert opened(plugin, [L4, H100], waiting=[5, 0]) == [True, True]
    assert opened(plugin, [A100, H100], waiting=[4.9, 0]) == [True, False]
    assert opened(plugin, [L4, H100], waiting=[4.9, 0]) == [True, True]


@given(
    st.lists(st.sampled_from([L4, A100, H100, gpu("none")]), min_size=1, max_size=8),
    st.lists(st.lists(st.floats(0, 12) | st.just(nan), min_size=8, max_size=8), min_size=1, max_size=6),
)
def test_het_1_at_least_one_is_kept_and_no_cheaper_group_is_skipped(tags, loads):
    plugin = build()
    prices = np.array([inf if (price := tag.cost_per_hour()) is None else price for tag in tags])
    for load in loads:
        mask = np.array(opened(plugin, tags, waiting=load[: len(tags)]))
        assert mask.any()
        assert mask.all() or prices[mask].max() < prices[~mask].min()
