# SPDX-License-Identifier: Apache-2.0
"""Connections that one picker's process accepts and another one serves, with clients of grpcio."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator

import grpc
import pytest
import uvloop
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from epp.extproc.exchange import ExchangeSettings
from epp.extproc.server import ExtProcServer
from epp.extproc.session import Session
from epp.extproc.settings import ServerSettings
from epp.extproc.wire import METHOD, SERVICE, ProcessingResponse
from epp.sharing.connections import ConnectionReceiver, Connections, Load
from tests.support.exchanges import BODY, new_bench, request_body, request_headers
from tests.support.waiting import until

APART = (("grpc.use_local_subchannel_pool", 1),)
REQUEST = [request_headers().SerializeToString(), request_body(BODY).SerializeToString()]


def never(*_):
    raise AssertionError


def adopting_server(*, secure: bool) -> ExtProcServer:
    """Return a server without a listener over three endpoints."""
    director = new_bench().director
    return ExtProcServer(
        lambda traits, claim, _: Session(director, ExchangeSettings(), traits, claim), ServerSettings("", secure=secure)
    )


class Main:
    """The process that listens, with one worker in it; `load` is the worker's last report."""

    def __init__(self, address: str, *, secure: bool) -> None:
        self.load: Load | None = None
        self.receiver: ConnectionReceiver | None = None
        self.gate, self.worker_gate = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connections = Connections(lambda _, rate: self.receiver.release(rate), asyncio.get_running_loop().time)
        settings = ServerSettings(address, "127.0.0.1:0", secure=secure)
        self.server = ExtProcServer(never, settings, acceptor=self.connections)

    def report(self, load: Load) -> None:
        self.load = load
        self.connections.report(1, load)


@contextlib.asynccontextmanager
async def passing(address: str = "127.0.0.1:0", *, secure: bool = False) -> AsyncIterator[Main]:
    main, worker = Main(address, secure=secure), adopting_server(secure=secure)
    await main.server.start()
    with main.gate, main.worker_gate:
        await worker.start()
        worker.set_ready(ready=True)
        main.receiver = ConnectionReceiver(worker.http2, main.worker_gate, main.report)
        main.connections.add(1, main.gate)
        receiving = asyncio.create_task(main.receiver.run())
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
                lambda: main.load.begun == 1 and not main.load.streams,
                "the worker has reported the call and its end, without the health check",
            )
            assert main.load[:4] == (1 + secure, 1, 1, 0)  # with the connection that looked at the certificate
        await until(lambda: main.load.connections == 0, "the connection has closed")
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
            main.connections.add(1, main.gate)
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
        await until(lambda: main.load.connections == 1, "the worker has reported the handshake")
    assert await reader.read() == b""
    writer.close()


async def test_connection_without_a_descriptor_for_it_is_lost_alone(monkeypatch):
    monkeypatch.setattr("epp.sharing.connections._PAUSE_SECONDS", 0.0)
    async with passing() as main:
        main.gate.send(b"c")  # as it arrives where the worker has no descriptor left
        async with channel_to(f"127.0.0.1:{main.server.port}") as channel:
            assert await pick(channel) == "10.0.0.1:8000"
        await until(lambda: main.load.received == 2, "both are reported")


async def test_released_connection_is_opened_again():
    async with passing() as main:
        address = f"127.0.0.1:{main.server.port}"
        async with channel_to(address) as one, channel_to(address) as other:
            await asyncio.gather(pick(one), pick(other))
            await until(lambda: main.load.working == 2, "both connections had a call")
            main.receiver.release(0.0)
            await until(lambda: main.load.working == 1, "one of them is left")
            await asyncio.gather(pick(one), pick(other))
            await until(lambda: (main.load.working, main.load.received) == (2, 3), "it was opened again")
