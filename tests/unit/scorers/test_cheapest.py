# SPDX-License-Identifier: Apache-2.0
"""The endpoint that costs least."""

from math import inf, nan

import msgspec
import pytest

from epp.framework.accelerators.tag import NO_TAG, AcceleratorKind, AcceleratorTag, Cost, Partition, Sharing
from epp_scorers.cost import CheapestScorer


def priced(**cost):
    return AcceleratorTag(kind=AcceleratorKind.GPU, count=1, cost=Cost(**cost))


def test_ome_4_cheapest_gets_one_and_others_the_ratio(scores, h100, a100, t4):
    # 1/4, 1/2, 1/1
    assert scores(CheapestScorer, [h100, a100, t4]) == [0.25, 0.5, 1.0]


def test_ome_7_spot_price_counts_on_spot_nodes(scores, h100, a100):
    # the H100's node is spot: 2 an hour, as much as the A100 on demand
    spot = msgspec.structs.replace(h100, cost=msgspec.structs.replace(h100.cost, spot=True))
    assert scores(CheapestScorer, [spot, a100]) == [1.0, 1.0]
    assert scores(CheapestScorer, [spot, a100], spotPreference="never") == [0.5, 1.0]


def test_defect_6_spot_price_does_not_count_on_other_nodes(scores):
    # spot 5 (A) against on-demand 3 (B): on demand A costs 2
    assert scores(CheapestScorer, [priced(per_hour=2, spot_per_hour=5), priced(per_hour=3)]) == pytest.approx(
        [1.0, 2 / 3]
    )


def test_defect_6_spot_price_of_zero_is_no_gift_on_demand(scores, h100, t4):
    assert scores(CheapestScorer, [h100, t4]) == [0.25, 1.0]
    # asked for everywhere, the price of 0 is the lowest there can be
    assert scores(CheapestScorer, [h100, t4], spotPreference="always") == [0.0, 1.0]


def test_ome_4_prices_of_different_kinds_are_never_compared(scores):
    # an hour decides, though a million tokens for 1 looks cheaper than an hour for 10
    hourly, by_token, by_tier = priced(per_hour=10), priced(per_million_tokens=1), priced(tier="low")
    assert scores(CheapestScorer, [hourly, by_token, by_tier]) == [1.0, 0.0, 0.0]
    assert scores(CheapestScorer, [by_token, by_tier, priced(per_million_tokens=4)]) == [1.0, 0.0, 0.25]


def test_ome_4_tiers_decide_where_there_is_no_price(scores):
    # 1, 2, 3, and 2 for a tier of somebody's own
    tiers = [priced(tier=tier) for tier in ("low", "Medium", "high", "special", "")]
    assert scores(CheapestScorer, tiers) == pytest.approx([1.0, 0.5, 1 / 3, 0.5, 0.0])


def test_ome_4_no_cost_anywhere_leaves_the_choice_to_the_next_scorer(scores):
    assert scores(CheapestScorer, [priced(), NO_TAG]) == [0.0, 0.0]


def test_ome_7_endpoint_pays_for_all_its_devices_unless_one_is_asked_for(scores, a100):
    # 4 * 2 against 2 an hour
    four = msgspec.structs.replace(a100, count=4)
    assert scores(CheapestScorer, [four, a100]) == [0.25, 1.0]
    assert scores(CheapestScorer, [four, a100], basis="device") == [1.0, 1.0]


def test_ome_7_slice_pays_its_share_of_memory_or_compute(scores, a100):
    # 3g.20gb: 4/8 of 2 dollars is 1; 3/7 of them
    part = Partition(kind=Sharing.MIG, profile="3g.20gb", memory_fraction=4 / 8, compute_fraction=3 / 7)
    piece = msgspec.structs.replace(a100, partition=part)
    assert scores(CheapestScorer, [a100, piece]) == [0.5, 1.0]
    assert scores(CheapestScorer, [a100, piece], costBasis="compute") == pytest.approx([3 / 7, 1.0])


def test_ome_8_cpu_is_not_the_cheapest_accelerator(scores, t4):
    cpu = AcceleratorTag(kind=AcceleratorKind.CPU, cost=Cost(per_hour=0.05))
    assert scores(CheapestScorer, [cpu, t4]) == [0.0, 1.0]


@pytest.mark.parametrize("nonsense", [nan, inf, -1.0])
def test_price_that_is_none_counts_as_none(scores, nonsense):
    assert scores(CheapestScorer, [priced(per_hour=nonsense), priced(per_hour=3)]) == [0.0, 1.0]
