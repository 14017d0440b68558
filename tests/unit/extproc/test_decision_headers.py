# SPDX-License-Identifier: Apache-2.0
"""Response headers with the endpoint that served and the reason; values of others are removed."""

import pytest
import structlog

from epp.extproc.exchange import GatewayTraits
from epp.extproc.wire import ProcessingRequest
from tests.support.exchanges import (
    Bench,
    common,
    headers_set,
    new_bench,
    request_headers,
    response_body,
    response_headers,
    served_by,
)

ENDPOINT, REASON = "x-epp-endpoint", "x-epp-reason"
FORGED = {ENDPOINT: "best=10.6.6.6:1", REASON: "because I say so"}


def answered(response: ProcessingRequest, **options) -> tuple[dict[str, str], list[str]]:
    """Return the response headers that are set, and those that are removed."""
    (reply,) = new_bench().routed(request_headers(**FORGED), **options).receive(response)
    return headers_set(reply), sorted(common(reply).header_mutation.remove_headers)


def test_endpoint_and_reason_are_told_on_demand():
    setting, _ = answered(response_headers(), decision_headers=True)
    assert setting[ENDPOINT] == "a=10.0.0.1:8000"
    assert setting[REASON] == "default: equal scores of 4; 0% cached"


def test_nothing_is_told_by_default():
    assert answered(response_headers()) == ({"x-went-into-resp-headers": "true"}, [])


def test_headers_of_a_model_server_never_pass():
    setting, removed = answered(response_headers(**FORGED), decision_headers=True)
    assert (setting[ENDPOINT], removed) == ("a=10.0.0.1:8000", [])  # overwritten
    assert answered(response_headers(**FORGED)) == ({"x-went-into-resp-headers": "true"}, [ENDPOINT, REASON])


def test_headers_of_a_client_reach_no_endpoint():
    (reply,) = new_bench().session(decision_headers=True).receive(request_headers("/v1/models", end=True, **FORGED))
    assert {ENDPOINT, REASON} <= set(common(reply).header_mutation.remove_headers)


def test_fallback_that_served_is_named_with_the_one_it_replaced():
    setting, _ = answered(served_by(response_headers(), "10.0.0.2:8001"), decision_headers=True)
    assert setting[ENDPOINT] == "b2=10.0.0.2:8001"
    assert setting[REASON].endswith("; fallback from a")


def exchange(bench: Bench, traits: GatewayTraits, *responses: ProcessingRequest) -> None:
    session = bench.routed(traits=traits, decision_headers=True)
    for response in responses:
        session.receive(response)
    session.close()


WARNING = "--decision-headers has no effect: the gateway does not show response headers"


@pytest.mark.parametrize("responses", [(), (response_body(b"{}", end=True),)], ids=["nothing shown", "body shown"])
def test_gateway_that_shows_no_response_headers_is_named_once(responses):
    bench, traits = new_bench(), GatewayTraits()
    with structlog.testing.capture_logs() as lines:
        for _ in range(9):
            exchange(bench, traits, *responses)
        assert lines == []  # their clients may have left
        for _ in range(20):
            exchange(bench, traits, *responses)
    (line,) = lines
    assert line["event"].startswith(WARNING)


def test_clients_that_leave_do_not_make_a_gateway_one_that_shows_no_headers():
    bench, traits = new_bench(), GatewayTraits()
    with structlog.testing.capture_logs() as lines:
        exchange(bench, traits, response_headers(), response_body(b"{}", end=True))
        for _ in range(30):
            exchange(bench, traits)
    assert lines == []
