# SPDX-License-Identifier: Apache-2.0
"""Responses that end early, or that the gateway makes itself, and their effect on the endpoint."""

import pytest

from epp.extproc.wire import ProcessingRequest
from epp.framework.headers import DESTINATION
from epp.framework.snapshot import FAILED
from epp.routing.director import Cause
from epp.routing.outliers.record import OnVerdict, Verdict
from tests.support.exchanges import (
    BODY,
    Bench,
    headers_set,
    new_bench,
    request_body,
    request_headers,
    response_body,
    response_headers,
    served_by,
)

LISTS = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: max-score-picker, parameters: {maxNumOfEndpoints: 3}}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: max-score-picker}]}]
"""


class Ports:
    """What the ports of endpoints say, when a test lets them."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.questions: list[tuple[str, OnVerdict]] = []
        bench.director.outliers.ask = lambda endpoint, tell: self.questions.append((endpoint.name, tell))

    def say(self, verdict: Verdict) -> list[str]:
        questions, self.questions = self.questions, []
        for _, tell in questions:
            tell(verdict)
        return [name for name, _ in questions]

    @property
    def used(self) -> set[str]:
        snapshot = self.bench.store.snapshot()
        return {snapshot.endpoints.values[slot].name for slot in snapshot.available}


@pytest.fixture
def ports(bench) -> Ports:
    return Ports(bench)


def answer(status: str, **headers: str) -> ProcessingRequest:
    return response_headers(status, **{name.replace("_", "-"): text for name, text in headers.items()})


@pytest.mark.parametrize(
    ("verdict", "cause", "failed"),
    [
        (Verdict.REFUSES, Cause.SERVER_LOST, 1),
        (Verdict.ANSWERS, Cause.CLIENT_DISCONNECT, 0),
        (Verdict.SILENT, Cause.CLIENT_DISCONNECT, 0),
    ],
)
def test_response_that_is_cut_short_has_the_cause_that_the_port_tells(bench, ports, verdict, cause, failed):
    session = bench.routed()
    session.receive(response_headers(), response_body(b"data: 1\n\n"))
    session.close()
    assert bench.in_flight == 0  # at once
    assert bench.endings.causes == []
    assert ports.say(verdict) == ["a"]
    assert bench.endings.causes == [cause]
    assert bench.store.snapshot().column(FAILED).sum() == failed
    session.close()
    assert bench.endings.causes == [cause]


def test_client_that_leaves_before_the_response_is_no_question(bench, ports):
    bench.routed().close()
    assert bench.endings.causes == [Cause.CLIENT_DISCONNECT]
    assert ports.questions == []


def test_response_that_the_gateway_made_casts_suspicion_on_the_endpoint(bench, ports):
    bench.routed().receive(answer("503", content_type="text/plain", content_length="95"))
    assert ports.used == {"b", "b2", "c"}
    assert ports.say(Verdict.ANSWERS) == ["a"]
    assert ports.used == {"a", "b", "b2", "c"}


@pytest.mark.parametrize("sign", ["date", "server", "x_envoy_upstream_service_time"])
def test_response_of_a_server_is_no_lost_connection(bench, ports, sign):
    bench.routed().receive(answer("503", **{sign: "1"}))
    assert ports.questions == []
    assert ports.used == {"a", "b", "b2", "c"}


def test_server_that_is_overloaded_is_not_held_to_be_dead(bench):
    for _ in range(20):
        session = bench.routed()
        session.receive(answer("503", server="uvicorn", retry_after="1"))
        session.close()
    assert bench.director.outliers.is_clean


def test_endpoints_that_the_gateway_passed_over_are_asked():
    bench = new_bench(LISTS)
    ports, session = Ports(bench), bench.session()
    reply, _ = session.receive(request_headers(), request_body(BODY))
    first, second, _ = headers_set(reply)[DESTINATION].split(",")
    names = {endpoint.hostport: endpoint.name for endpoint in bench.store.endpoints}
    session.receive(served_by(response_headers(), second), response_body(b"{}"))
    assert ports.used == set(names.values()) - {names[first]}
    assert ports.say(Verdict.REFUSES) == [names[first]]
