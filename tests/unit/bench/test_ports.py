# SPDX-License-Identifier: Apache-2.0
"""Reserved ports are for those who are told them, and for no others who reserve some."""

import socket

import pytest
from rig.ports import reserved_ports


def test_servers_may_listen_on_reserved_ports_one_after_the_other():
    with reserved_ports(2) as ports:
        for _ in range(2):
            for port in ports:
                with socket.create_server(("", port)) as server, socket.create_connection(("127.0.0.1", port)):
                    server.accept()[0].close()


def test_nobody_answers_on_a_reserved_port_before_a_server_does():
    with reserved_ports(1) as (port,), pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_no_port_is_reserved_twice_at_a_time(monkeypatch):
    def ports_from_20000_on(_range, _count):
        return range(20_000, 20_200)

    monkeypatch.setattr("random.sample", ports_from_20000_on)
    with reserved_ports(3) as first, reserved_ports(3) as second:
        assert not set(first) & set(second)
    with reserved_ports(3) as again:
        assert again == first
