# SPDX-License-Identifier: Apache-2.0
"""Budgets of a picker are reached over the wire: what is too much is refused with a reason, as long as it is."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import aiohttp
import grpc

from epp.extproc.wire import ProcessingResponse
from tests.support.exchanges import BODY, request_body
from tests.support.gateways import gateway_of
from tests.support.http2 import http2_bytes as h2
from tests.support.http2.raw_connection import connected
from tests.support.serving import (
    PATH,
    PLAIN,
    REQUEST,
    Exchange,
    Served,
    answer,
    destination_of,
    exchange,
    request,
    serving,
)
from tests.support.transports import over_asyncio
from tests.support.waiting import until
from tests.support.world import question

CHAT = json.dumps(question()).encode()


async def begun(channel: grpc.aio.Channel, *pieces: bytes) -> Exchange:
    """Send headers and the beginning of a body."""
    return await request(channel, *pieces, end=False)


async def complete(call: Exchange) -> None:
    """Send the rest of a body that was blank so far, and take the answers to it."""
    await call.write(request_body(BODY, end=True))
    assert (await call.read()).HasField("request_headers")
    whole = False
    while not whole:
        whole = (await call.read()).request_body.response.body_mutation.streamed_response.end_of_stream


async def refusal_of(call: Exchange) -> tuple[int, str, str | None]:
    """Return status, reason and seconds to wait of the answer that ends an exchange."""
    said = await call.read()
    assert isinstance(said, ProcessingResponse), said
    assert said.HasField("immediate_response"), said
    set_headers = said.immediate_response.headers.set_headers
    fields = {field.header.key: field.header.raw_value.decode() for field in set_headers}
    return said.immediate_response.status.code, fields["x-llm-d-request-dropped-reason"], fields.get("retry-after")


async def uses(served: Served, budget: str, amount: float) -> bool:
    return (await served.metrics())["llm_d_epp_budget_used"][frozenset({f"budget={budget}"})] == amount


async def refusals(served: Served, budget: str) -> float:
    return (await served.metrics())["llm_d_epp_budget_refusals_total"][frozenset({f"budget={budget}"})]


async def test_bodies_that_are_too_much_together_are_refused_and_those_before_them_completed(sim):
    async with serving(sim, PLAIN, "--max-request-body=1Mi", "--max-gathered-bytes=2Mi") as served:
        async with served.channel() as channel:
            first, second = [await begun(channel, b" " * 400_000, b" " * 400_000) for _ in range(2)]
            await until(lambda: uses(served, "gathered_bytes", 1_600_000), "both wait")
            assert await refusal_of(await begun(channel, b" " * 400_000)) == (503, "rejected-gathered-bytes", "1")
            assert await destination_of(channel)  # a small one has room
            for call in (first, second):
                await complete(call)
                await answer(call)
            assert await uses(served, "gathered_bytes", 0)
            await complete(await begun(channel, b" " * 400_000))
        assert await refusals(served, "gathered_bytes") == 1
        await served.command.says('"msg":"budget used up"')
        _, page = await served.health_page()
        assert page["budgets_used_up"]["gathered_bytes"]["refusals"] == 1


async def test_requests_under_way_have_a_limit_and_those_far_above_it_no_answer_but_a_status(sim):
    async with serving(sim, PLAIN, "--max-streams=3") as served, served.channel() as channel:
        calls = [await begun(channel) for _ in range(3)]
        for call in calls:
            await complete(call)  # and wait for their responses
        assert await uses(served, "pending_streams", 0)
        assert await refusal_of(await begun(channel)) == (503, "rejected-streams", "1")
        await until(lambda: uses(served, "streams", 3), "it has ended")
        silent = exchange(channel)
        await silent.wait_for_connection()
        await until(lambda: uses(served, "streams", 4), "one above the limit may still be told why")
        beyond = exchange(channel)  # its head is enough; a write beside the end of the call would hide the status
        assert await beyond.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await answer(calls[0])
        silent.cancel()
        await until(lambda: uses(served, "streams", 2), "there is room")
        assert await destination_of(channel)
        assert await refusals(served, "streams") == 3


@over_asyncio
async def test_streams_of_one_connection_are_refused_so_that_they_are_tried_elsewhere(sim):
    async with (
        serving(sim, PLAIN, "--max-streams-per-connection=2") as served,
        connected(served.grpc_port) as connection,
    ):
        peer = connection.peer
        assert peer.server_settings[h2.Setting.MAX_CONCURRENT_STREAMS] == 2
        for _ in range(2):
            await connection.send(peer.call(PATH)[1])
        late, opened = peer.call(PATH, REQUEST)
        await connection.send(opened)
        await connection.until(lambda: late.closed, "it is refused")
        assert late.reset == h2.Error.REFUSED_STREAM
        async with served.channel() as elsewhere:
            assert await destination_of(elsewhere)


@over_asyncio
async def test_connection_too_many_takes_the_place_of_an_idle_one_or_is_closed(sim):
    async with serving(sim, PLAIN, "--max-connections=2") as served, contextlib.AsyncExitStack() as stack:
        idle, busy = [await stack.enter_async_context(connected(served.grpc_port)) for _ in range(2)]
        await busy.send(busy.peer.call(PATH, REQUEST[:20])[1])
        await until(lambda: uses(served, "streams", 1), "it is open")
        later = await stack.enter_async_context(connected(served.grpc_port))
        await idle.until_closed()
        call, opened = later.peer.call(PATH, REQUEST[:20])
        await later.send(opened)
        await until(lambda: uses(served, "streams", 2), "both are busy")
        late = await stack.enter_async_context(connected(served.grpc_port, greet=False))
        await late.until_closed()
        await later.send(later.peer.send(call, REQUEST[20:], end=True))
        await later.until(lambda: call.closed, "others go on")
        assert call.status == 0
        assert await refusals(served, "connections") == 2


async def test_body_of_which_nothing_more_comes_is_given_up(sim):
    async with serving(sim, PLAIN, "--body-timeout=1s") as served, served.channel() as channel:
        for call in [await begun(channel, BODY[:10]), await begun(channel)]:
            assert await refusal_of(call) == (408, "rejected-body-timeout", None)
        assert (await served.metrics())["llm_d_epp_request_body_timeouts_total"] == {frozenset(): 2}
        assert await uses(served, "pending_streams", 0)
        assert await destination_of(channel)


async def test_client_of_a_gateway_is_told_to_come_again_where_bodies_are_too_much(sim):
    flags = (f"--endpoints=only={sim.address}", "--max-request-body=1Mi", "--max-gathered-bytes=2Mi")
    async with gateway_of(*flags) as gateway, aiohttp.ClientSession() as client:
        url = f"{gateway.url}/v1/chat/completions"
        release, sent = asyncio.Event(), [asyncio.Event() for _ in range(2)]

        async def slow_body(begun: asyncio.Event) -> AsyncIterator[bytes]:
            yield CHAT[:-1] + b" " * 900_000
            begun.set()
            await release.wait()
            yield CHAT[-1:]

        async def post(data: object) -> tuple[int, dict[str, str], str]:
            async with client.post(url, data=data, headers={"content-type": "application/json"}) as response:
                return response.status, dict(response.headers), await response.text()

        slow = [asyncio.create_task(post(slow_body(begun))) for begun in sent]
        for begun in sent:
            await begun.wait()

        async def is_refused() -> bool:
            status, headers, said = await post(CHAT[:-1] + b" " * 600_000 + CHAT[-1:])
            if status != 503:
                return False
            assert headers["Retry-After"] == "1"
            assert headers["x-llm-d-request-dropped-reason"] == "rejected-gathered-bytes"
            assert "holds too many bytes" in said
            return True

        await until(is_refused, "a third is refused")
        release.set()
        assert [status for status, *_ in await asyncio.gather(*slow)] == [200, 200]
