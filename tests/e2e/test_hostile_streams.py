# SPDX-License-Identifier: Apache-2.0
"""Streams that no gateway would send: each ends cleanly, and the next one is served."""

import asyncio
import random
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

from epp.extproc.wire import METHOD, SERVICE
from tests.support.exchanges import BODY, request_body, request_headers, response_body, response_headers
from tests.support.serving import PLAIN, Served, destination_of, exchange, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(module_sim) -> AsyncIterator[tuple[Served, str]]:
    async with serving(module_sim, PLAIN, "--max-request-body=1Mi") as served:
        yield served, module_sim.address


def raw_exchange(channel: grpc.aio.Channel) -> grpc.aio.StreamStreamCall[bytes, bytes]:
    return channel.stream_stream(f"/{SERVICE}/{METHOD}", request_serializer=bytes, response_deserializer=bytes)()


async def test_bytes_that_are_no_message_end_the_stream_and_no_other(served):
    picker, address = served
    random_bytes = random.Random(1)
    async with picker.channel() as channel:
        for size in (1, 7, 100, 5_000):
            call = raw_exchange(channel)
            await call.write(b"\xff" + random_bytes.randbytes(size))
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert await call.details() == f"a message of {size + 1} bytes that is no ProcessingRequest"
        assert await destination_of(channel) == address
    assert picker.command.running


async def test_messages_out_of_order_are_an_invalid_argument_that_says_why(served):
    picker, address = served
    async with picker.channel() as channel:
        call = exchange(channel)
        await call.write(request_headers())
        await call.write(request_headers())
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "unexpected request_headers" in (await call.details() or "")
        assert await destination_of(channel) == address


async def test_flood_of_broken_streams_is_served_but_not_written_down_one_by_one(module_sim):
    async with serving(module_sim, PLAIN) as picker, picker.channel() as channel:

        async def broken() -> grpc.StatusCode:
            call = raw_exchange(channel)
            await call.write(b"")  # a message that is none of the parts of an exchange
            return await call.code()

        for _ in range(10):
            assert set(await asyncio.gather(*(broken() for _ in range(50)))) == {grpc.StatusCode.INVALID_ARGUMENT}
        assert await destination_of(channel) == module_sim.address
        picker.command.terminate()
        await picker.command.end()
    lines = [line for line in picker.command.err if "stream closed: protocol error" in line]
    assert 20 <= len(lines) < 100


async def test_body_over_the_limit_is_413_and_a_message_over_it_ends_the_stream(served):
    picker, address = served
    async with picker.channel() as channel:
        call = exchange(channel)
        await call.write(request_headers())
        for _ in range(3):
            await call.write(request_body(b"x" * 400_000, end=False))
        refusal = (await call.read()).immediate_response
        assert refusal.status.code == 413
        assert await call.code() is grpc.StatusCode.OK
        call = exchange(channel)
        await call.write(request_headers())
        await call.write(request_body(b"x" * 4_000_000, end=True))
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await destination_of(channel) == address


async def test_gateway_that_says_no_mode_and_waits_is_answered(module_sim):
    # A picker of its own: it learns from the streams of a gateway which modes that one has.
    async with serving(module_sim, PLAIN) as picker, picker.channel() as channel:
        call = exchange(channel)
        await call.write(request_headers())
        answer = (await call.read()).request_headers.response  # without having sent a body
        setting = {field.header.key: field.header.raw_value for field in answer.header_mutation.set_headers}
        assert setting["x-gateway-destination-endpoint"].decode() == module_sim.address
        await call.write(request_body(BODY))
        assert (await call.read()).WhichOneof("response") == "request_body"
        await call.write(response_headers())
        assert (await call.read()).WhichOneof("response") == "response_headers"
        await call.write(response_body(b"x", end=True))
        assert (await call.read()).WhichOneof("response") == "response_body"
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK


async def test_stream_that_ends_at_once_is_no_error(served: tuple[Served, str]):
    picker, address = served
    async with picker.channel() as channel:
        call = exchange(channel)
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        assert await destination_of(channel) == address
