# SPDX-License-Identifier: Apache-2.0
"""An address is had whole, or the picker says that it is not."""

import socket

import grpc
import pytest

from epp.extproc.grpcio_carrier import bind
from epp.framework import ConfigurationError


@pytest.fixture
async def server():
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    yield server
    await server.stop(None)


def listening(family: socket.AddressFamily, host: str) -> socket.socket:
    try:
        taken = socket.socket(family)
        if family is socket.AF_INET6:
            taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        taken.bind((host, 0))
    except OSError:
        pytest.skip("a machine without IPv6")
    taken.listen()
    return taken


@pytest.mark.parametrize(
    ("family", "host"),
    [(socket.AF_INET6, "::"), (socket.AF_INET6, "::1"), (socket.AF_INET, ""), (socket.AF_INET, "127.0.0.1")],
)
async def test_port_that_is_taken_in_part_is_taken(server, family, host):
    with listening(family, host) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"^cannot listen on \[::\]:{port}: the address is taken"):
            bind(server, f"[::]:{port}", None)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_one_address_is_listened_on_alone(server, host):
    port = bind(server, f"{host}:0", None)
    with socket.create_server(("127.0.0.2", port)):
        pass  # another one is free


async def test_taken_address_is_told_from_one_of_another_machine(server):
    with listening(socket.AF_INET, "127.0.0.1") as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=f"^cannot listen on {address}: the address is taken by another"):
            bind(server, address, None)
    with pytest.raises(
        ConfigurationError, match=r"^cannot listen on 192\.0\.2\.1:9002: this machine has no such address"
    ):
        bind(server, "192.0.2.1:9002", None)


async def test_wildcard_reaches_both_families(server):
    port = bind(server, "[::]:0", None)
    await server.start()
    hosts = ["127.0.0.1", "::1"] if socket.has_dualstack_ipv6() else ["127.0.0.1"]
    for host in hosts:
        with socket.create_connection((host, port), timeout=10) as connection:
            assert connection.getpeername()[:2] == (host, port)


async def test_port_that_was_just_left_may_be_had(server):
    first = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    port = bind(first, "[::]:0", None)
    await first.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await channel.channel_ready()  # a connection that lingers after the server
        await first.stop(None)
        assert bind(server, f"[::]:{port}", None) == port


async def test_unix_socket_has_no_port(server, tmp_path):
    assert bind(server, f"unix:{tmp_path}/picker.sock", None) == 0


async def test_unix_socket_in_a_directory_that_is_not_there_is_an_error(server, tmp_path):
    with pytest.raises(
        ConfigurationError, match=r"^cannot listen on unix:.*: another process has it, or its directory"
    ):
        bind(server, f"unix:{tmp_path}/missing/picker.sock", None)
