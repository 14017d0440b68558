# SPDX-License-Identifier: Apache-2.0
"""Clients that begin TLS and do not go on: others are served, descriptors come back, the end is not kept waiting."""

import asyncio
import contextlib
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from epp.lab.sim.server import running
from tests.support.attacked_picker import Watched, under_attack
from tests.support.certificates import new_pair, write
from tests.support.http2 import http2_bytes as h2
from tests.support.http2.raw_connection import connected
from tests.support.serving import serving
from tests.support.transports import over_asyncio
from tests.support.waiting import until
from tests.support.world import FAST

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"), over_asyncio]

EACH = 30
HANDSHAKES_MIB = 100
"""What 256 unfinished handshakes may take, the most that there are: 45 were measured, nearly all of them OpenSSL's."""
MOST_WARNINGS = 60
"""Log lines about clients: a burst, and a few each minute."""


@contextlib.asynccontextmanager
async def picker(directory: Path, ulimit: str = "") -> AsyncIterator[Watched]:
    key, certificate = new_pair()
    write(directory, key, certificate)
    flag = f"--cert-path={directory}"
    async with under_attack(flag, certificate=certificate, ulimit=ulimit, most_mib=HANDSHAKES_MIB) as watched:
        yield watched


def client_context(*protocols: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


def client_hello() -> bytes:
    """The first bytes of a handshake."""
    outgoing = ssl.MemoryBIO()
    session = client_context("h2").wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()


HELLO = client_hello()


def sending(content: bytes, *, half_close: bool = False) -> Callable[[int], socket.socket]:
    """A client that sends this, and then nothing."""

    def connect(port: int) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(content)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        return connection

    return connect


def shaking_hands(*protocols: str) -> Callable[[int], socket.socket]:
    """A client that is silent after the handshake."""

    def connect(port: int) -> ssl.SSLSocket:
        return client_context(*protocols).wrap_socket(socket.create_connection(("127.0.0.1", port)))

    return connect


def half_closed(port: int) -> socket.socket:
    connection = shaking_hands("h2")(port)
    connection.shutdown(socket.SHUT_WR)
    return connection


def close_notified(port: int) -> socket.socket:
    """A client that says goodbye in TLS, and keeps TCP open."""
    plain = socket.create_connection(("127.0.0.1", port))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = client_context("h2").wrap_bio(incoming, outgoing, server_hostname="localhost")
    while True:
        try:
            session.do_handshake()
        except ssl.SSLWantReadError:
            plain.sendall(outgoing.read())
            incoming.write(plain.recv(1 << 16))
        else:
            break
    with contextlib.suppress(ssl.SSLError):  # what the server has sent before is not read
        session.unwrap()
    plain.sendall(outgoing.read())
    return plain


def half_of_a_record(port: int) -> socket.socket:
    connection = shaking_hands("h2")(port)
    connection.send(h2.PREFACE)
    plain = socket.socket(fileno=connection.detach())
    plain.sendall(b"\x17\x03\x03\x01\x00" + bytes(20))  # 256 bytes are announced
    return plain


CLIENTS = {
    "silent": sending(b""),
    "one byte": sending(HELLO[:1]),
    "half a ClientHello": sending(HELLO[: len(HELLO) // 2]),
    "half a ClientHello, half closed": sending(HELLO[: len(HELLO) // 2], half_close=True),
    "whole ClientHello": sending(HELLO),
    "record of the largest size, not whole": sending(b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc" + bytes(5_000)),
    "plaintext HTTP/2": sending(h2.PREFACE + h2.settings()),
    "HTTP/1.1": sending(b"GET / HTTP/1.1\r\nhost: picker\r\n\r\n"),
    "alert": sending(b"\x15\x03\x01\x00\x02\x02\x28"),
    "no ALPN": shaking_hands(),
    "ALPN of HTTP/1.1": shaking_hands("http/1.1"),
    "silent after the handshake": shaking_hands("h2"),
    "half closed after the handshake": half_closed,
    "close_notify after the handshake": close_notified,
    "half a record after the preface": half_of_a_record,
}


@contextlib.asynccontextmanager
async def clients(*kinds: str, port: int, count: int) -> AsyncIterator[None]:
    """Connect so many clients of each kind, and keep them."""

    def connect() -> contextlib.ExitStack:
        with contextlib.ExitStack() as stack:
            for kind in kinds:
                for _ in range(count):
                    stack.enter_context(CLIENTS[kind](port))
            return stack.pop_all()

    with await asyncio.to_thread(connect):
        yield


async def assert_let_go(watched: Watched, at_rest: int) -> None:
    """Wait until the picker holds no more than some connections of those that it serves."""
    await until(lambda: watched.descriptors <= at_rest + 5, "the descriptors have come back", seconds=120)


def warnings(watched: Watched) -> list[str]:
    return [line for line in watched.served.command.err if '"level":"warning"' in line]


@pytest.mark.slow
async def test_half_open_clients_are_let_go_while_they_stay(tmp_path):
    async with picker(tmp_path) as watched:
        await watched.still_serves()
        at_rest = watched.descriptors
        async with clients(*CLIENTS, port=watched.port, count=EACH):
            await watched.still_serves()
            await assert_let_go(watched, at_rest)
        assert len(warnings(watched)) < MOST_WARNINGS


async def test_end_is_not_kept_waiting_by_half_open_clients(tmp_path):
    key, certificate = new_pair()
    write(tmp_path, key, certificate)
    flags = (f"--cert-path={tmp_path}", "--drain-quiet-period=10ms", "--drain-timeout=10m")
    async with running(FAST) as sim, serving(sim, *flags) as served:
        async with clients(*CLIENTS, port=served.grpc_port, count=5):
            served.command.terminate()
            assert await served.command.end() == 0
        assert not any("Traceback" in line for line in served.command.err)


async def test_more_half_open_clients_than_descriptors_take_nothing_for_good(tmp_path):
    async with picker(tmp_path, ulimit="-n 256") as watched:
        await watched.still_serves()
        at_rest = watched.descriptors
        async with clients("silent", port=watched.port, count=600):
            before = watched.answered
            await until(lambda: watched.answered > before + 5, "an open connection is served", seconds=60)
        await assert_let_go(watched, at_rest)


async def test_tls_clients_of_a_plaintext_port_are_sent_away():
    async with under_attack() as watched:
        await watched.still_serves()
        at_rest = watched.descriptors
        for _ in range(EACH):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.to_thread(shaking_hands("h2"), watched.port)
        await assert_let_go(watched, at_rest)
        async with connected(watched.port, greet=False) as connection:
            await connection.send(HELLO)
            await connection.until_closed()
            assert connection.peer.goaway == (0, h2.Error.PROTOCOL_ERROR, b"no HTTP/2 preface")
        assert len(warnings(watched)) < MOST_WARNINGS
