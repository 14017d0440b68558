# SPDX-License-Identifier: Apache-2.0
"""The HTTP/2 carrier with clients of grpcio: health, TLS, sockets and stop."""

import asyncio
import contextlib
import socket
import ssl
import stat
import subprocess
import sys

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from epp.extproc.settings import TlsVersion
from epp.extproc.wire import SERVICE
from epp.framework import ConfigurationError
from tests.support.carriers import carrying
from tests.support.certificates import mount, new_pair
from tests.support.serving import APART, trusting

SERVING = HealthCheckResponse.SERVING


async def check(channel: grpc.aio.Channel, name: str = "") -> int:
    return (await HealthStub(channel).Check(HealthCheckRequest(service=name), timeout=20)).status


def plain(port: int) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=APART)


async def test_health_is_told_on_the_main_port_and_on_its_own():
    async with carrying(health_address="127.0.0.1:0") as (carrier, health):
        health.set_ready(ready=True)
        async with plain(carrier.port) as main, plain(carrier.health_port) as apart:
            assert [await check(main, SERVICE), await check(apart, "liveness")] == [SERVING, SERVING]


async def test_health_may_be_left_out_of_the_main_port():
    async with carrying(health_on_main=False) as (carrier, _), plain(carrier.port) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await check(channel)
        assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_unix_socket_that_a_dead_process_left_is_replaced(tmp_path):
    path = tmp_path / "picker.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with carrying(f"unix:{path}"):
        assert stat.S_ISSOCK(path.stat().st_mode)
        with pytest.raises(ConfigurationError, match=r"^cannot listen on unix:.*: another process has it"):
            async with carrying(f"unix:{path}"):
                pass


async def shown(port: int) -> bytes:
    return (await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))).encode()


async def test_new_connections_get_the_certificate_that_is_there_by_then(tmp_path):
    old, new = new_pair(), new_pair()
    mount(tmp_path, "1", *old)
    async with carrying(secure=True, cert_path=tmp_path) as (carrier, _), trusting(carrier.port, old[1]) as before:
        assert await check(before, "liveness") == SERVING
        mount(tmp_path, "2", *new)
        assert await shown(carrier.port) == new[1]
        assert await check(before, "liveness") == SERVING  # on the connection of old
        async with trusting(carrier.port, new[1]) as after:
            assert await check(after, "liveness") == SERVING


async def test_bad_certificate_is_named_at_the_start(tmp_path):
    with pytest.raises(ConfigurationError, match=r"the directory must have tls\.crt and tls\.key"):
        async with carrying(secure=True, cert_path=tmp_path):
            pass


def client_context(**changes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    for name, value in changes.items():
        setattr(context, name, value)
    return context


def handshake(port: int, context: ssl.SSLContext, *protocols: str) -> tuple[str | None, str | None, bytes]:
    """Return the version, the protocol, and the first bytes that the server sends."""
    if protocols:
        context.set_alpn_protocols(list(protocols))
    with socket.create_connection(("127.0.0.1", port)) as raw, context.wrap_socket(raw) as secured:
        return secured.version(), secured.selected_alpn_protocol(), secured.recv(9)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_both_versions_of_tls_are_spoken_with_http2(version):
    async with carrying(secure=True) as (carrier, _):
        context = client_context(minimum_version=version, maximum_version=version)
        spoken, protocol, first = await asyncio.to_thread(handshake, carrier.port, context, "http/1.1", "h2")
        assert (spoken, protocol) == (version.name.replace("TLSv1_", "TLSv1."), "h2")
        assert first[3] == 4  # SETTINGS


async def test_tls_1_3_may_be_demanded():
    async with carrying(secure=True, tls_min_version=TlsVersion.TLS_1_3) as (carrier, _):
        context = client_context(maximum_version=ssl.TLSVersion.TLSv1_2)
        with pytest.raises(ssl.SSLError):
            await asyncio.to_thread(handshake, carrier.port, context, "h2")


@pytest.mark.parametrize("protocols", [(), ("http/1.1",)])
async def test_client_that_does_not_speak_http2_is_sent_away(protocols):
    async with carrying(secure=True) as (carrier, _):
        _, protocol, first = await asyncio.to_thread(handshake, carrier.port, client_context(), *protocols)
        assert (protocol, first) == (None, b"")


async def test_server_goes_on_after_clients_that_speak_no_tls():
    async with carrying(secure=True) as (carrier, health):
        for noise in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\x16\x03\x01\xff\xff" + b"x" * 99,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", carrier.port)
            writer.write(noise)
            with contextlib.suppress(OSError):
                await reader.read()
            writer.close()
        health.set_ready(ready=True)
        async with trusting(carrier.port, await shown(carrier.port)) as channel:
            assert await check(channel) == SERVING


async def test_stop_is_not_kept_waiting_by_a_client_that_reads_nothing():
    async with carrying() as (carrier, _):
        _, writer = await asyncio.open_connection("127.0.0.1", carrier.port)
        await asyncio.wait_for(carrier.stop(0.1, 0.1), 30)
        writer.close()


@pytest.mark.parametrize(
    ("importing", "absent"),
    [("epp.extproc.http2_carrier", ["grpc", "aiohttp"]), ("epp.app, epp.lab.gateway.local", ["cryptography"])],
)
def test_large_libraries_are_not_imported_where_they_are_not_needed(importing, absent):
    program = f"import {importing}, sys; print([name for name in {absent} if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout == "[]\n"
