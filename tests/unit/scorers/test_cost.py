# SPDX-License-Identifier: Apache-2.0
"""Prices of accelerators, and the cost of a request."""

import json
from math import inf, nan

import pytest
from msgspec.structs import replace

from epp.framework import Request, RequestBody
from epp.framework.accelerators.tag import NO_TAG, AcceleratorKind, AcceleratorTag, Cost, Partition, Sharing
from epp.framework.expected_times import ENDPOINT_RATES, TARGET_IN_REACH
from epp.framework.quotas import TENANT, Tenant
from epp.framework.testing import endpoint_rates
from epp_scorers.cost import CheapestScorer, CostPerRequestScorer
from tests.support.scoring import A100, H100, T4, scores


def priced(**cost):
    return AcceleratorTag(kind=AcceleratorKind.GPU, count=1, cost=Cost(**cost))


HOURLY, BY_TOKEN, BY_TIER = priced(per_hour=10), priced(per_million_tokens=1), priced(tier="low")


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ([H100, A100, T4], [0.25, 0.5, 1.0]),  # 1/4, 1/2, 1/1
        # prices of different kinds are never compared: an hour decides, though a million tokens for 1 looks cheaper
        ([HOURLY, BY_TOKEN, BY_TIER], [1.0, 0.0, 0.0]),
        ([BY_TOKEN, BY_TIER, priced(per_million_tokens=4)], [1.0, 0.0, 0.25]),
        # tiers: 1, 2, 3, and 2 for a tier of somebody's own
        ([priced(tier=tier) for tier in ("low", "Medium", "high", "special", "")], [1.0, 0.5, 1 / 3, 0.5, 0.0]),
        ([priced(), NO_TAG], [0.0, 0.0]),
    ],
)
def test_ome_4_cheapest_gets_one_and_others_the_ratio(tags, expected):
    assert scores(CheapestScorer, tags) == pytest.approx(expected)


def test_ome_7_spot_price_counts_on_spot_nodes():
    # the H100's node is spot: 2 an hour, as much as the A100 on demand
    spot = replace(H100, cost=replace(H100.cost, spot=True))
    assert scores(CheapestScorer, [spot, A100]) == [1.0, 1.0]
    assert scores(CheapestScorer, [spot, A100], spotPreference="never") == [0.5, 1.0]


def test_defect_6_spot_price_does_not_count_on_other_nodes():
    # spot 5 (A) against on-demand 3 (B): on demand A costs 2
    found = scores(CheapestScorer, [priced(per_hour=2, spot_per_hour=5), priced(per_hour=3)])
    assert found == pytest.approx([1.0, 2 / 3])
    # a spot price of 0 is no gift on demand; asked for everywhere, it is the lowest there can be
    assert scores(CheapestScorer, [H100, T4]) == [0.25, 1.0]
    assert scores(CheapestScorer, [H100, T4], spotPreference="always") == [0.0, 1.0]


def test_ome_7_endpoint_pays_for_all_its_devices_and_a_slice_its_share():
    four = replace(A100, count=4)  # 4 * 2 against 2 an hour
    assert scores(CheapestScorer, [four, A100]) == [0.25, 1.0]
    assert scores(CheapestScorer, [four, A100], basis="device") == [1.0, 1.0]
    # 3g.20gb: 4/8 of 2 dollars is 1; 3/7 of them
    part = Partition(kind=Sharing.MIG, profile="3g.20gb", memory_fraction=4 / 8, compute_fraction=3 / 7)
    piece = replace(A100, partition=part)
    assert scores(CheapestScorer, [A100, piece]) == [0.5, 1.0]
    assert scores(CheapestScorer, [A100, piece], costBasis="compute") == pytest.approx([3 / 7, 1.0])


def test_ome_8_cpu_is_not_the_cheapest_accelerator():
    cpu = AcceleratorTag(kind=AcceleratorKind.CPU, cost=Cost(per_hour=0.05))
    assert scores(CheapestScorer, [cpu, T4]) == [0.0, 1.0]


@pytest.mark.parametrize("nonsense", [nan, inf, -1.0])
def test_price_that_is_none_counts_as_none(nonsense):
    assert scores(CheapestScorer, [priced(per_hour=nonsense), priced(per_hour=3)]) == [0.0, 1.0]


SIZES = {"indexes": [[128, 1024], [128, 4096]]}
PROFILES = [
    {"gpu": "A10", "tputs": [[8, 0.2], [2, 0.1]], **SIZES},
    {"gpu": "A100", "tputs": [[20, 5], [8, 2]], **SIZES},
]
ON_A10, ON_A100 = PROFILES


def tag(model, dollars=None, count=1):
    return AcceleratorTag(model=model, count=count, cost=Cost(per_hour=dollars))


SMALL, LARGE = tag("a10", 1.0), tag("a100", 4.0)


def costs(prompt_tokens, output_tokens, *tags, rates=None, in_reach=None, tenant=None, **more):
    request = Request("r", RequestBody(prompt_tokens=prompt_tokens, max_output_tokens=output_tokens))
    for key, value in ((ENDPOINT_RATES, rates), (TARGET_IN_REACH, in_reach), (TENANT, tenant)):
        if value is not None:
            request.put(key, value)
    return scores(CostPerRequestScorer, tags, request, expectedOutputTokens=4096, **more)


@pytest.mark.parametrize(
    ("prompt_tokens", "output_tokens", "parameters", "expected"),
    [
        # short requests are cheapest on the small one: 1 / 8 = 0.125 against 4 / 20 = 0.2
        (128, 128, {}, [1.0, 0.625]),
        # long ones on the large one: 1 / 0.1 = 10 against 4 / 2 = 2
        (4096, 1024, {}, [0.2, 1.0]),
        # 170 is 0.41 powers of 2 from 128, so the same as 128
        (170, 170, {}, [1.0, 0.625]),
        # 600 is 2.2 powers of 2 from 128 and 2.8 from 4096: no profile, the price alone, 1 / 4
        (600, 128, {}, [1.0, 0.25]),
        (600, 128, {"tolerance": 3}, [1.0, 0.625]),
    ],
)
def test_het_2_cost_is_that_of_the_nearest_sizes_of_the_profile(prompt_tokens, output_tokens, parameters, expected):
    found = costs(prompt_tokens, output_tokens, SMALL, LARGE, profiles=PROFILES, **parameters)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("tags", "profiles", "expected"),
    [
        ([SMALL, LARGE, tag("h100", 8.0)], [], [1.0, 0.25, 0.125]),  # the price decides
        # one without a profile counts as the median: a10 1/8; a100 4/20 = 0.2; l4 0.6 * median(1/8, 1/20) = 0.0525
        ([SMALL, LARGE, tag("l4", 0.6)], PROFILES, [0.0525 / 0.125, 0.0525 / 0.2, 1.0]),
        # the price of the profile counts where the accelerator has none: 2 / 8 = 0.25 against 4 / 20 = 0.2
        ([tag("a10"), LARGE], [ON_A10 | {"cost": 2.0}, ON_A100], [0.8, 1.0]),
        # an unknown price is the median of 1, 3 and 5
        ([tag("a"), tag("b", 1.0), tag("c", 3.0), tag("d", 5.0)], [], [1 / 3, 1, 1 / 3, 0.2]),
        ([tag("a"), tag("b")], [], [1.0, 1.0]),
        ([tag("a10", 1.0, count=4), SMALL], [], [0.25, 1.0]),  # all devices are paid for
        ([tag("a10", 0.0), LARGE], [], [1.0, 0.0]),  # what is free wins
        # one that cannot serve such requests gets nothing
        ([tag("a10", 0.0), LARGE], [ON_A10 | {"tputs": [[0, 0], [0, 0]]}, ON_A100], [0.0, 1.0]),
        ([SMALL], [ON_A10 | {"tputs": [[0, 0], [0, 0]]}], [0.0]),
    ],
)
def test_het_2_price_and_throughput_that_count(tags, profiles, expected):
    assert costs(128, 128, *tags, profiles=profiles) == pytest.approx(expected)


def test_het_2_rates_stand_in_for_profiles():
    rates = endpoint_rates([1000, 10_000], itl_base=[0.032, 0.0064], itl_per_request=[0.001, 0.0008])
    # small: 1000 / 1000 + 100 * (0.032 / 32 + 0.001) = 1.2 s at 1 $/h
    # large: 1000 / 10000 + 100 * (0.0064 / 32 + 0.0008) = 0.2 s at 4 $/h: 0.8 against 1.2
    assert costs(1000, 100, SMALL, LARGE, rates=rates, batchSize=32) == pytest.approx([0.8 / 1.2, 1.0])


def test_het_2_endpoint_that_works_anyhow_costs_less_than_one_that_idles():
    rates = endpoint_rates([1000, 1000], itl_base=[0.08, 0.08], itl_per_request=[0.001, 0.001])
    found = costs(1000, 100, SMALL, SMALL, rates=rates, running=[3, 0], in_flight=[3, 0], batchSize=0)
    # 1 + 100 * (0.08 + 4 * 0.001) / 4 = 3.1 s against 1 + 100 * 0.081 = 9.1 s
    assert found == pytest.approx([1.0, 3.1 / 9.1])


@pytest.mark.parametrize(
    ("parameters", "in_time", "late", "unknown"),
    [
        ({}, [1.0, 0.25], [1.0, 1.0], [1.0, 0.25]),
        ({"appliesTo": "in-time"}, [1.0, 0.25], [1.0, 1.0], [1.0, 0.25]),
        ({"appliesTo": "late"}, [1.0, 1.0], [1.0, 0.25], [1.0, 1.0]),
        ({"appliesTo": "all"}, [1.0, 0.25], [1.0, 0.25], [1.0, 0.25]),
    ],
)
def test_het_2_price_counts_for_the_requests_that_are_chosen(parameters, in_time, late, unknown):
    found = [costs(128, 128, SMALL, LARGE, in_reach=in_reach, **parameters) for in_reach in (True, False, None)]
    assert found == [in_time, late, unknown]


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
    found = costs(128, 128, tag("a", 3.0), tag("b", 4.0), tag("c", 12.0), tenant=tenant, qosPriceWeights=weights)
    assert found == pytest.approx(expected)


def test_het_2_profiles_that_aibrix_wrote_are_read_from_a_file(tmp_path):
    file = tmp_path / "profiles.json"
    written = ON_A10 | {"created": 1.5, "e2e": [[1]], "slos": {"percentile": 99}}
    file.write_text(json.dumps([written, ON_A100]))
    assert costs(128, 128, SMALL, LARGE, profilePath=str(file)) == pytest.approx([1.0, 0.625])
