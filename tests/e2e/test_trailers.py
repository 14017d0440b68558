# SPDX-License-Identifier: Apache-2.0
"""A request that ends with trailers, over HTTP/2, through a real Envoy."""

import asyncio
import json

import h2.config
import h2.connection
import h2.events
import pytest

from epp.lab.gateway.local import LocalGateway
from tests.support.echo import chat, digest, echo, gateway_in_front_of, noise

MODES = ["FULL_DUPLEX_STREAMED", "BUFFERED", "STREAMED"]


async def post(gateway: LocalGateway, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    return await post_with_trailers(gateway.envoy.address.host, gateway.envoy.address.port, path, body, headers)


async def post_with_trailers(
    host: str, port: int, path: str, body: bytes, headers: dict[str, str]
) -> tuple[int, bytes]:
    """Send one request whose body is ended by trailers, small enough for the first flow-control window."""
    reader, writer = await asyncio.open_connection(host, port)
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    fields = [(":method", "POST"), (":path", path), (":scheme", "http"), (":authority", host), *headers.items()]
    client.send_headers(1, fields)
    for start in range(0, len(body), 16_000):
        client.send_data(1, body[start : start + 16_000])
    client.send_headers(1, [("x-checksum", "abc")], end_stream=True)
    writer.write(client.data_to_send())
    status, received, ended = 0, b"", False
    try:
        async with asyncio.timeout(20):
            while not ended:
                for event in client.receive_data(await reader.read(65_536)):
                    if isinstance(event, h2.events.ResponseReceived):
                        status = int(dict(event.headers)[b":status"])
                    elif isinstance(event, h2.events.DataReceived):
                        received += event.data
                        client.acknowledge_received_data(event.flow_controlled_length, 1)
                    elif isinstance(event, h2.events.StreamEnded):
                        ended = True
                writer.write(client.data_to_send())
    finally:
        writer.close()
        await writer.wait_closed()
    return status, received


@pytest.mark.parametrize("mode", MODES)
async def test_request_with_trailers_arrives_and_is_answered(mode):
    body = chat(40_000)
    headers = {"answer-bytes": "100", "answer-as": "stream", "content-type": "application/json"}
    async with echo() as server, gateway_in_front_of(server, modes={"request_body_mode": mode}) as gateway:
        status, received = await post(gateway, "/v1/chat/completions", body, headers)
        assert status == 200
        assert len(received) == 100
        assert server.arrived == [("/v1/chat/completions", digest(body))]


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
async def test_rewritten_body_before_trailers_is_chunked(mode):
    """HTTP/1.1 has no trailers beside a content-length, and the client's is that of another body."""
    body = chat(40_000)
    headers = {"answer-bytes": "1", "answer-as": "whole", "x-llm-d-model-name-rewrite": "a-longer-name"}
    async with echo() as server, gateway_in_front_of(server, modes={"request_body_mode": mode}) as gateway:
        claims = {"content-length": str(len(body)), **headers}
        status, _ = await post(gateway, "/v1/chat/completions", body, claims)
        assert status == 200
        assert server.arrived == [("/v1/chat/completions", digest(body.replace(b'"m"', b'"a-longer-name"')))]
        assert "content-length" not in server.headers[0]
        assert server.headers[0]["transfer-encoding"] == "chunked"


async def test_trailers_without_a_body_are_answered():
    headers = {"answer-bytes": "1", "answer-as": "whole"}
    async with echo() as server, gateway_in_front_of(server) as gateway:
        assert await post(gateway, "/raw", b"", headers) == (200, noise(1))
        assert server.arrived == [("/raw", digest(b""))]


async def test_refused_request_with_trailers_gets_its_answer():
    async with echo() as server, gateway_in_front_of(server) as gateway:
        json_content = {"content-type": "application/json"}
        status, received = await post(gateway, "/v1/chat/completions", b"{", json_content)
        assert status == 400
        assert json.loads(received)["error"]["type"] == "invalid_request_error"
        assert server.arrived == []
