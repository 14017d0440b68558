# SPDX-License-Identifier: Apache-2.0
"""Plugins that choose by price say so where there is none: once, and again when the last price leaves."""

import pytest
from structlog.testing import capture_logs

from epp.framework import Endpoint, ManualClock
from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag, Cost
from epp.framework.datalayer import Report
from epp.framework.registry import Registry
from epp.framework.snapshot import ACCELERATOR
from epp.routing.datastore import Datastore
from epp.telemetry.endpoints import PriceWatch, prices_of

PRICED = AcceleratorTag(kind=AcceleratorKind.GPU, count=1, cost=Cost(per_hour=2.0))
UNPRICED = AcceleratorTag(kind=AcceleratorKind.GPU, count=1)
PRICED_PROFILE = {"gpu": "A10", "cost": 1.01, "tputs": [[4.2]], "indexes": [[64], [128]]}


@pytest.fixture
def store():
    return Datastore(ManualClock())


@pytest.fixture
def put(store):
    """Make endpoints with these tags the pool; return its snapshot."""

    def replace(**tags):
        store.replace([Endpoint(name, f"10.0.0.{number}", 8000) for number, name in enumerate(tags, 1)])
        for endpoint in store.endpoints:
            store.tag(endpoint, Report(attributes={ACCELERATOR: tags[endpoint.name]}))
        return store.snapshot()

    return replace


def plugin(kind, **parameters):
    return Registry().build(kind, parameters, name=kind, clock=ManualClock())


def lines(watch, snapshot, *plugins):
    with capture_logs() as logs:
        watch.check(snapshot, plugins)
    return logs


def test_ome_7_pool_without_any_price_is_said_once_for_each_plugin_that_needs_prices(put):
    watch, users = PriceWatch(), (plugin("cheapest-scorer"), plugin("cost-aware-spill"), plugin("queue-scorer"))
    snapshot = put(a=UNPRICED, b=UNPRICED)
    said = lines(watch, snapshot, *users)
    assert [(line["event"], line["plugin"]) for line in said] == [
        ("no endpoint has a price", "cheapest-scorer"),
        ("no endpoint has a price", "cost-aware-spill"),
    ]
    for word in ("parameter prices of accelerator-data-source", "costPerHour", "AcceleratorClass"):
        assert word in said[0]["remedy"]
    assert lines(watch, snapshot, *users) == []


def test_ome_7_endpoints_without_a_price_are_named_where_others_have_one(put):
    watch, user = PriceWatch(), plugin("cheapest-scorer")
    (line,) = lines(watch, put(a=PRICED, b=UNPRICED), user)
    assert (line["event"], line["endpoints"], line["total"]) == ("endpoints without a price", ["default/b"], 1)
    assert lines(watch, put(a=PRICED, b=UNPRICED), user) == []
    (line,) = lines(watch, put(a=PRICED, b=UNPRICED, c=UNPRICED), user)
    assert line["endpoints"] == ["default/b", "default/c"]
    (line,) = lines(watch, put(a=PRICED), user)
    assert line["event"] == "all endpoints have a price"


def test_ome_7_last_endpoint_with_a_price_is_missed_where_a_plugin_needs_prices(put):
    watch, user = PriceWatch(), plugin("cheapest-scorer")
    assert lines(watch, put(a=PRICED), user) == []
    assert lines(watch, put(), user) == []
    (line,) = lines(watch, put(b=UNPRICED), user)
    assert (line["event"], line["log_level"]) == ("no endpoint has a price", "warning")
    assert lines(PriceWatch(), put(a=UNPRICED), plugin("queue-scorer")) == []


def test_endpoints_on_cpus_need_no_price(put):
    snapshot = put(a=AcceleratorTag(kind=AcceleratorKind.CPU), b=UNPRICED, c=AcceleratorTag())
    assert prices_of(snapshot).missing == ("default/b", "default/c")


@pytest.mark.parametrize(
    ("kind", "parameters", "needs"),
    [
        ("cheapest-scorer", {}, True),
        ("cost-per-request-scorer", {}, True),
        ("cost-aware-spill", {}, True),
        ("slo-fit-filter", {}, True),
        ("slo-fit-filter", {"preferCheapest": False}, False),
        ("accelerator-filter", {"maxCostPerHour": 5}, True),
        ("accelerator-filter", {"maxCostPerMillionTokens": 5}, True),
        ("accelerator-filter", {"minMemory": 5}, False),
        ("accelerator-selection-producer", {"defaults": {"policy": "Cheapest"}}, True),
        ("accelerator-selection-producer", {"models": {"m": {"maxCostPerHour": 3}}}, True),
        ("accelerator-selection-producer", {}, False),
        ("accelerator-policy-scorer", {"defaultPolicy": "cheapest"}, True),
        ("accelerator-policy-scorer", {}, False),
        ("mig-profile-filter", {"allow": ["3g.20gb"]}, False),
        ("cost-per-request-scorer", {"profiles": [PRICED_PROFILE]}, False),
    ],
)
def test_ome_7_plugins_say_whether_they_need_prices(kind, parameters, needs):
    assert bool(plugin(kind, **parameters).without_prices) is needs
