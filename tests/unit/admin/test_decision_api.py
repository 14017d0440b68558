# SPDX-License-Identifier: Apache-2.0
"""Decisions on the admin port: the latest, and one by its id."""

from collections.abc import Iterator

import pytest

from epp.admin.port import AdminPort
from epp.admin.simulate import decision_routes
from epp.explain.recorder import Recorder, Setup, recorder_of
from epp.explain.storage import Kept
from epp.framework import ManualClock, Snapshot
from epp.telemetry.settings import DecisionSettings
from tests.support.admin_client import asked, loop_calls, opened


@pytest.fixture
def recorder() -> Recorder:
    found = recorder_of(DecisionSettings(), ManualClock(), Setup(dict, int, Snapshot))
    for number in range(1, 4):
        data = f'{{"id":"d-{number}","requestId":"r{number}"}}'.encode()
        found.ring.add(Kept(f"d-{number}", f"r{number}", float(number), data))
    return found


@pytest.fixture
def port(recorder: Recorder) -> Iterator[AdminPort]:
    with loop_calls() as loop, opened(decision_routes(loop, recorder)) as port:
        yield port


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", ["d-3", "d-2", "d-1"]),
        ("?limit=2", ["d-3", "d-2"]),
        ("?since=d-2", ["d-3"]),
        ("?since=1970-01-01T00:00:01Z", ["d-3", "d-2"]),
        ("?since=1970-01-01T01:00:02+01:00", ["d-3"]),
        ("?request=r2", ["d-2"]),
        ("?request=nobody", []),
    ],
)
def test_tf_5_latest_decisions_newest_first(port, query, ids):
    found = asked(port, path=f"/api/decisions{query}")
    assert found.status == 200
    assert [record["id"] for record in found.body["decisions"]] == ids
    assert found.body["recorded"] == {"sampled": 0, "asked": 0, "failed": 0}
    assert found.body["lost"].keys() == {"busy", "rate", "error"}


def test_one_decision_is_found_by_its_id_and_one_that_is_gone_is_not(port):
    assert asked(port, path="/api/decisions/d-2").body == {"id": "d-2", "requestId": "r2"}
    found = asked(port, path="/api/decisions/d-9")
    assert (found.status, found.error) == (404, "NotFound")
    assert "'d-9'" in found.body["error"]["message"]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=many", "limit=²", "limit=1&limit=2", "since=12:99", "request=a&request=b"]
)
def test_query_that_makes_no_sense_is_refused_with_the_remedy(port, query):
    found = asked(port, path=f"/api/decisions?{query}".replace("²", "%C2%B2"))
    assert (found.status, found.error) == (400, "BadRequest")
    assert "write" in found.body["error"]["message"]
