# SPDX-License-Identifier: Apache-2.0
"""The network to the cluster of an endpoint: in the score of its cluster, and in the expected first token."""

from math import nan

import pytest

from epp.framework import ConfigurationError, Request, RequestBody
from epp.framework.clusters import CLUSTER, ClusterStatus, NetworkSeconds
from epp.framework.expected_times import ENDPOINT_RATES
from epp.framework.snapshot import ROUND_TRIP
from epp.framework.testing import candidates, endpoint_rates
from epp_scorers.cluster_score import ClusterScore
from epp_scorers.work_seconds import WorkSecondsScorer
from tests.support.plugins import built

HERE = ClusterStatus(cluster="east", local=True)


def there(name: str, **network: float) -> ClusterStatus:
    return ClusterStatus(cluster=name, **network)


def pool(*statuses: ClusterStatus, measured: list[float] | None = None, **columns):
    reported = {} if measured is None else {ROUND_TRIP.name: measured}
    return candidates(records={CLUSTER: statuses}, reported=reported, **columns)


def test_ocm_17_round_trip_is_declared_or_the_shortest_that_was_measured_in_the_cluster():
    statuses = [HERE, there("west"), there("west"), there("north", latency=0.1), there("south")]
    measured = [0.002, 0.04, 0.03, 0.5, nan]
    seconds = NetworkSeconds().of(pool(*statuses, measured=measured).snapshot)
    assert seconds.tolist() == pytest.approx([0.0, 0.03, 0.03, 0.1, nan], nan_ok=True)


@pytest.mark.parametrize("status", [HERE, ClusterStatus()], ids=["named", "unnamed"])
def test_ocm_17_round_trips_within_the_local_cluster_do_not_count(status):
    assert NetworkSeconds().of(pool(status, status, measured=[0.1, 0.2]).snapshot) is None


def test_ocm_17_round_trips_are_computed_again_only_for_another_pool_or_measurement():
    network, first = NetworkSeconds(), pool(HERE, there("west"), measured=[0.1, 0.2])
    seconds = network.of(first.snapshot)
    assert network.of(first.snapshot) is seconds
    assert network.of(pool(HERE, there("west"), measured=[0.1, 0.3]).snapshot).tolist() == [0.0, 0.3]


FAR = HERE, there("west", latency=0.05), there("north", latency=0.9), there("south")
DEAR = HERE, there("west", transfer_cost=0.02), there("north", transfer_cost=0.2), there("south")


@pytest.mark.parametrize(
    ("statuses", "parameters", "expected"),
    [
        (FAR, {"source": "latency"}, [1.0, 0.75, 0.0, 0.5]),  # 1 - 0.05 / 0.2 = 0.75; unknown is neutral
        (FAR, {"source": "latency", "worst": 1.0}, [1.0, 0.95, 0.1, 0.5]),
        (DEAR, {"source": "networkCost", "missing": "worst"}, [1.0, 0.8, 0.0, 0.0]),  # 1 - 0.02 / 0.1 = 0.8
    ],
)
def test_ocm_17_latency_and_cost_score_by_the_share_of_the_worst(statuses, parameters, expected):
    found = built(ClusterScore, parameters).score(Request("r"), pool(*statuses, measured=[nan] * 4))
    assert found.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"source": "latency", "scoreName": "x"}, "source latency takes neither scoreName nor placement"),
        ({"scoreName": "x", "worst": 1.0}, "worst has no effect: write source: latency or source: networkCost as well"),
    ],
)
def test_ocm_17_parameters_without_effect_are_refused(parameters, said):
    with pytest.raises(ConfigurationError, match=said):
        built(ClusterScore, parameters)


@pytest.mark.parametrize(("trips", "seconds"), [(1.0, [1.0, 1.3]), (2.0, [1.0, 1.6]), (0.0, [1.0, 1.0])])
def test_ocm_17_round_trip_is_part_of_the_expected_first_token(trips, seconds):
    request = Request("r", RequestBody(prompt_tokens=1000))
    request.put(ENDPOINT_RATES, endpoint_rates([1000, 1000]))
    found = pool(HERE, there("west", latency=0.3), in_flight_tokens=[0, 0])
    plugin = built(WorkSecondsScorer, {"networkRoundTrips": trips})
    assert plugin.seconds(request, found).tolist() == pytest.approx(seconds)
