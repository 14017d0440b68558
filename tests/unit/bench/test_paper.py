# SPDX-License-Identifier: Apache-2.0
"""Load on the parts of many pickers, by costs that are round numbers."""

import pytest

from perf.bench.run_paper import Costs, full_at, parts

COSTS = Costs(
    decision={10: 100e-6, 100: 100e-6, 1000: 200e-6},
    request=300e-6,
    envoy=500e-6,
    poll=100e-6,
    write_batch=0.0,
    write_request=0.0,
    apply_batch=0.0,
    apply_request=10e-6,
    batch_bytes=0.0,
    request_bytes=200.0,
    client_write=0.0,
    client_read=0.0,
    client_byte=0.0,
    store_write=0.0,
    store_read=0.0,
    store_byte=1e-9,
)


@pytest.mark.parametrize(("endpoints", "seconds"), [(8, 300e-6), (100, 300e-6), (550, 350e-6), (2800, 600e-6)])
def test_request_costs_more_among_more_endpoints(endpoints, seconds):
    assert COSTS.of_request(endpoints) == pytest.approx(seconds)


def test_one_picker_shares_nothing():
    found = parts(COSTS, endpoints=100, pickers=1, rate=1000.0)
    assert found["event loop of a picker"].used == pytest.approx(0.3 + 0.2 * 0.7)  # requests, and polls of what is left
    assert found["store, CPU"].used == found["placements in a batch"].used == 0


def test_requests_of_others_bound_all_pickers_together():
    """However many pickers there are, each applies all requests: 10 us each, 100,000 a second."""

    def used(rate: float) -> float:
        return parts(COSTS, endpoints=1, pickers=1000, rate=rate)["event loop of a picker"].used

    assert 70_000 < full_at(used) < 100_000
