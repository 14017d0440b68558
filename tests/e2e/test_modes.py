# SPDX-License-Identifier: Apache-2.0
"""Pairs of body modes through a real Envoy: each body arrives as it was sent, both ways."""

import io
import itertools
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from epp.framework.snapshot import IN_FLIGHT, SERVED
from epp.lab.gateway.settings import body_modes
from tests.support.echo import MIB, chat, digest, echo, gateway_in_front_of, noise
from tests.support.waiting import until

SIZES = (0, 1, 62_000, 62_001, 5_000_000)


NONE, STREAMED, BUFFERED = "NONE", "STREAMED", "BUFFERED"
PARTIAL, DUPLEX = "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED"
SKIP, DEFAULT = "SKIP", "DEFAULT"


def buffer_limit(*modes: str) -> int:
    """What a whole body fits in, but where a part of it is the point."""
    return MIB if PARTIAL in modes else 16 * MIB


PAIRS = [
    pair
    for pair in itertools.product((NONE, STREAMED, BUFFERED, PARTIAL, DUPLEX), repeat=2)
    if len({*pair}) == 1 or DUPLEX in pair
]
"""The others are rare in gateways, and each half of an exchange goes by its own mode."""


@pytest.mark.parametrize(("request_mode", "response_mode"), PAIRS)
async def test_bodies_pass_unchanged(request_mode, response_mode):
    limit = buffer_limit(request_mode, response_mode)
    modes = body_modes(request_mode, response_mode)
    async with (
        echo() as server,
        gateway_in_front_of(server, modes=modes, buffer_limit_bytes=limit) as gateway,
        aiohttp.ClientSession() as client,
    ):
        sent = [("/raw", noise(size)) for size in SIZES] + [
            ("/v1/chat/completions", chat(size)) for size in SIZES if size > 1
        ]
        if BUFFERED in (request_mode, response_mode):
            sent = [(path, body) for path, body in sent if len(body) <= limit]  # Envoy's own limit on whole bodies
        for path, body in sent:
            for way in ("whole", "stream"):
                expected = noise(len(body))
                headers = {"answer-bytes": str(len(body)), "answer-as": way, "content-type": "application/json"}
                async with client.post(gateway.url + path, data=io.BytesIO(body), headers=headers) as response:
                    answer = await response.read()
                    assert response.status == 200, answer[:500]
                assert digest(answer) == digest(expected)
                assert server.arrived.pop() == (path, digest(body))
        async with client.get(
            f"{gateway.url}/v1/models", headers={"answer-bytes": "3", "answer-as": "whole"}
        ) as response:
            assert (response.status, await response.read()) == (200, noise(3))
        store = gateway.picker.store
        await until(lambda: store.snapshot().column(IN_FLIGHT)[0] == 0, "nothing is in flight")
        assert store.snapshot().column(SERVED)[0] == 2 * len(sent) + 1


@pytest.mark.parametrize("mode", [DUPLEX, BUFFERED, PARTIAL])
async def test_rewritten_body_arrives_whole(mode):
    limit = 65_536 if mode == PARTIAL else MIB
    headers = {"answer-bytes": "1", "answer-as": "whole", "x-llm-d-model-name-rewrite": "a-longer-name"}

    async def chunks(body: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(body), 10_000):
            yield body[start : start + 10_000]

    async with (
        echo() as server,
        gateway_in_front_of(server, modes={"request_body_mode": mode}, buffer_limit_bytes=limit) as gateway,
        aiohttp.ClientSession() as client,
    ):
        for body, claims_length in itertools.product((chat(1_000), chat(300_000)), (True, False)):
            data = io.BytesIO(body) if claims_length else chunks(body)
            async with client.post(f"{gateway.url}/v1/chat/completions", data=data, headers=headers) as response:
                assert response.status == 200
            assert server.arrived.pop() == (
                "/v1/chat/completions",
                digest(body.replace(b'"m"', b'"a-longer-name"')),
            ), claims_length


@pytest.mark.parametrize(
    "modes",
    [
        {"request_body_mode": DUPLEX, "response_body_mode": STREAMED, "response_header_mode": SKIP},
        {"request_body_mode": BUFFERED, "response_body_mode": BUFFERED, "response_header_mode": SKIP},
        {
            "request_body_mode": BUFFERED,
            "response_body_mode": STREAMED,
            "request_trailer_mode": SKIP,
            "response_trailer_mode": SKIP,
        },
        {
            "request_body_mode": STREAMED,
            "response_body_mode": STREAMED,
            "request_header_mode": DEFAULT,
            "response_header_mode": DEFAULT,
            "request_trailer_mode": DEFAULT,
            "response_trailer_mode": DEFAULT,
        },
    ],
    ids=lambda modes: "-".join(f"{side}:{mode}" for side, mode in modes.items()),
)
async def test_bodies_pass_unchanged_where_headers_or_trailers_are_not_shown(modes):
    async with (
        echo() as server,
        gateway_in_front_of(server, modes=modes, buffer_limit_bytes=16 * MIB) as gateway,
        aiohttp.ClientSession() as client,
    ):
        body = json.dumps({"model": "m", "prompt": "p" * 62_001}).encode()
        for way in ("whole", "stream"):
            headers = {"answer-bytes": "62001", "answer-as": way, "content-type": "application/json"}
            async with client.post(f"{gateway.url}/v1/completions", data=io.BytesIO(body), headers=headers) as response:
                assert digest(await response.read()) == digest(noise(62_001))
            assert server.arrived.pop() == ("/v1/completions", digest(body))
        store = gateway.picker.store
        await until(lambda: store.snapshot().column(IN_FLIGHT)[0] == 0, "nothing is in flight")


async def test_request_headers_that_are_not_shown_are_refused_by_the_gateway():
    """They leave before a destination is named: Envoy itself answers 503, and the picker says what to set."""
    modes = {"request_body_mode": BUFFERED, "response_body_mode": STREAMED, "request_header_mode": SKIP}
    async with (
        echo() as server,
        gateway_in_front_of(server, modes=modes) as gateway,
        aiohttp.ClientSession() as client,
        client.post(f"{gateway.url}/v1/completions", json={"model": "m", "prompt": "p"}) as response,
    ):
        assert response.status == 503
        assert server.arrived == []
