# SPDX-License-Identifier: Apache-2.0
"""Each carrier listens on the whole address, or reports that it is taken."""

import socket

import grpc
import pytest

from epp.extproc.settings import Transport
from epp.framework import ConfigurationError
from tests.support.carriers import carrying

pytestmark = pytest.mark.parametrize("transport", Transport)


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


async def refused(address: str, transport: Transport, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        async with carrying(address, transport):
            pass


@pytest.mark.parametrize(
    ("family", "host"),
    [(socket.AF_INET6, "::"), (socket.AF_INET6, "::1"), (socket.AF_INET, ""), (socket.AF_INET, "127.0.0.1")],
)
async def test_port_that_is_taken_in_part_is_taken(transport, family, host):
    with listening(family, host) as taken:
        port = taken.getsockname()[1]
        await refused(f"[::]:{port}", transport, rf"^cannot listen on \[::\]:{port}: the address is taken")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_one_address_is_listened_on_alone(transport, host):
    async with carrying(f"{host}:0", transport) as (carrier, _):
        with socket.create_server(("127.0.0.2", carrier.port)):
            pass  # another one is free


async def test_taken_address_is_told_from_one_of_another_machine(transport):
    with listening(socket.AF_INET, "127.0.0.1") as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        await refused(address, transport, f"^cannot listen on {address}: the address is taken by another")
    await refused("192.0.2.1:9002", transport, r"^cannot listen on 192\.0\.2\.1:9002: this machine does not have")


async def test_wildcard_reaches_both_families(transport):
    async with carrying("[::]:0", transport) as (carrier, _):
        hosts = ["127.0.0.1", "::1"] if socket.has_dualstack_ipv6() else ["127.0.0.1"]
        for host in hosts:
            with socket.create_connection((host, carrier.port), timeout=10) as connection:
                assert connection.getpeername()[:2] == (host, carrier.port)


async def test_port_that_was_just_left_may_be_had(transport):
    async with carrying("[::]:0", transport) as (carrier, _):
        port = carrier.port
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await channel.channel_ready()  # a connection that lingers after the server
            await carrier.stop(0, 0)
            async with carrying(f"[::]:{port}", transport) as (second, _):
                assert second.port == port


async def test_unix_socket_has_no_port_and_is_removed_in_the_end(transport, tmp_path):
    path = tmp_path / "picker.sock"
    async with carrying(f"unix:{path}", transport) as (carrier, _):
        assert carrier.port == 0
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            await channel.channel_ready()
    assert not path.exists()


async def test_unix_socket_in_a_directory_that_is_not_there_is_an_error(transport, tmp_path):
    problem = r"^cannot listen on unix:.*: another process has it, or its directory"
    await refused(f"unix:{tmp_path}/missing/picker.sock", transport, problem)
