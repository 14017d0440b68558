# SPDX-License-Identifier: Apache-2.0
"""Streams that no gateway would send: each ends cleanly, and the next one is served."""

import asyncio

import grpc

from tests.support.exchanges import BODY, request_body, request_headers, response_body, response_headers
from tests.support.serving import PATH, PLAIN, destination_of, exchange, serving


async def test_flood_of_broken_streams_is_served_but_not_written_down_one_by_one(sim):
    async with serving(sim, PLAIN) as picker, picker.channel() as channel:

        async def broken() -> grpc.StatusCode:
            call = channel.stream_stream(PATH, request_serializer=bytes, response_deserializer=bytes)()
            await call.write(b"")  # a message that is none of the parts of an exchange
            return await call.code()

        for _ in range(10):
            assert set(await asyncio.gather(*(broken() for _ in range(50)))) == {grpc.StatusCode.INVALID_ARGUMENT}
        assert await destination_of(channel) == sim.address
        picker.command.terminate()
        await picker.command.end()
    lines = [line for line in picker.command.err if "stream closed: protocol error" in line]
    assert 20 <= len(lines) < 100


async def test_body_whose_pieces_are_over_the_limit_is_413(sim):
    async with serving(sim, PLAIN, "--max-request-body=1Mi") as picker, picker.channel() as channel:
        call = exchange(channel)
        await call.write(request_headers())
        for _ in range(3):
            await call.write(request_body(b"x" * 400_000, end=False))
        refusal = (await call.read()).immediate_response
        assert refusal.status.code == 413
        assert await call.code() is grpc.StatusCode.OK
        assert await destination_of(channel) == sim.address


async def test_gateway_that_says_no_mode_and_waits_is_answered(sim):
    async with serving(sim, PLAIN) as picker, picker.channel() as channel:
        call = exchange(channel)
        await call.write(request_headers())
        answer = (await call.read()).request_headers.response  # without having sent a body
        setting = {field.header.key: field.header.raw_value for field in answer.header_mutation.set_headers}
        assert setting["x-gateway-destination-endpoint"].decode() == sim.address
        await call.write(request_body(BODY))
        assert (await call.read()).WhichOneof("response") == "request_body"
        await call.write(response_headers())
        assert (await call.read()).WhichOneof("response") == "response_headers"
        await call.write(response_body(b"x", end=True))
        assert (await call.read()).WhichOneof("response") == "response_body"
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
