# SPDX-License-Identifier: Apache-2.0
"""State dumps of plugins."""

import numpy as np

from epp.framework import Endpoint, ManualClock
from epp.framework.plugin_status import endpoint_state
from epp.routing.datastore import Datastore


def pool(size: int) -> Datastore:
    store = Datastore(ManualClock())
    store.replace([Endpoint(f"e{number}", f"10.0.{number // 250}.{number % 250 + 1}", 8000) for number in range(size)])
    return store


def test_endpoints_with_most_come_first_and_the_others_are_counted():
    snapshot = pool(250).snapshot()
    numbers = np.arange(snapshot.capacity)
    state = endpoint_state(snapshot, {"blocks": numbers})
    shown = state["endpoints"]
    assert [each["blocks"] for each in shown[:2]] == [249, 248]
    assert shown[0] == {"name": "e249", "address": "10.0.0.250:8000", "blocks": 249}
    assert (len(shown), state["totalEndpoints"], state["maxEndpoints"], state["truncated"]) == (100, 250, 100, True)


def test_unknown_and_infinite_numbers_are_null_and_last():
    snapshot = pool(3).snapshot()
    rates = np.array([np.nan, 5.0, np.inf] + [0.0] * (snapshot.capacity - 3))
    shown = endpoint_state(snapshot, {"rate": rates})["endpoints"]
    assert [(each["name"], each["rate"]) for each in shown] == [("e2", None), ("e1", 5.0), ("e0", None)]


def test_pool_without_endpoints_has_none():
    assert endpoint_state(pool(0).snapshot(), {"rate": np.zeros(8)})["endpoints"] == []
