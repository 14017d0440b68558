# SPDX-License-Identifier: Apache-2.0
import asyncio
import socket

import pytest

from epp.framework import ConfigurationError, Endpoint
from epp.framework.datalayer import PageError, UnreachableError
from epp.framework.input_errors import read_parameters
from epp.pool.collectors.engine_metrics import MetricsDataSource, MetricsSourceParameters
from tests.support.hostile_servers import Answer, answering


async def test_page_comes_as_it_was_sent(server, source):
    assert await source().fetch(server.endpoint()) == b"vllm:num_requests_waiting 3\n"
    (request,) = server.asked
    assert (request.path, request.headers["Accept-Encoding"]) == ("/metrics", "identity")


async def test_path_and_port_are_the_configured_ones(server, source):
    await source(path="/prometheus/metrics?a=b", port=server.port).fetch(Endpoint("e", "127.0.0.1", 1))
    assert server.asked[0].path_qs == "/prometheus/metrics?a=b"


async def test_connection_is_kept_from_page_to_page(server, source):
    client = source().client_for(server.endpoint())
    for _ in range(5):
        await client.page()
    client.close()
    assert len(server.ports) == 1


async def test_ipv6_endpoint_is_asked(server, source):
    await server.stop()
    try:
        await server.start("::1")
    except OSError:
        pytest.skip("no IPv6 here")
    assert await source().fetch(server.endpoint(address="::1")) == server.page


async def test_closed_port_is_a_refusal(server, source):
    await server.stop()
    with pytest.raises(UnreachableError, match=str(server.port)) as failure:
        await source().fetch(server.endpoint())
    assert failure.value.refused


async def test_server_that_does_not_answer_or_accept_in_time_is_no_refusal(server, source):
    server.hanging = True
    with socket.create_server(("127.0.0.1", 0), backlog=1) as deaf:
        for port in (server.port, deaf.getsockname()[1]):
            with pytest.raises(UnreachableError, match=r"did not answer within 0.05 s") as failure:
                await source(timeout="50ms").fetch(Endpoint("e", "127.0.0.1", port))
            assert not failure.value.refused


@pytest.mark.parametrize(
    ("status", "headers", "problem"),
    [
        (500, {}, "answered 500"),
        (404, {}, "answered 404"),
        (302, {"Location": "/elsewhere"}, "answered 302"),
        (200, {"Content-Encoding": "gzip"}, "Content-Encoding gzip, although identity was requested"),
    ],
)
async def test_answer_that_is_no_page_is_refused(server, source, status, headers, problem):
    server.status, server.headers = status, headers
    with pytest.raises(PageError, match=problem):
        await source().fetch(server.endpoint())
    assert len(server.asked) == 1  # no redirect was followed


async def test_page_of_more_than_8_mib_is_refused(server, source):
    server.page = bytes(8 * 1024 * 1024 + 1)
    with pytest.raises(PageError, match="larger than 8388608 bytes"):
        await source(timeout="60s").fetch(server.endpoint())


async def test_connection_that_the_server_has_closed_is_opened_again_without_a_failure(server, source):
    client = source().client_for(server.endpoint())
    for _ in range(3):
        assert await client.page() == server.page
        await server.stop()
        await server.start()
    client.close()


def raw(answer: bytes) -> Answer:
    """Send these bytes, and close the connection."""

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        writer.close()

    return write


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\n\r\npage",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\npa\r\n2\r\nge\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\npage",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npage and more",
    ],
)
async def test_server_that_answers_in_its_own_way_is_read(source, answer):
    async with answering(raw(answer)) as server:
        assert await source().fetch(Endpoint("e", "127.0.0.1", server.port)) == b"page"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"SSH-2.0-server\r\n", "is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nvllm:", "closed before the end of the answer"),
    ],
)
async def test_answer_that_is_no_http_or_cut_off_is_refused(source, answer, problem):
    async with answering(raw(answer)) as server:
        with pytest.raises(PageError, match=problem):
            await source().fetch(Endpoint("e", "127.0.0.1", server.port))


async def test_pages_asked_for_at_once_come_on_connections_of_their_own(server, source):
    one = source()
    assert await asyncio.gather(*(one.fetch(server.endpoint()) for _ in range(3))) == [server.page] * 3
    assert len(server.ports) == 3


async def test_server_that_hangs_on_a_kept_connection_is_told_from_one_that_closed_it(server, source):
    one = source(timeout="60s")
    client = one.client_for(server.endpoint())
    await client.page()
    server.hanging, one.timeout_seconds = True, 0.05
    with pytest.raises(UnreachableError, match=r"did not answer within 0.05 s"):
        await client.page()
    server.hanging, one.timeout_seconds = False, 60.0
    assert await client.page() == server.page
    client.close()


async def test_failure_that_nobody_foresaw_is_reported(server, source, monkeypatch):
    one = source()

    async def fail(*_: object) -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr(one, "classify", fail)
    await server.stop()
    with pytest.raises(RuntimeError, match="bug"):
        await one.fetch(server.endpoint())


async def test_interval_and_port_tell_what_was_asked_for(source):
    assert (source().interval_seconds, source().port) == (None, None)
    assert (source(interval="250ms").interval_seconds, source(port=9400).port) == (0.25, 9400)


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"scheme": "ftp"}, "'ftp' is not known; use 'http', 'https'"),
        ({"port": 70000}, "port is 70000; it must be between 1 and 65535"),
        ({"interval": "50"}, "interval: '50' is not a duration"),
        ({"timeout": "0s"}, "timeout is '0s': write a duration above 0"),
        ({"clientCertPath": "a.pem"}, "belong together"),
        ({"scheme": "https", "caCertPath": "/nowhere/ca.pem"}, "caCertPath: there is no file '/nowhere/ca.pem'"),
        ({"scheme": "https", "caCertPath": "FILE", "insecureSkipVerify": False}, r"ca.pem\) cannot be used"),
    ],
)
def test_bad_parameters_are_refused(tmp_path, parameters, problem):
    (tmp_path / "ca.pem").write_text("not a certificate")
    given = {name: f"{tmp_path}/ca.pem" if value == "FILE" else value for name, value in parameters.items()}
    with pytest.raises((ConfigurationError, ValueError), match=problem):
        MetricsDataSource(read_parameters(MetricsSourceParameters, given))
