# SPDX-License-Identifier: Apache-2.0
"""gRPC's own client in Python against `epp serve`: long, large, cancelled, late, compressed and refused calls."""

import asyncio

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from epp.extproc.wire import SERVICE, ProcessingRequest, ProcessingResponse
from tests.support.exchanges import BODY, request_body, response_body, response_headers
from tests.support.serving import (
    APART,
    PATH,
    PLAIN,
    Exchange,
    Served,
    answer,
    ask,
    destination_of,
    exchange,
    first_message,
    request,
    serving,
)
from tests.support.waiting import read_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1 << 20


async def nothing_under_way(served: Served) -> None:
    def none(page: dict[str, dict[frozenset[str], float]]) -> bool:
        return not any(page.get("llm_d_epp_request_running", {}).values())

    await read_until(served.metrics, none, "no request is under way")


def filler(size: int) -> bytes:
    """A chat request of that size, of which no part is like another."""
    head, tail = BODY[:-1] + b',"user":"', b'"}'
    numbers = b"".join(b"%08x" % number for number in range(size // 8 + 1))
    return head + numbers[: size - len(head) - len(tail)] + tail


async def routed(call: Exchange, body: bytes, piece_bytes: int) -> bytes:
    """Send a request in such pieces while its answer is read; return the body that came back."""

    async def write() -> None:
        await call.write(first_message())
        for start in range(0, len(body), piece_bytes):
            last = start + piece_bytes >= len(body)
            await call.write(request_body(body[start : start + piece_bytes], end=last))

    async def read() -> bytes:
        assert (await call.read()).HasField("request_headers")
        back, whole = [], False
        while not whole:
            piece = (await call.read()).request_body.response.body_mutation.streamed_response
            back += [piece.body]
            whole = piece.end_of_stream
        return b"".join(back)

    _, back = await asyncio.gather(write(), read())
    return back


def asked_and_answered(port: int) -> tuple[int, list[str]]:
    """Do as a program with threads does: check health, and take a whole exchange through."""
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=APART) as channel:
        health = HealthStub(channel).Check(HealthCheckRequest(service=SERVICE), timeout=60)
        process = channel.stream_stream(
            PATH,
            request_serializer=ProcessingRequest.SerializeToString,
            response_deserializer=ProcessingResponse.FromString,
        )
        asked = first_message(), request_body(BODY, end=True)
        messages = [*asked, response_headers(), response_body(b"data: 1", end=True)]
        return health.status, [answer.WhichOneof("response") for answer in process(iter(messages), timeout=60)]


async def test_client_with_threads_is_served(served):
    status, answers = await asyncio.to_thread(asked_and_answered, served.grpc_port)
    assert status == HealthCheckResponse.SERVING
    assert answers == ["request_headers", "request_body", "response_headers", "response_body"]


async def test_three_thousand_messages_on_one_stream_come_back_in_order(served):
    async with served.channel() as channel:
        call = exchange(channel)
        await ask(call)
        await call.write(response_headers())
        assert (await call.read()).HasField("response_headers")

        async def write() -> None:
            for number in range(3_000):
                await call.write(response_body(b"data: %d" % number, end=False))

        async def read() -> list[bytes]:
            return [
                (await call.read()).response_body.response.body_mutation.streamed_response.body for _ in range(3_000)
            ]

        _, back = await asyncio.gather(write(), read())
        assert back == [b"data: %d" % number for number in range(3_000)]
        await call.write(response_body(b"", end=True))
        assert (await call.read()).response_body.response.body_mutation.streamed_response.end_of_stream
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("piece_bytes", [20 * MIB, 16_384])
async def test_twenty_mebibytes_come_back_however_they_were_cut(served, piece_bytes):
    body = filler(20 * MIB)
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{served.grpc_port}", options=[*APART, ("grpc.max_receive_message_length", -1)]
    ) as channel:
        call = exchange(channel)
        assert await routed(call, body, piece_bytes) == body
        await answer(call)


async def test_cancelled_calls_leave_nothing_behind_and_disturb_no_other(served, module_sim):
    async with served.channel() as channel:
        kept = exchange(channel)
        await ask(kept)
        for _ in range(50):
            calls = [exchange(channel) for _ in range(4)]
            await calls[0].write(first_message())
            await ask(calls[1])
            await ask(calls[2])
            await calls[2].write(response_headers())
            for call in calls:
                call.cancel()
        await answer(kept)
        await nothing_under_way(served)
        assert await destination_of(channel) == module_sim.address


async def test_call_past_its_deadline_ends_at_both_ends(served, module_sim):
    async with served.channel() as channel:
        process = channel.stream_stream(
            PATH,
            request_serializer=ProcessingRequest.SerializeToString,
            response_deserializer=ProcessingResponse.FromString,
        )
        await channel.channel_ready()  # the deadline is for the call alone
        call = process(timeout=2.0)
        await call.write(first_message())
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await nothing_under_way(served)
        assert await destination_of(channel) == module_sim.address


async def test_a_thousand_calls_at_once_on_one_connection_are_all_answered(served, module_sim):
    async with served.channel() as channel:
        destinations = await asyncio.gather(*(destination_of(channel) for _ in range(1_000)))
    assert set(destinations) == {module_sim.address}


async def test_client_that_ends_its_half_early_gets_what_is_due_and_an_end(served):
    async with served.channel() as channel:
        nothing, headers, whole = exchange(channel), await request(channel), exchange(channel)
        await ask(whole)
        for call in (nothing, headers, whole):
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK
        await nothing_under_way(served)


async def test_client_comes_back_to_a_picker_that_was_replaced(module_sim):
    flags = (PLAIN, "--drain-quiet-period=10ms")
    async with serving(module_sim, *flags) as first, first.channel() as channel:
        assert await destination_of(channel) == module_sim.address
        first.command.terminate()
        assert await first.command.end() == 0
        async with serving(module_sim, *flags, f"--grpc-port={first.grpc_port}"):
            await channel.channel_ready()
            assert await destination_of(channel) == module_sim.address
