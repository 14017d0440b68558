# SPDX-License-Identifier: Apache-2.0
"""An Envoy that traces requests itself names its span in its call to the picker, not in the headers that it shows."""

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from epp.lab.gateway.bootstrap import bootstrap_dict
from epp.lab.gateway.settings import GatewaySettings
from tests.support.commands import command
from tests.support.config_files import picker_config
from tests.support.echo import Echo, chat, echo
from tests.support.otlp import Collector, collector
from tests.support.own_envoy import own_envoy
from tests.support.ports import reserved_ports
from tests.support.serving import ANY_PORT, PLAIN, served_by
from tests.support.waiting import until

CLIENTS_TRACE, CLIENTS_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONFIG = picker_config("""
plugins: [{type: queue-scorer}]
dataLayer: {injectDefaults: false}
""")


def traced(config: dict, collector_port: int, percent: float) -> dict:
    """The configuration with Envoy's own tracer, which records so many requests, and sends each span at once."""
    config["layered_runtime"]["layers"].append(
        {"name": "tracing", "static_layer": {"tracing.opentelemetry.min_flush_spans": 1}}
    )
    otel = {
        "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
        "grpc_service": {"envoy_grpc": {"cluster_name": "collector"}},
        "service_name": "edge",
    }
    provider = {"name": "envoy.tracers.opentelemetry", "typed_config": otel}
    address = {"socket_address": {"address": "127.0.0.1", "port_value": collector_port}}
    resources = config["static_resources"]
    options = "typed_extension_protocol_options"
    http2 = next(each[options] for each in resources["clusters"] if "http2_protocol_options" in json.dumps(each))
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": address}}]}]
    assignment = {"cluster_name": "collector", "endpoints": endpoints}
    resources["clusters"].append({"name": "collector", options: http2, "load_assignment": assignment})
    for chain in resources["listeners"][0]["filter_chains"]:
        for network_filter in chain["filters"]:
            network_filter["typed_config"]["tracing"] = {"provider": provider, "random_sampling": {"value": percent}}
    return config


@dataclass
class Setup:
    received: Collector
    server: Echo
    url: str

    async def ask(self, **headers: str) -> str:
        """Send a request; return the `traceparent` that the model server got."""
        given = {"content-type": "application/json", "answer-bytes": "30", "answer-as": "whole", **headers}
        async with aiohttp.ClientSession() as http, http.post(self.url, data=chat(400), headers=given) as response:
            assert response.status == 200
            await response.read()
        return self.server.headers[-1]["traceparent"]


@contextlib.asynccontextmanager
async def behind_a_gateway_that_traces(
    directory: Path, *flags: str, percent: float = 100, sampler: str = "always_off"
) -> AsyncIterator[Setup]:
    """A picker that records the traces of others by what they say, and its own by the sampler."""
    async with contextlib.AsyncExitStack() as stack:
        received, server = await stack.enter_async_context(collector()), await stack.enter_async_context(echo())
        variables = {
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_TRACES_SAMPLER": f"parentbased_{sampler}",
            "OTEL_EXPORTER_OTLP_ENDPOINT": received.address,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }
        given = (f"--endpoints=only={server.address}", f"--config-text={CONFIG}", PLAIN, *ANY_PORT, *flags)
        picker = await served_by(await stack.enter_async_context(command("serve", *given, **variables)))
        (port,) = stack.enter_context(reserved_ports(1))
        settings = GatewaySettings(listen_port=port, picker_address=f"127.0.0.1:{picker.grpc_port}")
        config = traced(bootstrap_dict(settings), int(received.address.rpartition(":")[2]), percent)
        await stack.enter_async_context(own_envoy(config, directory, port))
        url = f"http://127.0.0.1:{port}/v1/chat/completions"

        async def serves() -> bool:
            answer = {"answer-bytes": "1", "answer-as": "whole"}
            async with aiohttp.ClientSession(headers=answer) as http, http.get(url.replace("v1", "none")) as response:
                return response.status == 200

        await until(serves, "the gateway serves")
        yield Setup(received, server, url)


@pytest.mark.parametrize("flags", [(), ("--ignore-client-headers=trace-context",)])
async def test_spans_are_below_that_of_the_gateway_whatever_the_client_sent(tmp_path, flags):
    async with behind_a_gateway_that_traces(tmp_path, *flags) as setup:
        await assert_below_that_of_the_gateway(setup, "")
        await assert_below_that_of_the_gateway(setup, f"00-{CLIENTS_TRACE}-{CLIENTS_SPAN}-01")


async def assert_below_that_of_the_gateway(setup: Setup, clients: str) -> None:
    told = await setup.ask(**({"traceparent": clients} if clients else {}))
    trace_id = told.split("-")[1]
    if clients:
        assert trace_id == CLIENTS_TRACE
    await until(
        lambda: {"llm-d-epp", "edge"} <= {str(each.resource["service.name"]) for each in setup.received.of(trace_id)},
        "spans of both have come",
    )
    spans = {each.span.span_id: each for each in setup.received.of(trace_id)}
    (request,) = (each for each in spans.values() if each.name == "gateway.request")
    await until(
        lambda: request.span.parent_span_id in {each.span.span_id for each in setup.received.of(trace_id)},
        "the gateway's span of its call has come",
    )
    (parent,) = (each for each in setup.received.of(trace_id) if each.span.span_id == request.span.parent_span_id)
    assert parent.resource["service.name"] == "edge"


async def test_requests_that_the_gateway_does_not_record_are_not_recorded(tmp_path):
    async with behind_a_gateway_that_traces(tmp_path, percent=0, sampler="always_on") as setup:
        told = await setup.ask()
        assert told.endswith("-00")
        forced = await setup.ask(**{"x-client-trace-id": "c"})
        assert forced.endswith("-01")
        await until(lambda: setup.received.of(forced.split("-")[1]), "the other one is recorded")
        assert {each.trace_id for each in setup.received.spans} == {forced.split("-")[1]}
