# SPDX-License-Identifier: Apache-2.0
"""Requests that an admitter holds: by the picker's own server, and behind a real Envoy."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import openai
import pytest

from epp.app import Picker
from epp.config import load_text
from epp.framework.refusals import SaturatedError
from epp.framework.snapshot import IN_FLIGHT, SERVED
from epp.lab.gateway.settings import GatewaySettings
from tests.support.admitter import CONFIG, Gate
from tests.support.in_process import running_picker
from tests.support.serving import APART, answer, ask, exchange
from tests.support.waiting import until
from tests.support.world import World, open_world, pool_of


@pytest.fixture
async def picker() -> AsyncIterator[Picker]:
    async with running_picker(config=load_text(CONFIG), plugin_modules=("tests.support.admitter",)) as picker:
        yield picker


@pytest.fixture
async def channel(picker) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{picker.port}", options=APART) as channel:
        yield channel


@pytest.fixture
def gate(picker) -> Gate:
    return picker.plugins["gate"]


def books(picker: Picker) -> tuple[int, int]:
    """Requests in flight, and requests served."""
    snapshot = picker.store.snapshot()
    return int(sum(snapshot.column(IN_FLIGHT))), int(sum(snapshot.column(SERVED)))


async def test_stream_cut_during_a_hold_ends_the_hold_and_others_go_on(picker, channel, gate):
    calls = [exchange(channel) for _ in range(3)]
    asking = [asyncio.create_task(ask(call)) for call in calls]
    await until(lambda: len(gate.held) == 3, "all are held")
    calls[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking[1]
    await until(lambda: picker.open_streams == 2, "the stream has ended")
    (cut,) = [held for held in gate.held if held.done()]
    assert cut.cancelled()
    assert books(picker) == (0, 0)
    for held in gate.held:
        if held is not cut:
            held.set_result(None)
    for call, asked in ((calls[0], asking[0]), (calls[2], asking[2])):
        assert await asked == "10.0.0.1:8000"
        await answer(call)
    assert books(picker) == (0, 2)


async def test_stop_ends_holds(picker, channel, gate):
    asking = asyncio.create_task(ask(exchange(channel)))
    await until(lambda: gate.held, "the request is held")
    await picker.stop(drain_seconds=0)
    assert gate.held[0].cancelled()
    with pytest.raises(grpc.aio.AioRpcError):
        await asking
    assert books(picker) == (0, 0)


@pytest.fixture(params=["FULL_DUPLEX_STREAMED", "BUFFERED", "STREAMED"])
async def held_world(sim, request) -> AsyncIterator[World]:
    """A server behind a gateway that hands request bodies over in the mode, and a picker that holds each request."""
    sims = {"a": sim}
    async with open_world(
        endpoints=pool_of(sims),
        sims=sims,
        config=CONFIG,
        gateway=GatewaySettings(listen_port=0, modes={"request_body_mode": request.param}),
        plugin_modules=("tests.support.admitter",),
    ) as world:
        yield world


async def test_client_of_a_held_request_waits_is_refused_or_hangs_up(held_world):
    picker = held_world.gateway.picker
    gate = picker.plugins["gate"]

    async def asked(number: int) -> asyncio.Task[str]:
        asking = asyncio.create_task(held_world.ask("hello"))
        await until(lambda: len(gate.held) == number, "the request is held")
        return asking

    asking = await asked(1)
    gate.held[0].set_exception(SaturatedError("queue is full"))
    with pytest.raises(openai.RateLimitError, match="request cannot be admitted: queue is full"):
        await asking

    asking = await asked(2)
    asking.cancel()
    await until(gate.held[1].cancelled, "the hold has ended")
    await until(lambda: picker.open_streams == 0, "the stream has ended")
    assert books(picker) == (0, 0)

    asking = await asked(3)
    assert await held_world.requests_at("a") == []
    gate.held[2].set_result(None)
    assert await asking == "a"
    assert len(await held_world.requests_at("a")) == 1
    assert books(picker) == (0, 1)
