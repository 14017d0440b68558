# SPDX-License-Identifier: Apache-2.0
import math

import msgspec
import numpy as np
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


def test_het_1_stays_on_the_cheapest_while_it_has_room():
    # full at 5 waiting: (4 + 5) / 2 / 5 = 0.9 < 1
    assert opened(build(), [H100, L4, A100, L4], waiting=[0, 4, 0, 5]) == [False, True, False, True]


def test_het_1_opens_the_next_price_step_when_the_cheaper_one_is_full():
    assert opened(build(), [H100, L4, A100], waiting=[0, 5, 0]) == [False, True, True]
    assert opened(build(), [H100, L4, A100], waiting=[0, 5, 7]) == [True, True, True]


def test_het_1_all_are_open_where_all_are_full():
    assert opened(build(), [H100, L4, A100], waiting=[9, 9, 9]) == [True, True, True]


def test_het_1_closes_only_once_the_saturation_is_below_the_bound_by_the_hysteresis():
    plugin = build(queueThreshold=10, hysteresis=0.2)  # opens at 10 waiting, closes below 8
    seen = [opened(plugin, [L4, H100], waiting=[waiting, 0]) for waiting in (9, 10, 9, 8, 7, 9)]
    assert [both for _, both in seen] == [False, True, True, True, False, False]
    assert all(cheap for cheap, _ in seen)


def test_het_1_the_fullest_of_queue_cache_and_concurrency_counts():
    fleet, plugin = [L4, H100], build(maxConcurrency=10)
    assert opened(plugin, fleet, waiting=[0, 0], kv_usage=[0.79, 0]) == [True, False]
    assert opened(plugin, fleet, waiting=[0, 0], kv_usage=[0.80, 0]) == [True, True]
    assert opened(build(maxConcurrency=10), fleet, in_flight=[9, 0]) == [True, False]
    assert opened(build(maxConcurrency=10), fleet, in_flight=[10, 0]) == [True, True]
    assert opened(build(maxConcurrency=10), fleet, running=[8, 0], waiting=[2, 0]) == [True, True]


def test_het_1_the_price_is_that_of_the_whole_endpoint():
    two_l4 = gpu("l4", 0.8, count=2)  # $1.60
    assert opened(build(), [two_l4, L4, gpu("a10", 1.6)], waiting=[0, 5, 0]) == [True, True, True]
    assert opened(build(), [two_l4, L4, A100], waiting=[0, 5, 0]) == [True, True, False]


def test_het_1_the_spot_price_counts_on_spot_nodes():
    spot = gpu("h100", 4.0, spot_per_hour=0.5, spot=True)
    assert opened(build(), [spot, L4], waiting=[0, 0]) == [True, False]
    assert opened(build(spotPreference="never"), [spot, L4], waiting=[0, 0]) == [False, True]


def test_het_1_endpoints_without_a_price_come_last():
    unpriced = gpu("mystery")
    assert opened(build(), [unpriced, L4], waiting=[0, 0]) == [False, True]
    assert opened(build(), [unpriced, L4], waiting=[0, 5]) == [True, True]


def test_het_1_without_any_price_all_are_kept():
    assert opened(build(), [gpu("a"), gpu("b")], waiting=[0, 9]) == [True, True]


def test_het_1_endpoint_without_metrics_neither_fills_nor_empties_a_group():
    unknown = math.nan
    assert opened(build(), [L4, L4, H100], waiting=[5, unknown, 0]) == [True, True, True]
    assert opened(build(), [L4, L4, H100], waiting=[4, unknown, 0]) == [True, True, False]
    assert opened(build(), [L4, H100], waiting=[unknown, 0]) == [True, False]


def test_het_1_groups_can_be_classes_in_the_order_of_their_cheapest_endpoint():
    fleet = [gpu("a100", 2.0), gpu("a100", 8.0), gpu("h100", 4.0)]
    assert opened(build(groupBy="class"), fleet, waiting=[0, 0, 0]) == [True, True, False]
    assert opened(build(groupBy="price"), fleet, waiting=[0, 0, 0]) == [True, False, False]


def test_gie_14_limits_of_a_model_hold_where_its_class_has_none():
    classed = msgspec.structs.replace(L4, classes=("nvidia-l4-24gb",))
    for limits, expected in (
        ({"l4": {"maxConcurrency": 2}}, [True, True]),
        ({"l4": {"maxConcurrency": 2}, "nvidia-l4-24gb": {"maxConcurrency": 9}}, [True, False]),
    ):
        assert opened(build(limits=limits), [classed, H100], in_flight=[2, 0]) == expected


def test_gie_14_defect_24_each_class_is_full_at_its_own_limits():
    plugin = build(limits={"H100": {"queueThreshold": 40}, "L4": {"queueThreshold": 8}})
    cheap_h100 = gpu("h100", 0.5)
    assert opened(plugin, [cheap_h100, A100], waiting=[39, 0]) == [True, False]
    assert opened(plugin, [cheap_h100, A100], waiting=[40, 0]) == [True, True]
    assert opened(plugin, [L4, A100], waiting=[7, 0]) == [True, False]
    assert opened(plugin, [L4, A100], waiting=[8, 0]) == [True, True]
    assert opened(plugin, [gpu("t4", 0.3), A100], waiting=[5, 0]) == [True, True]  # as for all others


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
    st.lists(st.lists(st.floats(0, 12) | st.just(math.nan), min_size=8, max_size=8), min_size=1, max_size=6),
)
def test_het_1_at_least_one_is_kept_and_no_cheaper_group_is_skipped(tags, loads):
    plugin = build()
    prices = np.array([math.inf if (price := tag.cost_per_hour()) is None else price for tag in tags])
    for load in loads:
        mask = np.array(opened(plugin, tags, waiting=load[: len(tags)]))
        assert mask.any()
        assert mask.all() or prices[mask].max() < prices[~mask].min()
