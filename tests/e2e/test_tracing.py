# SPDX-License-Identifier: Apache-2.0
"""Traces of requests through a real Envoy, as a receiver of OTLP gets them."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from tests.support.config_files import picker_config
from tests.support.echo import Echo, chat, echo
from tests.support.gateways import Gateway, gateway_of
from tests.support.otlp import ERROR, Collector, Received, collector
from tests.support.ports import reserved_ports
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE_ID}-{PARENT_ID}-01"
UNSAMPLED = f"00-{TRACE_ID}-{PARENT_ID}-00"
ALWAYS = {"OTEL_TRACES_SAMPLER": "parentbased_always_on", "OTEL_BSP_SCHEDULE_DELAY": "50"}
CANARY = "sturgeon"
TREE = {
    "gateway.request": {
        "gateway.request_orchestration": {
            "llm_d.epp.producer.approx-prefix-cache-producer": {},
            "run_scheduler_profile": {
                "llm_d.epp.scoring": {"llm_d.epp.scorer.queue-scorer": {}, "llm_d.epp.scorer.prefix-cache-scorer": {}},
                "pick_endpoints": {},
            },
        }
    }
}
CONFIG = picker_config("""
plugins: [{type: openai-parser}, {type: queue-scorer}, {type: prefix-cache-scorer}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer, weight: 2}, {pluginRef: prefix-cache-scorer}]}]
dataLayer: {injectDefaults: false}
""")


@asynccontextmanager
async def traced(received: Collector, server: Echo, *flags: str, **more: str) -> AsyncIterator[Gateway]:
    """A gateway in front of the server whose picker sends its traces to that receiver."""
    variables = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": received.address, **ALWAYS, **more}
    config = f"--config-text={CONFIG}"
    async with gateway_of(f"--endpoints=only={server.address}", config, *flags, **variables) as gateway:
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def _shared() -> AsyncIterator[tuple[Collector, Echo, Gateway]]:
    async with collector() as received, echo() as server, traced(received, server) as gateway:
        yield received, server, gateway


@pytest.fixture
def setup(_shared: tuple[Collector, Echo, Gateway]) -> tuple[Collector, Echo, Gateway]:
    """A receiver and a model server, both empty, and the gateway between them, which tests share."""
    received, server, _ = _shared
    for kept in (received.spans, server.headers, server.arrived):
        kept.clear()
    return _shared


async def ask(gateway: Gateway, body: bytes = chat(400), **headers: str) -> int:
    """Send a request; return the status of the response, which has been read."""
    given = {"content-type": "application/json", "answer-bytes": "30", "answer-as": "whole", **headers}
    return (await gateway.post("/v1/chat/completions", body, **given)).status


async def complete(received: Collector, trace_id: str) -> dict[str, Received]:
    """The spans of a trace by name, once the one that ends last has come."""
    await until(lambda: any(each.name == "gateway.request" for each in received.of(trace_id)), "the trace has come")
    return {each.name: each for each in received.of(trace_id)}


async def test_trace_of_a_client_goes_on_through_the_picker_to_the_model_server(setup):
    received, server, gateway = setup
    assert await ask(gateway, traceparent=SAMPLED, tracestate="vendor=1", **{"x-request-id": "first"}) == 200
    spans = await complete(received, TRACE_ID)
    assert received.tree(TRACE_ID) == TREE
    line = json.loads(await gateway.process.says('"x-request-id":"first"'))
    request = spans["gateway.request"]
    assert request.span.parent_span_id.hex() == PARENT_ID
    (told,) = server.headers
    assert told["traceparent"] == f"00-{TRACE_ID}-{request.span.span_id.hex()}-01"
    assert told["tracestate"] == "vendor=1"
    assert (line["trace_id"], line["span_id"]) == (TRACE_ID, request.span.span_id.hex())


async def test_spans_have_the_attributes_of_the_reference_and_lie_within_each_other(setup):
    received, server, gateway = setup
    await ask(gateway, traceparent=SAMPLED, **{"x-request-id": "r1"})
    spans = await complete(received, TRACE_ID)
    request = spans["gateway.request"]
    assert request.resource["service.name"] == "llm-d-epp"
    assert {each.scope for each in spans.values()} == {"llm-d-router"}
    asked = {"gen_ai.request.model": "m", "gen_ai.request.id": "r1"}
    assert asked.items() <= request.attributes.items()
    assert (request.attributes["http.response.status_code"], request.status) == (200, "")
    assert f"{request.attributes['server.address']}:{request.attributes['server.port']}" == server.address
    orchestration = spans["gateway.request_orchestration"]
    assert {**asked, "target_model": "m", "request_prio": 0}.items() <= orchestration.attributes.items()
    profile = spans["run_scheduler_profile"]
    assert profile.attributes["llm_d.epp.scheduling.profile.name"] == "default"
    prefix = "llm_d.epp.scorer"
    assert spans[f"{prefix}.queue-scorer"].attributes == {
        f"{prefix}.type": "queue-scorer",
        f"{prefix}.name": "queue-scorer",
        f"{prefix}.weight": 2.0,
        f"{prefix}.candidate_endpoints": 1,
        f"{prefix}.endpoints_scored": 1,
        f"{prefix}.score.max": 1.0,
        f"{prefix}.score.avg": 1.0,
    }
    assert spans["llm_d.epp.scoring"].attributes["llm_d.epp.scorer.count"] == 2
    picked = spans["pick_endpoints"].attributes
    assert (picked["llm_d.epp.picker.candidate_endpoints"], picked["llm_d.epp.picker.top_endpoints"]) == (1, ["only"])
    for inner, outer in (
        ("gateway.request_orchestration", "gateway.request"),
        ("run_scheduler_profile", "gateway.request_orchestration"),
        ("llm_d.epp.scoring", "run_scheduler_profile"),
        ("llm_d.epp.scorer.queue-scorer", "llm_d.epp.scoring"),
        ("pick_endpoints", "run_scheduler_profile"),
    ):
        assert spans[inner].is_within(spans[outer]), (inner, outer)


async def test_trace_that_its_client_does_not_record_is_passed_on_and_not_exported(setup):
    received, server, gateway = setup
    await ask(gateway, traceparent=UNSAMPLED)
    await ask(gateway, traceparent=SAMPLED)
    await complete(received, TRACE_ID)
    assert [each.name for each in received.spans].count("gateway.request") == 1
    passed_on, recorded = (each["traceparent"] for each in server.headers)
    assert re.fullmatch(rf"00-{TRACE_ID}-[0-9a-f]{{16}}-00", passed_on)
    assert recorded.endswith("-01")


async def test_request_without_a_trace_begins_one(setup):
    received, server, gateway = setup
    await ask(gateway)
    (told,) = server.headers
    _, trace_id, span_id, flags = told["traceparent"].split("-")
    spans = await complete(received, trace_id)
    assert int(flags, 16) & 1
    assert spans["gateway.request"].span.span_id.hex() == span_id
    assert not spans["gateway.request"].span.parent_span_id


async def test_refused_requests_are_errors_with_the_reason(setup):
    received, server, gateway = setup
    assert await ask(gateway, b'{"messages": []}', traceparent=SAMPLED) == 400
    spans = await complete(received, TRACE_ID)
    request, orchestration = spans["gateway.request"], spans["gateway.request_orchestration"]
    assert (request.status, orchestration.status) == (ERROR, ERROR)
    assert request.attributes["llm_d.epp.request.outcome"] == "refused"
    assert request.attributes["http.response.status_code"] == 400
    assert request.span.status.message.startswith('"messages" is missing or empty')
    assert not server.arrived


async def test_no_text_of_a_prompt_is_in_a_span(setup):
    received, _, gateway = setup
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": CANARY}]}).encode()
    broken = body[:-1] + b', "messages": 7}'
    await ask(gateway, body, traceparent=SAMPLED)
    await ask(gateway, broken, traceparent=SAMPLED)
    await until(lambda: [each.name for each in received.spans].count("gateway.request") == 2, "both have come")
    assert CANARY not in str([each.span for each in received.spans])


async def test_headers_of_clients_do_not_count_where_they_are_ignored():
    async with (
        collector() as received,
        echo() as server,
        traced(received, server, "--ignore-client-headers=trace-context") as gateway,
    ):
        await ask(gateway, traceparent=SAMPLED, tracestate="vendor=1")
        (told,) = server.headers
        trace_id = told["traceparent"].split("-")[1]
        spans = await complete(received, trace_id)
    assert trace_id != TRACE_ID
    assert "tracestate" not in told
    assert not spans["gateway.request"].span.parent_span_id


async def test_receiver_that_is_down_is_said_and_its_return_too():
    with reserved_ports(1) as (port,):
        absent = Collector(address=f"http://127.0.0.1:{port}")
        short = {"OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
        async with echo() as server, traced(absent, server, **short) as gateway:
            assert await ask(gateway, traceparent=SAMPLED) == 200
            line = json.loads(await gateway.process.says('"msg":"traces cannot be exported"'))
            assert "OTEL_EXPORTER_OTLP_ENDPOINT" in line["remedy"]
            _, health = await gateway.health()
            assert health["ready"]
            assert health["tracing"]["failed_spans"] == len(flat(TREE))
            assert health["tracing"]["failing"]
            assert await gateway.total("trace_spans_total", "outcome=failed") == len(flat(TREE))
            async with collector(port) as received:

                async def has_come() -> bool:
                    await ask(gateway, traceparent=SAMPLED)
                    return bool(received.of(TRACE_ID))

                await until(has_come, "a trace has come again")  # gRPC waits before it connects again
                await gateway.process.says('"msg":"traces are exported again"')
            assert not any("StatusCode.UNAVAILABLE" in line for line in gateway.process.err)


async def test_picker_that_stops_sends_what_it_has():
    async with collector() as received, echo() as server:
        async with traced(received, server, OTEL_BSP_SCHEDULE_DELAY="600000") as gateway:
            await ask(gateway, traceparent=SAMPLED)
            gateway.process.terminate()
            await gateway.process.end()
        assert received.tree(TRACE_ID) == TREE


async def test_without_an_exporter_nothing_is_changed():
    async with echo() as server, gateway_of(f"--endpoints=only={server.address}", f"--config-text={CONFIG}") as gateway:
        await ask(gateway, traceparent=SAMPLED)
        _, health = await gateway.health()
    (told,) = server.headers
    assert told["traceparent"] == SAMPLED
    assert "tracing" not in health


def flat(tree: dict) -> list[str]:
    return [name for each, below in tree.items() for name in (each, *flat(below))]
