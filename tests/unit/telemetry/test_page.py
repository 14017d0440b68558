# SPDX-License-Identifier: Apache-2.0
"""The operator's page, asked over HTTP."""

import json
import socket

import pytest
from prometheus_client import CollectorRegistry

from epp.telemetry.page import OperatorPage
from tests.support.operator_page import asked, opened, ready


@pytest.fixture
def said():
    """What the picker says of itself."""
    return {"ready": True, "endpoints": 3}


@pytest.fixture
def page(said):
    with opened(health=lambda: said) as page:
        yield page


def test_health_is_json_asked_anew_each_time_and_503_while_not_ready(page, said):
    status, headers, text = asked(page, "/healthz")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(text) == {"ready": True, "endpoints": 3}
    said |= {"ready": False, "endpoints": 0}
    status, _, text = asked(page, "/healthz")
    assert (status, json.loads(text)) == (503, {"ready": False, "endpoints": 0})
    said["ready"] = True
    assert asked(page, "/healthz?verbose").status == 200
    said.clear()
    assert asked(page, "/healthz").status == 503


def test_port_is_0_while_closed_and_free_again_after():
    page = OperatorPage(CollectorRegistry(), ready)
    assert page.port == 0
    page.close()
    page.open("127.0.0.1", 0)
    port = page.port
    assert port > 0
    page.close()
    assert page.port == 0
    page.open("127.0.0.1", port)
    assert asked(page, "/healthz").status == 200
    page.close()


def test_page_on_all_addresses_is_reached_over_ipv4_and_ipv6():
    page = OperatorPage(CollectorRegistry(), ready)
    page.open("::", 0)
    for host in ["127.0.0.1", "::1"] if socket.has_dualstack_ipv6() else ["127.0.0.1"]:
        with socket.create_connection((host, page.port), timeout=10) as connection:
            connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.0 200 OK")
    page.close()


def test_port_in_use_is_an_error(page):
    other = OperatorPage(CollectorRegistry(), ready)
    with pytest.raises(OSError, match="in use"):
        other.open("127.0.0.1", page.port)
    assert other.port == 0
