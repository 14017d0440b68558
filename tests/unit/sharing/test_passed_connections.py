# SPDX-License-Identifier: Apache-2.0
"""Connections that one picker's process accepts and another one serves, with clients of grpcio."""

import asyncio
import contextlib
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import uvloop
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from epp.extproc.server import ExtProcServer
from epp.extproc.settings import ServerSettings
from epp.extproc.wire import METHOD, SERVICE, ProcessingResponse
from epp.sharing.channel import Channel
from epp.sharing.connections import Connections, Load
from tests.support import connection_worker
from tests.support.connection_worker import adopting_server, serve
from tests.support.exchanges import BODY, request_body, request_headers
from tests.support.waiting import until

APART = (("grpc.use_local_subchannel_pool", 1),)
REQUEST = [request_headers().SerializeToString(), request_body(BODY).SerializeToString()]


def never(*_):
    raise AssertionError


class Main:
    """The process that listens; `loads` are the last reports."""

    def __init__(self, address: str, *, secure: bool = False) -> None:
        self.loads: dict[int, Load] = {}
        self.channels: dict[int, Channel] = {}
        self.gates: dict[int, socket.socket] = {}
        self.connections = Connections(self._release, asyncio.get_running_loop().time)
        self.server = ExtProcServer(
            never, ServerSettings(address, "127.0.0.1:0", secure=secure), acceptor=self.connections
        )

    def report(self, worker: int, load: Load) -> None:
        self.loads[worker] = load
        self.connections.report(worker, load)

    def _release(self, worker: int, rate: float) -> None:
        self.channels[worker].send("release", rate)


@contextlib.asynccontextmanager
async def passing(address: str = "127.0.0.1:0", *, secure: bool = False) -> AsyncIterator[Main]:
    """One process with one worker in it."""
    main, worker = Main(address, secure=secure), adopting_server(secure=secure)
    await main.server.start()
    gate, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with gate, theirs:
        receiver = await serve(theirs, lambda load: main.report(1, load), worker)
        main.gates[1] = gate
        main.connections.add(1, gate)
        receiving = asyncio.create_task(receiver.run())
        try:
            yield main
        finally:
            await main.server.stop()
            receiving.cancel()
            await worker.stop()


async def pick(channel: grpc.aio.Channel) -> str:
    """Send a request as Envoy does; return the endpoint of the answer."""
    call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
    for message in REQUEST:
        await call.write(message)
    answer = ProcessingResponse.FromString(await call.read())
    await call.done_writing()
    while await call.read() is not grpc.aio.EOF:
        pass
    assert await call.code() is grpc.StatusCode.OK
    (header,) = (
        each.header
        for each in answer.request_headers.response.header_mutation.set_headers
        if each.header.key == "x-gateway-destination-endpoint"
    )
    return header.raw_value.decode()


async def is_serving(channel: grpc.aio.Channel) -> bool:
    answer = await HealthStub(channel).Check(HealthCheckRequest(service=SERVICE), timeout=20)
    return answer.status == HealthCheckResponse.SERVING


def channel_to(address: str, certificate: bytes = b"") -> grpc.aio.Channel:
    if not certificate:
        return grpc.aio.insecure_channel(address, options=APART)
    options = (("grpc.ssl_target_name_override", "localhost"), *APART)
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(certificate), options=options)


async def answers(address: str, *, secure: bool) -> None:
    async with passing(address, secure=secure) as main:
        at = address if address.startswith("unix:") else f"127.0.0.1:{main.server.port}"
        certificate = b""
        if secure:
            shown = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", main.server.port))
            certificate = shown.encode()
        async with channel_to(at, certificate) as channel:
            assert await is_serving(channel)
            assert await pick(channel) == "10.0.0.1:8000"
            await until(
                lambda: main.loads[1].begun == 1 and not main.loads[1].streams,
                "the worker has reported the call and its end, without the health check",
            )
            assert main.loads[1][:4] == (1 + secure, 1, 1, 0)  # with the connection that looked at the certificate
        await until(lambda: main.loads[1].connections == 0, "the connection has closed")
        async with channel_to(f"127.0.0.1:{main.server.health_port}") as channel:
            assert not await is_serving(channel)  # the main process is asked here; it was not set ready


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("kind", ["tcp", "tls", "unix"])
def test_passed_connection_is_served(run, kind, tmp_path):
    run(answers(f"unix:{tmp_path}/picker.sock" if kind == "unix" else "127.0.0.1:0", secure=kind == "tls"))
    assert not list(tmp_path.iterdir())


async def test_connections_wait_for_a_worker():
    async with passing() as main:
        main.connections.remove(1)
        async with channel_to(f"127.0.0.1:{main.server.port}") as channel:
            asked = asyncio.create_task(pick(channel))
            await asyncio.sleep(0.1)
            assert not asked.done()
            main.connections.add(1, main.gates[1])
            assert await asked == "10.0.0.1:8000"


async def test_drain_of_the_main_process_waits_for_streams_of_workers():
    async with passing() as main, channel_to(f"127.0.0.1:{main.server.port}") as channel:
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
        await call.write(REQUEST[0])
        await until(lambda: main.server.open_streams == 1, "the worker has reported the stream")
        draining = asyncio.create_task(main.server.drain(60, 0, asyncio.Event()))
        await pick(channel)
        assert not draining.done()
        await call.done_writing()
        await draining
        assert main.server.open_streams == 0


async def test_half_open_tls_connection_counts_and_ends_with_the_worker():
    async with passing(secure=True) as main:
        reader, writer = await asyncio.open_connection("127.0.0.1", main.server.port)
        await until(lambda: main.loads[1].connections == 1, "the worker has reported the handshake")
    assert await reader.read() == b""
    writer.close()


async def test_connection_without_a_descriptor_for_it_is_lost_alone(monkeypatch):
    monkeypatch.setattr("epp.sharing.connections._PAUSE_SECONDS", 0.0)
    async with passing() as main:
        main.gates[1].send(b"c")  # as it arrives where the worker has no descriptor left
        async with channel_to(f"127.0.0.1:{main.server.port}") as channel:
            assert await pick(channel) == "10.0.0.1:8000"
        await until(lambda: main.loads[1].received == 2, "both are reported")


async def test_released_connection_is_opened_again_and_no_call_is_lost():
    """Two workers start one after the other, and the calls of four clients go on while the second gets its part."""
    main = Main("127.0.0.1:0")
    await main.server.start()
    asked = 0

    async def ask_on(channel: grpc.aio.Channel) -> None:
        nonlocal asked
        while True:
            await pick(channel)
            asked += 1
            await asyncio.sleep(0.02)  # twelve that never pause keep the worker from starting

    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(main.server.stop)
        await stack.enter_async_context(worker_process(main, 1))
        address = f"127.0.0.1:{main.server.port}"
        channels = [await stack.enter_async_context(channel_to(address)) for _ in range(4)]
        asking = [asyncio.create_task(ask_on(each)) for each in channels for _ in range(3)]

        def working() -> list[int]:
            assert not any(task.done() for task in asking), [task.exception() for task in asking if task.done()]
            return [main.loads[number].working for number in sorted(main.loads)]

        await until(lambda: working() == [4], "all clients are at the first worker")
        await stack.enter_async_context(worker_process(main, 2))
        await until(lambda: working() == [2, 2], "two clients are at each worker", 60)
        until_now = asked
        await until(lambda: asked > until_now + 100, "calls go on")
        assert working() == [2, 2]
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


@contextlib.asynccontextmanager
async def worker_process(main: Main, number: int) -> AsyncIterator[None]:
    own, theirs = socket.socketpair()
    gate, their_gate = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    descriptors = theirs.fileno(), their_gate.fileno()
    with gate:
        with theirs, their_gate:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", connection_worker.__name__, *map(str, descriptors)),
                pass_fds=descriptors,
                cwd=Path(__file__).parents[3],
            )
        reported = asyncio.Event()

        def report(load: Load) -> None:
            main.report(number, load)
            reported.set()

        main.channels[number] = channel = Channel(own, {"connections": report})
        await channel.open()
        running = asyncio.create_task(channel.run())
        await reported.wait()
        main.connections.add(number, gate)
        try:
            yield
        finally:
            main.connections.remove(number)
            channel.close()
            await running
            await process.wait()
