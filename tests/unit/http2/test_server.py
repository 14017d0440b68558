# SPDX-License-Identifier: Apache-2.0
"""The server on real sockets, with clients of grpcio and with raw bytes."""

import asyncio
import contextlib
import errno
import gc
import socket
import ssl

import grpc
import pytest
from hpack import Encoder

from epp.extproc.http2 import frames
from epp.extproc.http2.connection import Connection
from epp.extproc.http2.limits import Limits
from epp.extproc.http2.server import GrpcServer, accepted
from epp.extproc.http2.service import Call, ErrorCode
from epp.extproc.tls import self_signed, server_context
from epp.runtime.addresses import listener
from epp.runtime.http_connections import Contexts
from tests.support.http2.frame_client import ECHO, HEAD, data, message, parse
from tests.support.serving import trusting
from tests.support.waiting import until

APART = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1))


class Later:
    """An answer that comes when `ready` is set."""

    def __init__(self, service: "Service") -> None:
        self._service = service

    async def settle(self) -> None:
        self._service.waiting.set()
        try:
            await self._service.ready.wait()
        except asyncio.CancelledError:
            self._service.given_up.set()
            raise


class EchoCall(Call):
    done = False

    def __init__(self, service: "Service") -> None:
        self._service = service

    def receive(self, message: bytes):
        self._service.received += len(message)
        return [Later(self._service)] if message == b"wait" else [message * self._service.answers]

    def resume(self):
        return [b"settled"]

    def half_close(self):
        self.done = True
        return []

    def close(self):
        self._service.closed += 1
        self._service.all_closed.set()


class Service:
    """Echoes, and counts."""

    def __init__(self, answers: int = 1) -> None:
        self.answers = answers
        self.opened = self.closed = self.received = 0
        self.waiting, self.ready, self.given_up, self.all_closed = (asyncio.Event() for _ in range(4))

    def open(self, _outlet) -> EchoCall:
        self.opened += 1
        return EchoCall(self)


@contextlib.asynccontextmanager
async def serving(service: Service, limits: Limits | None = None, contexts: Contexts | None = None):
    server = GrpcServer({ECHO: service.open}, limits or Limits(max_message_bytes=2**26), contexts)
    sock = listener("127.0.0.1", 0)
    port = sock.getsockname()[1]
    await server.start(sock)
    try:
        yield server, port
    finally:
        await server.stop(0)


KEY, CERTIFICATE = self_signed()


async def tls_context() -> ssl.SSLContext:
    return server_context(KEY, CERTIFICATE, ssl.TLSVersion.TLSv1_2)


@pytest.fixture
async def service():
    return Service()


@contextlib.asynccontextmanager
async def talking(service: Service):
    """Yield a server, a channel to it, and a function that begins a call."""
    async with (
        serving(service) as (server, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=APART) as channel,
    ):
        yield server, channel, channel.stream_stream(ECHO)


async def echoed(call, *texts: bytes) -> None:
    for text in texts:
        await call.write(text)
        assert await call.read() == text


async def converse(call, *texts: bytes) -> None:
    """Have each text echoed, then end the call."""
    await echoed(call, *texts)
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_380, 65_535, 3_000_000])
async def test_messages_of_any_size_go_both_ways(service, size):
    async with talking(service) as (_, _, talk):
        await converse(talk(), b"a" * size, b"b" * size)
    assert service.closed == 1


async def test_held_answer_lets_others_pass(service):
    async with talking(service) as (_, _, talk):
        held, other = talk(), talk()
        await held.write(b"wait")
        await held.write(b"after")
        await service.waiting.wait()
        await echoed(other, b"hello")
        service.ready.set()
        assert [await held.read(), await held.read()] == [b"settled", b"after"]


async def test_lost_connection_gives_a_held_answer_up(service):
    async with talking(service) as (_, channel, talk):
        held = talk()
        await held.write(b"wait")
        await service.waiting.wait()
        await channel.close(None)
        await service.given_up.wait()
        await service.all_closed.wait()
        assert service.closed == 1


@pytest.mark.parametrize("word", [b"hello", b"wait"])
async def test_lost_connection_is_no_garbage(service, word):
    gc.collect()
    gc.disable()
    try:
        async with serving(service) as (_, port):
            reader, writer = await raw(port)
            writer.write(data(1, message(word)) + frames.frame(frames.PING, 0, 0, b"12345678"))
            while b"12345678" not in await reader.read(1 << 16):
                pass
            assert len(connections()) == 1
            writer.transport.abort()
            await service.all_closed.wait()
            await until(lambda: not connections(), "the connection is gone")
    finally:
        gc.enable()


def connections() -> list[Connection]:
    return [found for found in gc.get_objects() if isinstance(found, Connection)]


async def test_client_ends_its_call_at_its_deadline(service):
    async with talking(service) as (_, channel, talk):
        await channel.channel_ready()  # the deadline is for the call alone
        held = talk(timeout=1.0)
        await held.write(b"wait")
        assert await held.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await service.all_closed.wait()


async def test_stop_with_grace_lets_calls_end(service):
    async with talking(service) as (server, _, talk):
        call = talk()
        await echoed(call, b"hello")
        stopping = asyncio.create_task(server.stop(60))
        await converse(call, b"again")
        await stopping


async def test_stop_without_grace_cuts_calls(service):
    async with talking(service) as (server, _, talk):
        call = talk()
        await echoed(call, b"hello")
        await server.stop(0)
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
    assert service.closed == 1


async def no_context() -> ssl.SSLContext:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize("contexts", [tls_context, no_context], ids=["silent client", "slow certificate"])
async def test_tls_handshake_has_its_time(service, contexts):
    async with serving(service, Limits(handshake_seconds=0.3), contexts) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
        await server.stop(0)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_messages_of_any_size_go_both_ways_over_tls(service, version):
    async def contexts() -> ssl.SSLContext:
        context = await tls_context()
        context.maximum_version = version
        return context

    async with serving(service, contexts=contexts) as (_, port), trusting(port, CERTIFICATE) as channel:
        await converse(channel.stream_stream(ECHO)(), b"a", b"b" * 16_379, b"c" * 3_000_000)


async def test_further_tls_client_takes_the_place_of_the_oldest_that_says_nothing(service):
    async with serving(service, Limits(handshake_seconds=600, max_handshakes=3), tls_context) as (_, port):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        assert [await reader.read() for reader, _ in silent[:2]] == [b"", b""]
        async with trusting(port, CERTIFICATE) as channel:
            await converse(channel.stream_stream(ECHO)(), b"hello")
        assert await silent[2][0].read() == b""
    for _, writer in silent:
        writer.close()


GREETING = (
    frames.PREFACE
    + frames.settings_frame({frames.Setting.INITIAL_WINDOW_SIZE: 2**31 - 1})
    + frames.window_update_frame(0, 2**31 - 1 - 65_535)
    + frames.frame(frames.HEADERS, frames.END_HEADERS, 1, Encoder().encode(HEAD))
)
"""A call, with windows wide open."""


async def raw(port: int):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**26)
    writer.write(GREETING)
    return reader, writer


async def test_client_that_reads_nothing_is_read_no_further_and_cut_off_in_the_end():
    service = Service(answers=1000)
    limits = Limits(max_message_bytes=2**20, write_stall_seconds=0.5)
    async with serving(service, limits) as (_, port):
        _, writer = await raw(port)
        wire = data(1, message(b"x" * 1000))
        with contextlib.suppress(ConnectionError):
            for _ in range(2000):  # answers of 2 GB in all
                writer.write(wire)
                await asyncio.wait_for(writer.drain(), 60)
        await asyncio.wait_for(service.all_closed.wait(), 60)
        writer.close()
    assert service.received < 200_000  # some of 2,000,000: a socket's buffers are all that piles up


async def test_broken_client_that_stops_reading_near_the_end_is_cut_off_all_the_same():
    service = Service(answers=300)
    loop = asyncio.get_running_loop()
    async with serving(service, Limits(write_stall_seconds=3)) as (server, port):
        with socket.socket() as client:
            client.setblocking(False)  # noqa: FBT003  its own way
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)  # little is on its way
            await loop.sock_connect(client, ("127.0.0.1", port))
            await loop.sock_sendall(client, GREETING)
            await until(lambda: service.opened, "the call is open")
            (protocol,) = server.connections
            transport = protocol._transport  # noqa: SLF001
            assert transport is not None
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
            fault = data(0, b"")
            await loop.sock_sendall(client, data(1, message(b"x" * 4000)) + fault)  # answers of 1.2 MB
            await service.all_closed.wait()
            while transport.get_write_buffer_size() > 60_000:  # below the level at which writing goes on
                await loop.sock_recv(client, 4000)
            await until(lambda: not server.connections, "it is cut off")


async def test_client_that_has_stopped_writing_gets_its_answers(service):
    async with serving(service) as (_, port):
        reader, writer = await raw(port)
        writer.write(data(1, message(b"hello")))
        writer.write_eof()
        sent = parse(await reader.read())
        assert message(b"hello") in [frame.payload for frame in sent]
        await service.all_closed.wait()
        writer.close()


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"no HTTP/2 preface"),
        (GREETING + data(0, b"") + data(1, message(b"x" * 1000)) * 200, b"DATA outside of a stream"),
    ],
    ids=["at once", "and more is sent"],
)
async def test_broken_client_gets_the_reason_and_the_end(service, wire, reason):
    async with serving(service) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(wire)
        *_, goaway = parse(await reader.read())
        assert goaway.payload[8:] == reason
        writer.close()


async def test_what_is_due_after_the_end_is_not_written(service, caplog):
    async with serving(service) as (_, port):
        reader, writer = await raw(port)
        writer.write(data(0, b""))
        *_, goaway = parse(await reader.read())
        assert goaway.payload[8:] == b"DATA outside of a stream"
        (connection,) = connections()
        connection.out.append(frames.rst_stream_frame(1, ErrorCode.CANCEL))
        writer.write(data(1, message(b"more")))
        await until(lambda: not connection.out, "it is dropped")
        writer.close()
    assert not caplog.records


async def test_accepting_goes_on_after_a_lack_of_descriptors(monkeypatch):
    monkeypatch.setattr("epp.extproc.http2.server._PAUSE_SECONDS", 0.0)
    loop = asyncio.get_running_loop()
    accept, failures = loop.sock_accept, [OSError(errno.EMFILE, "Too many open files")]

    async def accept_later(sock):
        if failures:
            raise failures.pop()
        return await accept(sock)

    monkeypatch.setattr(loop, "sock_accept", accept_later)
    with listener("127.0.0.1", 0) as sock, socket.socket() as client:
        coming = accepted(sock)
        first = asyncio.create_task(anext(coming))
        client.setblocking(False)  # noqa: FBT003
        await loop.sock_connect(client, sock.getsockname())
        with await first as connection:
            assert connection.getpeername() == client.getsockname()
        await coming.aclose()
