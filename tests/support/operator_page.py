# SPDX-License-Identifier: Apache-2.0
"""The operator's page on a port of its own, and a client of it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPMessage
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from epp.telemetry.page import OperatorPage


class Answered(NamedTuple):
    status: int
    headers: HTTPMessage
    body: bytes


def ready() -> dict[str, object]:
    return {"ready": True}


@contextmanager
def opened(
    registry: CollectorRegistry | None = None, health: Callable[[], Mapping[str, object]] = ready, **options
) -> Iterator[OperatorPage]:
    page = OperatorPage(registry or CollectorRegistry(), health, **options)
    page.open("127.0.0.1", 0)
    try:
        yield page
    finally:
        page.close()


def asked(page: OperatorPage, path: str = "/metrics", method: str = "GET", **headers: str) -> Answered:
    """Ask for something on a connection of its own."""
    client = HTTPConnection("127.0.0.1", page.port, timeout=60)
    try:
        client.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = client.getresponse()
        return Answered(response.status, response.headers, response.read())
    finally:
        client.close()
