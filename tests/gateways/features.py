# SPDX-License-Identifier: Apache-2.0
"""What operators ask of a gateway, for a second release beside that of the example: `llama`.

Its picker has a certificate and sends its spans to a collector; it prefers the servers whose label `part` a client
names, and has a fallback. Its pool has a server that refuses connections when it is told to.
"""

import base64
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.gateways.place import PATIENCE_SECONDS, Answer, Place, addresses_of
from tests.support.certificates import new_pair
from tests.support.kube import manifests as write
from tests.support.kube.client import Manifest
from tests.support.otlp import Collector, collector
from tests.support.waiting import until
from tests.support.world import MODEL

RELEASE = "llama"
SUBSET = "x-subset"
LUA = f"""
function envoy_on_request(handle)
  local subset = handle:headers():get("{SUBSET}")
  if subset then
    handle:streamInfo():dynamicMetadata():set(
      "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", subset)
  end
end
"""
"""The endpoints among which the picker may choose, as a gateway says it, from a header of these tests."""

VALUES = {
    "router": {
        "epp": {
            "flags": {"secure-serving": True, "cert-path": "/certs"},
            "volumes": [{"name": "certs", "secret": {"secretName": "picker"}}],
            "volumeMounts": [{"name": "certs", "mountPath": "/certs"}],
            "pluginsConfig": {
                "apiVersion": "llm-d.ai/v1alpha1",
                "kind": "EndpointPickerConfig",
                "plugins": [
                    {
                        "type": "header-label-affinity-scorer",
                        "parameters": {"headerName": "x-part", "labelKey": "part"},
                    },
                    {"type": "max-score-picker", "parameters": {"maxNumOfEndpoints": 2}},
                ],
            },
        },
        "tracing": {"enabled": True, "sampling": {"samplerArg": "1.0"}},
    }
}
FILTERS = [
    {
        "type": "RequestHeaderModifier",
        "requestHeaderModifier": {"set": [{"name": "x-added", "value": "yes"}], "remove": ["x-private"]},
    },
    {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"remove": ["x-upstream-protocol", "x-epp-reason"]}},
]
"""Of the rule `filtered`."""


def rules(backend: Manifest) -> list[Manifest]:
    """Return the rules of the route to the release."""

    def rule(name: str, **more: Any) -> Manifest:
        match = {"path": {"type": "PathPrefix", "value": "/"}, "headers": [{"name": "x-route", "value": name}]}
        return {"matches": [match], "backendRefs": [backend], "timeouts": {"request": "0s"}, **more}

    return [rule(RELEASE), rule("filtered", filters=FILTERS)]


@dataclass(frozen=True)
class World:
    """The release behind a gateway."""

    place: Place
    spans: Collector
    use_http2: Callable[[], Awaitable[object]]
    trust: Callable[[bytes], Awaitable[object]]
    """Makes the gateway take this authority for that of the picker."""
    certificate: bytes

    async def ask(self, *, part: str = RELEASE, rule: str = RELEASE, **headers: str) -> Answer:
        """Return the answer to a request that prefers servers with this label; `_` is `-` in names of headers."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.place.ask(headers={"x-part": part, "x-route": rule, **given})

    async def headers_of(self, answer: Answer) -> dict[str, str]:
        """Return the headers of the last request to the server that answered."""
        return dict((await self.place.record_of(answer))["headers"])

    async def answers(self, status: int = 200) -> None:
        """Wait until a request is answered so; with 200, by the server that the picker chose."""
        addresses = addresses_of(await self.place.kubelet.pods(part=RELEASE))

        async def seen() -> bool:
            answer = await self.ask()
            return answer.status == status and (status != 200 or addresses.get(str(answer.server)) == answer.picked)

        await until(seen, f"a request is answered with {status}", seconds=PATIENCE_SECONDS)


def name_of(place: Place) -> str:
    """Return the name of the picker's Service, which its certificate has."""
    return f"{RELEASE}-epp.{place.space.namespace}.svc"


@asynccontextmanager
async def spans_and_release(place: Place, directory: Path, *files: Path) -> AsyncIterator[tuple[Collector, bytes]]:
    """Install the release and its model servers; give its spans, and the certificate of its picker."""
    key, certificate = new_pair(name_of(place))
    data = {"tls.key": base64.b64encode(key).decode(), "tls.crt": base64.b64encode(certificate).decode()}
    await place.space.apply(write.manifest("v1", "Secret", "picker", data=data))
    values = directory / "values.yaml"
    values.write_text(yaml.safe_dump(VALUES))
    async with collector() as spans:
        await place.serve(2, name=RELEASE, ports=(8100,), front=True)
        await place.serve(1, name="deaf", app=RELEASE, image="deaf-server:test")
        exporter = f"router.tracing.otelExporterEndpoint={spans.address}"
        servers = f"router.modelServers.matchLabels.app={RELEASE}"
        await place.install(exporter, servers, release=RELEASE, files=(*files, values))
        yield spans, certificate


class Basics:
    """Tests that each gateway runs, with a fixture `example`: the example as shipped."""

    @pytest.mark.parametrize("stream", [False, True])
    async def test_endpoint_that_the_picker_chose_answers(self, example, stream):
        addresses = addresses_of(await example.kubelet.pods(app="vllm"))
        answers = [await example.ask(f"prompt {number}", stream=stream) for number in range(30)]
        assert [answer.status for answer in answers] == [200] * 30
        assert [answer.picked for answer in answers] == [addresses[answer.server] for answer in answers]
        assert {answer.server for answer in answers} == set(addresses)
        assert all(answer.body.endswith(b"data: [DONE]\n\n") == stream for answer in answers)

    async def test_endpoint_that_a_client_names_is_not_taken(self, example):
        addresses = addresses_of(await example.kubelet.pods(app="vllm"))
        named = {"x-gateway-destination-endpoint": min(addresses.values())}
        answers = [await example.ask(f"prompt {number}", headers=named) for number in range(20)]
        assert [answer.picked for answer in answers] == [addresses[answer.server] for answer in answers]
        assert len({answer.server for answer in answers}) > 1

    async def test_body_of_a_megabyte_arrives_whole(self, example):
        body = json.dumps({"model": MODEL, "prompt": "hello", "max_tokens": 2, "user": "x" * 1_000_000}).encode()
        answer = await example.ask(whole=body)
        assert answer.status == 200
        assert (await example.record_of(answer))["body_sha256"] == hashlib.sha256(body).hexdigest()

    async def test_refusal_of_the_picker_reaches_the_client(self, example):
        answer = await example.ask(whole=b"no JSON")
        assert answer.status == 400
        assert "error" in json.loads(answer.body)

    async def test_trace_of_the_client_reaches_the_model_server(self, example):
        trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        answer = await example.ask(headers={"traceparent": trace})
        headers = (await example.record_of(answer))["headers"]
        (found,) = [value for name, value in headers if name == "traceparent"]
        assert found.split("-")[1] == trace.split("-")[1]


class Features:
    """Tests that each gateway runs, with a fixture `world` of its own."""

    status_without_picker = 500
    """Answer to a request while the picker is not trusted."""

    async def test_each_route_has_the_picker_of_its_pool(self, world):
        """They share a gateway."""
        for app in ("vllm", RELEASE):
            addresses = addresses_of(await world.place.kubelet.pods(app=app))
            answers = [await world.ask(rule=app) for _ in range(10)]
            assert {answer.status for answer in answers} == {200}
            assert {answer.picked for answer in answers} <= set(addresses.values())

    async def test_access_log_names_the_endpoint(self, world):
        answer = await world.ask()

        async def written() -> bool:
            return any(str(answer.picked) in line for line in await world.place.access_log())

        await until(written, "the line is written", seconds=30)

    async def test_headers_that_the_route_changes_are_changed(self, world):
        answer = await world.ask(rule="filtered", x_private="mine")
        assert answer.status == 200
        assert "x-upstream-protocol" in (await world.ask()).headers
        assert "x-upstream-protocol" not in answer.headers
        assert "x-epp-reason" in answer.headers  # the picker adds it later
        headers = await world.headers_of(answer)
        assert headers["x-added"] == "yes"
        assert "x-private" not in headers
        assert headers["x-gateway-destination-endpoint"].split(",")[0] == answer.picked

    async def test_spans_of_the_picker_are_in_the_trace_of_the_client(self, world):
        trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
        assert (await world.ask(traceparent=f"00-{trace}-{parent}-01")).status == 200
        await until(lambda: bool(world.spans.of(trace)), "the spans are exported", seconds=30)
        roots = {span.span.parent_span_id.hex() for span in world.spans.of(trace)}
        assert parent in roots

    async def test_next_endpoint_of_the_picker_takes_what_the_first_refuses(self, world):
        (deaf,) = await world.place.kubelet.pods(part="deaf")
        address = f"{deaf['status']['podIP']}:8000"
        async with aiohttp.ClientSession() as http, http.get(f"http://{address}/refuse") as told:
            assert told.status == 200
        answer = await world.ask(part="deaf")
        assert answer.status == 200
        first, second = (await world.headers_of(answer))["x-gateway-destination-endpoint"].split(",")
        assert first == address
        assert second.startswith("10.8.")

    async def test_picker_chooses_within_the_subset_that_the_gateway_names(self, world):
        for name, address in addresses_of(await world.place.kubelet.pods(part=RELEASE)).items():
            answers = [await world.ask(**{SUBSET: address}) for _ in range(5)]
            assert {answer.status for answer in answers} == {200}, answers[0].body
            assert {(answer.picked, answer.server) for answer in answers} == {(address, name)}
        nowhere = await world.ask(**{SUBSET: "10.8.255.1:8000"})
        assert nowhere.status == 503

    async def test_protocol_of_the_servers_is_http_2_where_it_is_named(self, world):
        assert (await world.ask()).headers["x-upstream-protocol"] == "HTTP/1.1"
        await world.use_http2()

        async def seen() -> bool:
            return (await world.ask()).headers.get("x-upstream-protocol") == "HTTP/2"

        await until(seen, "servers are asked in HTTP/2", seconds=PATIENCE_SECONDS)

    async def test_picker_of_another_authority_is_not_asked(self, world):
        _, other = new_pair(name_of(world.place))
        await world.trust(other)
        picker = {"app.kubernetes.io/instance": RELEASE}
        await world.place.scale(f"{RELEASE}-epp", 0, **picker)  # with its connections
        await world.place.scale(f"{RELEASE}-epp", 1, **picker)
        answers = [await world.ask() for _ in range(5)]
        assert {(answer.status, answer.picked) for answer in answers} == {(self.status_without_picker, None)}
        await world.trust(world.certificate)
        await world.answers()
        assert (await world.ask()).picked
