# SPDX-License-Identifier: Apache-2.0
"""Requests to an API server: what they say when it cannot be reached, and credentials that change."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from epp.kube.access import ApiError, ApiUnreachableError, KubeApi
from tests.support import certificates
from tests.support.kube.kube_server import COLLECTION, kube_server, kubeconfig, line_of, with_lines, with_status

Conversation = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server_that(conversation: Conversation):
    """Listen, and talk to each client so; yields the URL."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await conversation(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


def says(*pieces: bytes) -> Conversation:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    return talk


async def problem(path: Path) -> str:
    """Return why a request fails, without the URL."""
    api = KubeApi(path)
    try:
        with pytest.raises(ApiUnreachableError) as refused:
            await api.request("GET", "/version")
        server, _, reason = str(refused.value).partition(": ")
        assert server == api.server
        return reason
    finally:
        await api.close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((), "Server disconnected without sending a response."),
        ((b"SSH-2.0-OpenSSH_9.6\r\n\r\n",), "illegal"),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",), "peer closed connection without sending complete"),
        ((b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",), "illegal chunk header"),
        ((b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nxxxx",), "Error -3 while decomp"),
    ],
)
async def test_answer_that_is_none_is_named(tmp_path, answer, said):
    async with server_that(says(*answer)) as url:
        assert (await problem(kubeconfig(tmp_path / "config", url))).startswith(said)


async def test_refused_connection_and_unknown_host_are_named_as_the_system_names_them(tmp_path):
    async with server_that(says()) as url:
        pass
    assert await problem(kubeconfig(tmp_path / "config", url)) == "Connection refused"
    unknown = await problem(kubeconfig(tmp_path / "config", "https://nowhere.invalid"))
    assert "name" in unknown.lower()
    assert "Errno" not in unknown


async def test_server_that_does_not_answer_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("epp.kube.access._RESPONSE_SECONDS", 0.05)
    hang = asyncio.Event()

    async def nothing(_reader, _writer):
        await hang.wait()

    async with server_that(nothing) as url:
        assert await problem(kubeconfig(tmp_path / "config", url)) == "no response in time"
        hang.set()


async def test_certificate_of_another_authority_is_refused_with_the_remedy(tmp_path):
    certificates.write(tmp_path, *certificates.new_pair("127.0.0.1"))
    _, another = certificates.new_pair("127.0.0.1")
    (tmp_path / "another.crt").write_bytes(another)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    async with kube_server(context) as server:
        trusting = kubeconfig(tmp_path / "good", server.url, cluster={"certificate-authority": "tls.crt"})
        api = KubeApi(trusting)
        assert b"resourceVersion" in await api.request("GET", COLLECTION)
        await api.close()
        for cluster in ({"certificate-authority": "another.crt"}, {}):
            said = await problem(kubeconfig(tmp_path / "bad", server.url, cluster=cluster))
            assert said.startswith("its certificate is not accepted: ")
            assert said.endswith("; correct the certificate authority or the address")


async def test_error_has_status_reason_message_and_time_to_wait(server, api):
    body = '{"kind": "Status", "code": 429, "reason": "TooManyRequests", "message": "slow down"}'
    server.faults += [with_status(429, body, Retry_After="7"), with_status(502, "<html>"), with_status(500, "[1]")]
    found = []
    for _ in range(3):
        with pytest.raises(ApiError) as refused:
            await api.request("GET", COLLECTION)
        found.append((refused.value.status, refused.value.reason, str(refused.value), refused.value.retry_after))
    assert found == [
        (429, "TooManyRequests", "slow down", 7.0),
        (502, "", "HTTP status 502", 0.0),
        (500, "", "HTTP status 500", 0.0),
    ]


async def test_lines_are_whole_however_they_are_cut(server, api):
    lines = [line_of("ADDED", {"number": number}) for number in range(20)]
    text = b"".join(lines)
    server.faults.append(with_lines(*(text[start : start + 7] for start in range(0, len(text), 7))))
    async with api.stream(COLLECTION, {"watch": "true"}) as reads:
        assert [line + b"\n" async for read in reads for line in read] == lines


async def test_endless_line_ends_the_watch(server, api, monkeypatch):
    monkeypatch.setattr("epp.kube.access._LINE_LIMIT_BYTES", 1000)
    server.faults.append(with_lines(*[b"x" * 500] * 10))
    async with api.stream(COLLECTION, {"watch": "true"}) as reads:
        with pytest.raises(ApiUnreachableError, match="more than 1000 bytes"):
            _ = [read async for read in reads]
