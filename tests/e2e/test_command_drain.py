# SPDX-License-Identifier: Apache-2.0
"""`epp serve` told to end: unready at once, there for gateways that have not noticed, gone when they have."""

import contextlib
import signal

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from epp.extproc.wire import SERVICE
from tests.support.exchanges import BODY, request_body
from tests.support.http2 import http2_bytes as h2
from tests.support.http2.http2_peer import Call
from tests.support.http2.raw_connection import RawConnection, connected
from tests.support.serving import (
    PATH,
    PLAIN,
    Served,
    answer,
    ask,
    destination_of,
    exchange,
    first_message,
    request,
    serving,
)

SERVING = HealthCheckResponse.SERVING
NOT_SERVING = HealthCheckResponse.NOT_SERVING
FOR_EVER = "10m"
"""Longer than a test waits for a process to end."""
CUT = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


async def told_to_end(served: Served) -> None:
    """Send SIGTERM, and wait until gateways can see it."""
    async with served.health() as channel:
        watched = HealthStub(channel).Watch(HealthCheckRequest(service="readiness"))
        assert (await watched.read()).status == SERVING
        served.command.terminate()
        assert (await watched.read()).status == NOT_SERVING


async def test_it_is_unready_yet_alive_and_lets_open_streams_finish(sim):
    async with serving(sim, PLAIN, f"--drain-timeout={FOR_EVER}") as served, served.channel() as channel:
        call = exchange(channel)
        await ask(call)
        await told_to_end(served)
        async with served.health() as health:
            alive = {"liveness": SERVING, "inference-extension": SERVING}  # probed for liveness: a restart cuts streams
            for name, status in {**alive, "readiness": NOT_SERVING, "": NOT_SERVING, SERVICE: NOT_SERVING}.items():
                assert (await HealthStub(health).Check(HealthCheckRequest(service=name))).status == status, name
        status, page = await served.health_page()
        assert (status, page["ready"], page["reason"]) == (503, False, "draining")
        await answer(call)
        assert await served.command.end() == 0


async def test_uploads_under_way_are_finished(sim):
    """One has sent its headers, one half a body, one a third of a long message."""
    long = request_body(BODY + b" " * 3_000_000, end=True)
    async with serving(sim, PLAIN, f"--drain-timeout={FOR_EVER}") as served, contextlib.AsyncExitStack() as stack:
        early = await request(await stack.enter_async_context(served.channel()))
        middle = await request(await stack.enter_async_context(served.channel()), BODY[:20], end=False)
        connection = await stack.enter_async_context(connected(served.grpc_port))
        wire = h2.grpc_message(first_message().SerializeToString()) + h2.grpc_message(long.SerializeToString())
        pieces = [wire[at : at + h2.DEFAULT_FRAME] for at in range(0, len(wire), h2.DEFAULT_FRAME)]
        call, opened = connection.peer.call(PATH)
        await connection.send(opened)
        await upload(connection, call, pieces[:60])
        await told_to_end(served)
        await early.write(request_body(BODY, end=True))
        await middle.write(request_body(BODY[20:], end=True))
        for upload_under_way in (early, middle):
            assert (await upload_under_way.read()).HasField("request_headers")
            assert (await upload_under_way.read()).HasField("request_body")
            await answer(upload_under_way)
        await connection.send(connection.peer.grant(h2.MOST_WINDOW - h2.DEFAULT_WINDOW))
        await connection.send(connection.peer.grant(4_000_000, call))
        await upload(connection, call, pieces[60:], end=True)
        await connection.until(lambda: call.closed, "the third is served")
        assert call.status == 0
        assert await served.command.end() == 0


async def upload(connection: RawConnection, call: Call, pieces: list[bytes], *, end: bool = False) -> None:
    for number, piece in enumerate(pieces, start=1):
        await connection.until(lambda piece=piece: connection.peer.room(call) >= len(piece), "the server takes more")
        await connection.send(connection.peer.send(call, piece, end=end and number == len(pieces)))


async def test_gateway_that_has_not_noticed_yet_is_still_served(sim):
    patient = (f"--drain-timeout={FOR_EVER}", f"--drain-quiet-period={FOR_EVER}")
    async with serving(sim, PLAIN, *patient) as served, served.channel() as known:
        assert await destination_of(known) == sim.address
        await told_to_end(served)
        async with served.channel() as new:
            assert await destination_of(known) == sim.address
            assert await destination_of(new) == sim.address
        served.command.terminate()
        assert await served.command.end() == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_second_signal_ends_it_at_once(sim, second):
    async with serving(sim, PLAIN, f"--drain-timeout={FOR_EVER}") as served, served.channel() as channel:
        call = exchange(channel)
        await ask(call)
        await told_to_end(served)
        (served.command.interrupt if second is signal.SIGINT else served.command.terminate)()
        assert await call.code() in CUT
        assert await served.command.end() == 0


@pytest.mark.parametrize(("drain", "quiet"), [(FOR_EVER, "10ms"), ("10ms", FOR_EVER)], ids=["quiet", "drain"])
async def test_without_a_stream_it_ends_after_the_quiet_period_or_the_drain(sim, drain, quiet):
    async with serving(sim, PLAIN, f"--drain-timeout={drain}", f"--drain-quiet-period={quiet}") as served:
        served.command.terminate()
        assert await served.command.end() == 0


async def test_stream_that_outlasts_the_drain_timeout_is_cut(sim):
    async with serving(sim, PLAIN, "--drain-timeout", "50ms") as served, served.channel() as channel:
        call = exchange(channel)
        await ask(call)
        served.command.terminate()
        assert await call.code() in CUT
        assert await served.command.end() == 0
        assert any('"msg":"streams cut"' in line for line in served.command.err)


async def test_watch_of_its_health_does_not_delay_the_end(sim):
    flags = ("--health-checking", f"--drain-timeout={FOR_EVER}", "--drain-quiet-period=10ms")
    async with serving(sim, PLAIN, *flags) as served, served.channel() as main, served.health() as apart:
        watches = [HealthStub(channel).Watch(HealthCheckRequest(service="liveness")) for channel in (main, apart)]
        assert [(await watch.read()).status for watch in watches] == [SERVING, SERVING]
        served.command.terminate()
        assert await served.command.end() == 0
