# SPDX-License-Identifier: Apache-2.0
"""The admin port: who may ask, what is no request, and clients that mean harm."""

import socket
from contextlib import ExitStack, suppress

import pytest
from structlog.testing import capture_logs

from epp.admin.port import AdminPort
from epp.framework.errors import ConfigurationError
from epp.telemetry.settings import AdminSettings
from tests.support.admin_client import TOKEN, asked

POST = b"POST /api/echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def raw(port: AdminPort, *pieces: bytes) -> bytes:
    """Send bytes; return all that comes back."""
    with socket.create_connection(("127.0.0.1", port.port), timeout=60) as connection:
        for piece in pieces:
            connection.sendall(piece)
        received = b""
        while piece := connection.recv(65536):
            received += piece
    return received


def test_routes_are_found_by_method_and_path_and_answers_are_json_kept_by_nobody(port):
    assert asked(port).body == {"rest": "", "body": None}
    assert asked(port, path="/api/echo/team-a%2Fx%20y").body["rest"] == "team-a/x y"
    assert asked(port, "POST", body={"a": [1]}).body == {"rest": "", "body": {"a": [1]}}
    assert asked(port, "HEAD").body == {}
    headers = asked(port).headers
    assert (headers["Content-Type"], headers["Cache-Control"]) == ("application/json", "no-store")
    assert "Access-Control-Allow-Origin" not in headers
    answer = asked(port, "DELETE")
    assert (answer.status, answer.error, answer.headers["Allow"]) == (405, "MethodNotAllowed", "GET, POST")
    assert asked(port, "POST", "/api/echo/x", body={}).headers["Allow"] == "GET"


@pytest.mark.parametrize("path", ["/", "/api", "/api/echos", "/metrics", "/api/broken/x"])
def test_other_paths_are_404_and_all_routes_are_named(port, path):
    answer = asked(port, path=path)
    assert (answer.status, answer.error) == (404, "NotFound")
    assert "POST /api/echo, GET /api/echo/" in answer.body["error"]["message"]


def test_failure_is_500_without_its_details_and_the_next_request_is_answered(port):
    with capture_logs() as logs:
        answer = asked(port, path="/api/broken")
    assert (answer.status, answer.error) == (500, "Internal")
    assert "secret" not in str(answer.body)
    assert [log["event"] for log in logs] == ["admin port failed"]
    assert asked(port).status == 200


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1", "127.1.2.3:80", "[::1]:9091", "[::1]"])
def test_this_machine_is_a_host_that_may_be_asked_for(port, host):
    assert asked(port, Host=host).status == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:80", "10.0.0.1", "127.0.0.1.evil.example"])
def test_name_that_a_stranger_points_at_this_machine_is_refused_without_a_token(port, guarded, host):
    answer = asked(port, Host=host)
    assert (answer.status, answer.error) == (403, "Forbidden")
    assert asked(guarded, Host=host, Authorization=f"Bearer {TOKEN}").status == 200


@pytest.mark.parametrize("host", ["", "[", "[::1"])
def test_request_without_a_host_is_refused(port, host):
    assert asked(port, Host=host).status == 400
    assert b" 400 " in raw(port, b"GET /api/echo HTTP/1.1\r\n\r\n").splitlines()[0]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "https://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_page_of_another_site_gets_nothing(port, guarded, headers, method):
    for each in (port, guarded):
        answer = asked(each, method, body={}, Authorization=f"Bearer {TOKEN}", Host="localhost:1", **headers)
        assert (answer.status, answer.error) == (403, "Forbidden")
    assert asked(port, Host="localhost:1", Origin="http://localhost:1", Sec_Fetch_Site="same-origin").status == 200


@pytest.mark.parametrize("kind", [None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_body_that_a_form_of_another_site_could_send_is_refused(port, kind):
    answer = asked(port, "POST", body=b"{}", Content_Type=kind)
    assert (answer.status, answer.error) == (415, "UnsupportedMediaType")
    assert asked(port, "POST", body={}, Content_Type="Application/JSON; charset=utf-8").status == 200


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"1", b'"x"', b"\xff", b"[" * 60_000, b'{"a": 1} {"b": 2}', b'{"a": NaN}']
)
def test_body_that_is_no_json_object_is_400(port, body):
    answer = asked(port, "POST", body=body)
    assert (answer.status, answer.error) == (400, "BadRequest")


def test_body_of_64_kib_is_read_and_a_larger_one_is_413_unread(port):
    assert asked(port, "POST", body=b'{"a":"%s"}' % (b"x" * (65536 - 8))).status == 200
    answer = asked(port, "POST", body=b'{"a":"%s"}' % (b"x" * (65537 - 8)))
    assert (answer.status, answer.error) == (413, "PayloadTooLarge")
    huge = raw(port, POST + b"Content-Length: 999999999999\r\nConnection: close\r\n\r\n")
    assert huge.startswith(b"HTTP/1.1 413 ")
    in_chunks = POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"8000\r\n%s\r\n" % (b"x" * 0x8000) * 3
    assert raw(port, in_chunks).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("length", [b"-1", b"1e3", b"9" * 20])
def test_body_whose_length_is_no_number_is_refused(port, length):
    answer = raw(port, POST + b"Content-Length: " + length + b"\r\n\r\n0\r\n\r\n")
    assert answer.splitlines()[0].endswith(b" 400 Bad Request")


def test_client_that_asks_whether_to_send_is_told_to(port):
    head = POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port.port), timeout=60) as connection:
        connection.sendall(head)
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"{}")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")


def test_body_in_chunks_or_pieces_is_read_whole(port):
    in_chunks = b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    assert raw(port, POST + b"Connection: close\r\n" + in_chunks).startswith(b"HTTP/1.1 200 ")
    answer = raw(port, POST + b"Connection: close\r\nContent-Length: 10\r\n\r\n", b'{"a"', b': "b"}')
    assert b'{"rest":"","body":{"a":"b"}}' in answer


def test_body_that_does_not_come_is_cut_off(open_port):
    port = open_port(body_seconds=0.2)
    assert raw(port, POST + b"Content-Length: 10\r\n\r\n{") == b""
    assert asked(port).status == 200


def test_connections_beyond_the_limit_are_closed_and_the_port_answers(open_port):
    port = open_port(max_connections=4, request_seconds=300, body_seconds=300)
    with ExitStack() as stack:
        held = []
        for _ in range(20):
            held.append(stack.enter_context(socket.create_connection(("127.0.0.1", port.port), timeout=60)))
            held[-1].sendall(POST + b"Content-Length: 900\r\n\r\n{")
        assert asked(port).status == 200
        for connection in held[:16]:
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""


@pytest.mark.parametrize(
    "value", [None, "", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", "Bearer", "Bearer \xff"]
)
def test_request_without_the_token_is_401_whatever_it_asks_for(guarded, value):
    for path in ("/api/echo", "/nothing"):
        answer = asked(guarded, path=path, Authorization=value)
        assert (answer.status, answer.error, answer.headers["WWW-Authenticate"]) == (401, "Unauthorized", "Bearer")


@pytest.mark.parametrize("value", [f"Bearer {TOKEN}", f"bearer  {TOKEN} "])
def test_holder_of_the_token_is_answered(guarded, value):
    assert asked(guarded, Authorization=value).status == 200


def test_new_token_counts_at_once_and_an_unusable_one_changes_nothing(guarded, token_file):
    fresh = "fedcba9876543210fedcba9876543210"
    replacement = token_file.with_name("next")

    def status_after(content: str | None, token: str) -> int:
        if content is None:
            token_file.unlink()
        else:
            replacement.write_text(content)
            replacement.replace(token_file)
        return asked(guarded, Authorization=f"Bearer {token}").status

    assert status_after(fresh, fresh) == 200
    assert asked(guarded, Authorization=f"Bearer {TOKEN}").status == 401
    with capture_logs() as logs:
        assert status_after("short", fresh) == 200
        assert asked(guarded, Authorization="Bearer short").status == 401
        assert status_after(None, fresh) == 200
    warnings = [log for log in logs if log["log_level"] == "warning"]
    assert [log["event"] for log in warnings] == ["new token rejected"] * 2  # once for each version
    assert status_after(TOKEN, TOKEN) == 200


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "has a token of 0 characters"),
        (b"short\n", "has a token of 5 characters"),
        (b"x" * 5000, "has a token of"),
        (b"two words of a token", "spaces"),
        ("schlüsselschlüsselschlüssel".encode(), "characters that are not allowed in a header"),
    ],
)
def test_token_that_protects_nothing_is_refused_at_the_start(tmp_path, content, reason):
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=reason) as caught:
        AdminPort(AdminSettings(port=0, token_file=path))
    assert "openssl rand -hex 32" in caught.value.remedy
    path.unlink()
    with pytest.raises(ConfigurationError, match=r"--admin-token-file: .*token cannot be read: No such file"):
        AdminPort(AdminSettings(port=0, token_file=path))


@pytest.mark.parametrize("host", ["::", "0.0.0.0", "10.0.0.1", "::ffff:10.0.0.1"])  # noqa: S104  which are refused
def test_port_that_other_machines_reach_needs_a_token(host, token_file):
    with pytest.raises(ConfigurationError, match="add --admin-token-file, or leave --admin-host out"):
        AdminPort(AdminSettings(host=host, port=0))
    assert AdminPort(AdminSettings(host=host, port=0, token_file=token_file)).port == 0
    for own in ("127.0.0.1", "127.0.0.2", "::1"):
        assert AdminPort(AdminSettings(host=own, port=0)).port == 0


def test_port_closes_while_clients_hold_connections(open_port):
    port = open_port()
    number = port.port
    with socket.create_connection(("127.0.0.1", number), timeout=60) as connection:
        connection.sendall(b"GET /api/echo HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(10) == b"HTTP/1.1 2"
        port.close()
    assert port.port == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", number), timeout=60)
