# SPDX-License-Identifier: Apache-2.0
"""What is in flight, by endpoint and flow, as the metrics page shows it."""

import pytest
from prometheus_client import CollectorRegistry

from epp.framework import Endpoint, ManualClock
from epp.plugins.latency_observer import InflightLoadProducer
from epp.plugins.profile_handlers import RandomPicker
from epp.routing.datastore import Datastore, Flow
from epp.telemetry.flow_series import show_inflight

PRODUCER = InflightLoadProducer(name="load")


@pytest.fixture
def store() -> Datastore:
    store = Datastore(ManualClock())
    store.replace([Endpoint("a", "10.0.0.1", 8000, namespace="ns")])
    store.snapshot()
    return store


def shown(store: Datastore, plugins) -> dict[str, dict[tuple[str, ...], float]]:
    registry = CollectorRegistry()
    show_inflight(registry, store, lambda: plugins)
    return {
        family.name: {tuple(sample.labels.values()): sample.value for sample in family.samples}
        for family in registry.collect()
    }


def test_requests_and_tokens_are_shown_by_flow_while_they_are_in_flight(store):
    first = store.ledger.open(0, 30, Flow("x", 5))
    store.ledger.open(0, 12, Flow("x", 5))
    first.first_token()
    labels = ("a", "ns", "load", "x", "5")
    assert shown(store, [PRODUCER, RandomPicker()]) == {
        "llm_d_epp_inflight_requests": {labels: 2},
        "llm_d_epp_inflight_tokens": {labels: 12},
    }


def test_without_a_producer_requests_are_shown_and_tokens_are_unknown(store):
    store.ledger.open(0, 0, Flow("x", 5))
    assert shown(store, [RandomPicker()]) == {
        "llm_d_epp_inflight_requests": {("a", "ns", "inflight-load-producer", "x", "5"): 1},
        "llm_d_epp_inflight_tokens": {},
    }


def test_fairness_ids_beyond_256_share_a_series(store):
    for number in range(1000):
        store.ledger.open(0, 1, Flow(f"f{number}" + "x" * 500, 0))
    for _ in range(2):
        store.ledger.open(0, 1, Flow("busy", 0))
    requests = shown(store, [PRODUCER])["llm_d_epp_inflight_requests"]
    assert len(requests) == 257
    assert requests["a", "ns", "load", "busy", "0"] == 2
    assert requests["a", "ns", "load", "other", "0"] == 1000 - 255
    assert max(len(flow) for *_, flow, _ in requests) <= 128
