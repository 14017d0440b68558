# SPDX-License-Identifier: Apache-2.0
"""Prices of accelerators, and the cost of a request."""

import json
from math import inf, nan

import msgspec
import pytest

from epp.framework import ConfigurationError, ManualClock, Request, RequestBody
from epp.framework.accelerators.tag import NO_TAG, AcceleratorKind, AcceleratorTag, Cost, Partition, Sharing
from epp.framework.quotas import TENANT, Tenant
from epp.framework.rates import ENDPOINT_RATES, TARGET_IN_REACH
from epp.framework.registry import Registry
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates, endpoint_rates
from epp_scorers.cost import CheapestScorer, CostPerRequestScorer


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


A10 = {"gpu": "A10", "indexes": [[128, 1024], [128, 4096]], "tputs": [[8, 0.2], [2, 0.1]]}
A100 = {"gpu": "A100", "indexes": [[128, 1024], [128, 4096]], "tputs": [[20, 5], [8, 2]]}


def build(**parameters):
    registry = Registry({})
    registry.register(CostPerRequestScorer)
    return registry.build("cost-per-request-scorer", parameters, name="mine", clock=ManualClock())


def tag(model, dollars=None, count=1):
    return AcceleratorTag(model=model, count=count, cost=Cost(per_hour=dollars))


def scores(prompt_tokens, output_tokens, *tags, rates=None, columns=None, in_reach=None, tenant=None, **parameters):
    request = Request("r", RequestBody(prompt_tokens=prompt_tokens, max_output_tokens=output_tokens))
    if rates is not None:
        request.put(ENDPOINT_RATES, rates)
    if in_reach is not None:
        request.put(TARGET_IN_REACH, in_reach)
    if tenant is not None:
        request.put(TENANT, tenant)
    pool = candidates(records={ACCELERATOR: tags}, **(columns or {}))
    return build(expectedOutputTokens=4096, **parameters).score(request, pool).tolist()


def test_het_2_short_requests_are_cheapest_on_small_gpus_and_long_ones_on_large():
    small, large = tag("a10", 1.0), tag("a100", 4.0)
    # short: 1 / 8 = 0.125 against 4 / 20 = 0.2; long: 1 / 0.1 = 10 against 4 / 2 = 2
    assert scores(128, 128, small, large, profiles=[A10, A100]) == pytest.approx([1.0, 0.625])
    assert scores(4096, 1024, small, large, profiles=[A10, A100]) == pytest.approx([0.2, 1.0])


def test_het_2_request_between_two_sizes_counts_as_the_nearer_by_logarithm():
    # 170 is 0.41 powers of 2 from 128, so the same as 128
    assert scores(170, 170, tag("a10", 1.0), tag("a100", 4.0), profiles=[A10, A100]) == pytest.approx([1.0, 0.625])


def test_het_2_request_far_from_all_sizes_has_no_profile():
    # 600 is 2.2 powers of 2 from 128 and 2.8 from 4096: price alone, 1 / 4
    assert scores(600, 128, tag("a10", 1.0), tag("a100", 4.0), profiles=[A10, A100]) == [1.0, 0.25]
    assert scores(600, 128, tag("a10", 1.0), tag("a100", 4.0), profiles=[A10, A100], tolerance=3) != [1.0, 0.25]


def test_het_2_without_any_profile_the_price_decides():
    assert scores(128, 128, tag("a10", 1.0), tag("a100", 4.0), tag("h100", 8.0)) == [1.0, 0.25, 0.125]


def test_het_2_endpoint_without_a_profile_counts_as_one_of_the_median():
    # a10: 1/8; a100: 4/20 = 0.2; l4: 0.6 * median(1/8, 1/20) = 0.6 * 0.0875 = 0.0525
    found = scores(128, 128, tag("a10", 1.0), tag("a100", 4.0), tag("l4", 0.6), profiles=[A10, A100])
    assert found == pytest.approx([0.0525 / 0.125, 0.0525 / 0.2, 1.0])


def test_het_2_rates_stand_in_for_profiles():
    rates = endpoint_rates([1000, 10_000], itl_base=[0.032, 0.0064], itl_per_request=[0.001, 0.0008])
    # small: 1000 / 1000 + 100 * (0.032 / 32 + 0.001) = 1.2 s at 1 $/h
    # large: 1000 / 10000 + 100 * (0.0064 / 32 + 0.0008) = 0.2 s at 4 $/h: 0.8 against 1.2
    found = scores(1000, 100, tag("a10", 1.0), tag("h100", 4.0), rates=rates, batchSize=32)
    assert found == pytest.approx([0.8 / 1.2, 1.0])


def test_het_2_endpoint_that_works_anyhow_costs_less_than_one_that_idles():
    rates = endpoint_rates([1000, 1000], itl_base=[0.08, 0.08], itl_per_request=[0.001, 0.001])
    found = scores(
        *(1000, 100, tag("a10", 1.0), tag("a10", 1.0)),
        rates=rates,
        columns={"running": [3, 0], "in_flight": [3, 0]},
        batchSize=0,
    )
    # 1 + 100 * (0.08 + 4 * 0.001) / 4 = 3.1 s against 1 + 100 * 0.081 = 9.1 s
    assert found == pytest.approx([1.0, 3.1 / 9.1])


def test_het_2_price_does_not_count_where_no_endpoint_is_in_time():
    assert scores(128, 128, tag("a10", 1.0), tag("h100", 4.0), in_reach=False) == [1.0, 1.0]
    assert scores(128, 128, tag("a10", 1.0), tag("h100", 4.0), in_reach=True) == [1.0, 0.25]


@pytest.mark.parametrize(
    ("applies_to", "in_time", "late", "unknown"),
    [
        ("in-time", [1.0, 0.25], [1.0, 1.0], [1.0, 0.25]),
        ("late", [1.0, 1.0], [1.0, 0.25], [1.0, 1.0]),
        ("all", [1.0, 0.25], [1.0, 0.25], [1.0, 0.25]),
    ],
)
def test_het_2_price_counts_for_the_requests_that_are_chosen(applies_to, in_time, late, unknown):
    for in_reach, wanted in ((True, in_time), (False, late), (None, unknown)):
        found = scores(128, 128, tag("a10", 1.0), tag("h100", 4.0), in_reach=in_reach, appliesTo=applies_to)
        assert found == wanted


def test_het_2_all_devices_of_an_endpoint_are_paid_for():
    assert scores(1, 1, tag("a10", 1.0, count=4), tag("a10", 1.0)) == [0.25, 1.0]


def test_het_2_price_of_the_profile_counts_where_the_accelerator_has_none():
    # 2 / 8 = 0.25 against 4 / 20 = 0.2
    found = scores(128, 128, tag("a10"), tag("a100", 4.0), profiles=[A10 | {"cost": 2.0}, A100])
    assert found == pytest.approx([0.8, 1.0])


def test_het_2_unknown_price_is_neither_cheap_nor_dear():
    # median of 1, 3 and 5 is 3
    assert scores(1, 1, tag("a"), tag("b", 1.0), tag("c", 3.0), tag("d", 5.0)) == pytest.approx([1 / 3, 1, 1 / 3, 0.2])
    assert scores(1, 1, tag("a"), tag("b")) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("qos", "expected"),
    [
        ("low", [1.0, 0.5, 0.0]),  # 1 - 2 * (1 - 0.75), and 1 - 2 * (1 - 0.25) is below 0
        ("high", [1.0, 0.875, 0.625]),  # 1 - 0.5 * (1 - 0.75), 1 - 0.5 * (1 - 0.25)
        ("critical", [1.0, 1.0, 1.0]),
        ("medium", [1.0, 0.75, 0.25]),  # not named
        ("", [1.0, 0.75, 0.25]),
        (None, [1.0, 0.75, 0.25]),
    ],
)
def test_tf_13_price_counts_as_much_as_the_quality_of_service_of_the_tenant_says(qos, expected):
    tenant = None if qos is None else Tenant(name="t", qos=qos)
    weights = {"low": 2.0, "high": 0.5, "critical": 0}
    found = scores(128, 128, tag("a", 3.0), tag("b", 4.0), tag("c", 12.0), tenant=tenant, qosPriceWeights=weights)
    assert found == pytest.approx(expected)


def test_het_2_endpoint_that_cannot_serve_such_requests_gets_nothing():
    useless = A10 | {"tputs": [[0, 0], [0, 0]]}
    assert scores(128, 128, tag("a10", 0.0), tag("a100", 4.0), profiles=[useless, A100]) == [0.0, 1.0]
    assert scores(128, 128, tag("a10", 1.0), profiles=[useless]) == [0.0]


def test_het_2_what_is_free_wins():
    assert scores(1, 1, tag("a10", 0.0), tag("a100", 4.0)) == [1.0, 0.0]


def test_het_2_profiles_that_aibrix_wrote_are_read_from_a_file(tmp_path):
    file = tmp_path / "profiles.json"
    file.write_text(json.dumps([A10 | {"created": 1.5, "e2e": [[1]], "slos": {"percentile": 99}}, A100]))
    assert scores(128, 128, tag("a10", 1.0), tag("a100", 4.0), profilePath=str(file)) == pytest.approx([1.0, 0.625])


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"profiles": [A10 | {"tputs": [[1, 2]]}]}, "tputs of 'A10' needs one row for each of the 2 output lengths"),
        ({"profiles": [A10 | {"tputs": [[1], [2]]}]}, "each row of tputs of 'A10' needs 2 numbers"),
        ({"profiles": [A10 | {"tputs": [[1, -1], [2, 2]]}]}, "tputs\\[0]\\[1] is -1; it must be 0 or more, and finite"),
        ({"profiles": [A10 | {"indexes": [[0, 1], [1, 2]]}]}, "indexes\\[0]\\[0] is 0; it must be above 0, and finite"),
        ({"profiles": [A10 | {"cost": -1}]}, "cost is -1; it must be 0 or more, and finite"),
        ({"tolerance": nan}, "tolerance is nan"),
        ({"expectedOutputTokens": -1}, "expectedOutputTokens is -1"),
        ({"batchSize": -1}, "batchSize is -1; it must be 0 or more"),
        ({"appliesTo": "early"}, "'early' is not known; use 'in-time', 'late', 'all'"),
        ({"profilePath": "/no/such/file"}, "profilePath '/no/such/file' cannot be read: No such file"),
    ],
)
def test_what_means_nothing_is_refused(parameters, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        build(**parameters)
