# SPDX-License-Identifier: Apache-2.0
"""What a real Envoy tells model servers and clients of the length of a body, in each body mode."""

import io
from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.support.echo import Echo, chat, echo, gateway_in_front_of

MODES = ("NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED")
LENGTH, CODING = "content-length", "transfer-encoding"
CHAT = "/v1/chat/completions"
LIMIT = 65_536
ANSWER = {"answer-bytes": "100", "answer-as": "whole"}
REWRITE = {"x-llm-d-model-name-rewrite": "a-longer-name"}
LONGER = len("a-longer-name") - len("m")
HEADERS_ALONE = ("NONE", "STREAMED")
"""Modes in which the headers leave before the body is seen."""


def framing(server: Echo) -> tuple[str | None, str | None]:
    """What the last request said of its body: its length, or that it is chunked."""
    headers = server.headers[-1]
    return headers.get(LENGTH), headers.get(CODING)


async def chunks(body: bytes) -> AsyncIterator[bytes]:
    """A body whose length the client does not know."""
    for start in range(0, len(body), 1_000):
        yield body[start : start + 1_000]


@pytest.mark.parametrize("mode", MODES)
async def test_model_server_is_told_the_length_of_every_body_that_was_seen_whole(mode):
    async with (
        echo() as server,
        gateway_in_front_of(server, modes={"request_body_mode": mode}, buffer_limit_bytes=LIMIT) as gateway,
        aiohttp.ClientSession(gateway.url, headers={**ANSWER, "content-type": "application/json"}) as client,
    ):

        async def arrives(data: object, path: str = CHAT, **headers: str) -> tuple[str | None, str | None]:
            async with client.post(path, data=data, headers=headers) as response:
                assert response.status == 200, await response.text()
            return framing(server)

        body = chat(10_000)
        assert await arrives(io.BytesIO(body)) == ("10000", None)
        assert await arrives(b"", "/raw") == ("0", None)
        if mode in HEADERS_ALONE:
            assert await arrives(chunks(body)) == (None, "chunked")
            assert await arrives(io.BytesIO(body), **REWRITE) == ("10000", None)  # the body stays as it is
        else:
            assert await arrives(chunks(body)) == ("10000", None)
            assert await arrives(chunks(b""), "/raw") == ("0", None)
            for data in (b"", chunks(b"")):  # no such API takes an empty body
                async with client.post(CHAT, data=data) as response:
                    assert response.status == 400
                    assert "the request has no body" in await response.text()
            for data in (io.BytesIO(body), chunks(body)):
                assert await arrives(data, **REWRITE) == (str(10_000 + LONGER), None)
        async with client.get("/v1/models") as response:
            assert response.status == 200
        assert framing(server) == (None, None)


async def test_length_of_a_body_that_exceeds_a_partial_buffer_is_the_clients_or_none():
    body = chat(4 * LIMIT)
    async with (
        echo() as server,
        gateway_in_front_of(
            server, modes={"request_body_mode": "BUFFERED_PARTIAL"}, buffer_limit_bytes=LIMIT
        ) as gateway,
        aiohttp.ClientSession(gateway.url, headers=ANSWER) as client,
    ):
        for headers, expected in (({}, (str(len(body)), None)), (REWRITE, (None, "chunked"))):
            async with client.post(CHAT, data=io.BytesIO(body), headers=headers) as response:
                assert response.status == 200
            assert framing(server) == expected


@pytest.mark.parametrize("mode", MODES)
async def test_client_is_told_the_length_of_a_response_that_is_not_changed(mode):
    async with (
        echo() as server,
        gateway_in_front_of(server, modes={"response_body_mode": mode}) as gateway,
        aiohttp.ClientSession(gateway.url, headers=ANSWER) as client,
    ):

        async def answered(**headers: str) -> tuple[str | None, str | None]:
            async with client.post(CHAT, data=chat(100), headers=headers) as response:
                assert len(await response.read()) == 100
                return response.headers.get(LENGTH), response.headers.get(CODING)

        assert await answered() == ("100", None)
        assert await answered(**{"answer-as": "stream"}) == (None, "chunked")
        # The model's name is put back wherever it stands, in bodies that the picker is shown.
        unseen = mode == "NONE"
        assert await answered(**REWRITE) == (("100", None) if unseen else (None, "chunked"))
