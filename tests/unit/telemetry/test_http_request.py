# SPDX-License-Identifier: Apache-2.0
"""Heads of requests to the operator page."""

import contextlib
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.telemetry.http_request import BadHeadError, read_head, write_head


def head(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode()


def test_head_is_read_with_names_in_lower_case_and_the_first_of_several_values():
    request = read_head(head("GET /metrics?name[]=a&name[]=b%20c HTTP/1.1", "Accept:  x ", "ACCEPT: y", "Host: h"))
    assert (request.method, request.path, request.minor_version) == ("GET", "/metrics", 1)
    assert request.parameters("name[]") == ["a", "b c"]
    assert request.headers == {"accept": "x", "host": "h"}
    assert not request.has_body


@pytest.mark.parametrize("target", ["/metrics", "http://host:9090/metrics", "/%6detrics", "/metrics?x#y"])
def test_target_may_be_a_url_and_percent_encoded(target):
    assert read_head(head(f"GET {target} HTTP/1.1")).path == "/metrics"


@pytest.mark.parametrize(
    ("version", "connection", "keep_alive"),
    [
        ("1.1", "", True),
        ("1.1", "close", False),
        ("1.1", "Keep-Alive, Close", False),
        ("1.0", "", False),
        ("1.0", "Keep-Alive", True),
    ],
)
def test_connection_is_kept_as_the_version_and_the_client_say(version, connection, keep_alive):
    assert read_head(head(f"GET / HTTP/{version}", f"Connection: {connection}")).keep_alive is keep_alive


@pytest.mark.parametrize(
    ("field", "has_body"),
    [("Content-Length: 0", False), ("Content-Length: 3", True), ("Transfer-Encoding: chunked", True)],
)
def test_body_is_announced(field, has_body):
    assert read_head(head("POST / HTTP/1.1", field)).has_body is has_body


@pytest.mark.parametrize(
    "bad",
    [
        b"\r\n\r\n",
        head("GET /"),
        head("GET / HTTP/2.0"),
        head("GET  / HTTP/1.1"),
        head("G(T / HTTP/1.1"),
        head("GET http://[::1/ HTTP/1.1"),
        head("GET / HTTP/1.1", "no colon"),
        head("GET / HTTP/1.1", " folded: x"),
        head("GET / HTTP/1.1", "space : x"),
        head("GET / HTTP/1.1", *["a: b"] * 101),
    ],
)
def test_what_is_no_head_is_refused(bad):
    with pytest.raises(BadHeadError):
        read_head(bad)


@given(st.binary(), st.binary())
def test_any_bytes_are_a_head_or_refused(line, fields):
    with contextlib.suppress(BadHeadError):
        read_head(b"GET /" + line + b" HTTP/1.1\r\n" + fields + b"\r\n\r\n").parameters("x")


def test_query_of_more_than_a_thousand_parameters_names_nothing():
    assert read_head(head(f"GET /?{'x=1&' * 2000} HTTP/1.1")).parameters("x") == ()


def test_response_has_the_version_of_the_request_and_says_whether_the_connection_goes_on():
    lines = write_head(0, HTTPStatus.NOT_FOUND, {"A": "b"}, 12, keep_alive=False).split(b"\r\n")
    assert lines[0] == b"HTTP/1.0 404 Not Found"
    assert {b"A: b", b"Content-Length: 12", b"Connection: close"} < set(lines)
    assert lines[-2:] == [b"", b""]
