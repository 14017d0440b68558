# SPDX-License-Identifier: Apache-2.0
"""The operator's page, asked over HTTP."""

import json
import socket
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, Gauge

from epp.config import ConfigFollower, assemble, load_text
from epp.config.instances import Builder
from epp.framework import ManualClock
from epp.framework.registry import Registry
from epp.telemetry.page import OperatorPage


class Health:
    """What the picker says of itself."""

    def __init__(self) -> None:
        self.said = {"ready": True, "endpoints": 3}

    def __call__(self):
        return self.said


@pytest.fixture
def health():
    return Health()


@pytest.fixture
def page(health):
    registry = CollectorRegistry()
    Gauge("answers", "All there is.", registry=registry).set(42)
    page = OperatorPage(registry, health)
    page.open("127.0.0.1", 0)
    yield page
    page.close()


def get(page: OperatorPage, path: str) -> tuple[int, str, str]:
    try:
        with urlopen(f"http://127.0.0.1:{page.port}{path}", timeout=30) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def test_metrics_are_prometheus_text(page):
    status, kind, text = get(page, "/metrics")
    assert status == 200
    assert kind.startswith("text/plain")
    assert "\nanswers 42.0\n" in text


def test_health_is_json_and_200_while_ready(page):
    status, kind, text = get(page, "/healthz")
    assert (status, kind) == (200, "application/json")
    assert json.loads(text) == {"ready": True, "endpoints": 3}


def test_health_is_asked_anew_each_time_and_503_while_not_ready(page, health):
    health.said = {"ready": False, "endpoints": 0}
    status, _, text = get(page, "/healthz")
    assert status == 503
    assert json.loads(text) == {"ready": False, "endpoints": 0}
    health.said = {"ready": True}
    assert get(page, "/healthz?verbose")[0] == 200
    health.said = {}
    assert get(page, "/healthz")[0] == 503


async def test_refused_configuration_is_visible_while_the_picker_serves_on(page, health, tmp_path):
    text = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
    file = tmp_path / "c.yaml"
    file.write_text(text + "plugns: []\n")

    def build(loaded):
        return assemble(loaded, Builder(Registry(), ManualClock()))

    follower = ConfigFollower(file, load_text(text), build=build)
    await follower.look()
    health.said = {"ready": True, "config": {"refused": follower.state.refused}}
    status, _, answer = get(page, "/healthz")
    assert status == 200
    assert json.loads(answer)["config"]["refused"] == f"{file}:3:1: plugns: unknown key; did you mean 'plugins'?"


def test_port_is_0_while_closed_and_free_again_after(health):
    page = OperatorPage(CollectorRegistry(), health)
    assert page.port == 0
    page.close()
    page.open("127.0.0.1", 0)
    port = page.port
    assert port > 0
    page.close()
    assert page.port == 0
    page.open("127.0.0.1", port)
    assert get(page, "/healthz")[0] == 200
    page.close()


def test_page_on_all_addresses_is_reached_over_ipv4_and_ipv6(health):
    page = OperatorPage(CollectorRegistry(), health)
    page.open("::", 0)
    for host in ["127.0.0.1", "::1"] if socket.has_dualstack_ipv6() else ["127.0.0.1"]:
        with socket.create_connection((host, page.port), timeout=10) as connection:
            connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.0 200 OK")
    page.close()


def test_port_in_use_is_an_error(page, health):
    other = OperatorPage(CollectorRegistry(), health)
    with pytest.raises(OSError, match="in use"):
        other.open("127.0.0.1", page.port)
    assert other.port == 0
