# SPDX-License-Identifier: Apache-2.0
"""Servers that speak TLS, asked in either protocol, and the reverse: what is told of each."""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from epp.framework import ConfigurationError, Endpoint
from epp.framework.datalayer import Contact, DataSource, PageError, UnreachableError
from epp.framework.endpoint import EndpointTrust
from epp.pool.collectors.sources.probes import ConnectionProbe, EndpointTls
from tests.support import certificates

PAGE = b"vllm:num_requests_waiting 3\n"
TLS_RECORD = b"\x16"
"""The first byte of a handshake."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    """A certificate for localhost that is its own authority, and its key."""
    directory = tmp_path_factory.mktemp("certificate")
    certificates.write(directory, *certificates.new_pair())
    return directory


@pytest.fixture(scope="module")
def authority(directory) -> Path:
    return directory / "tls.crt"


@pytest.fixture(scope="module")
def context(directory) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    return context


class Server:
    """Answers each request with a page, and notes the heads of the requests."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.connections = 0
        self.port = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head.decode())
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(PAGE), PAGE))
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def serving(context: ssl.SSLContext | None) -> AsyncIterator[Server]:
    server = Server()
    async with await asyncio.start_server(server.answer, "127.0.0.1", 0, ssl=context) as listening:
        server.port = listening.sockets[0].getsockname()[1]
        yield server


@pytest.fixture
async def secure(context) -> AsyncIterator[Server]:
    async with serving(context) as server:
        yield server


@pytest.fixture
async def plain() -> AsyncIterator[Server]:
    async with serving(None) as server:
        yield server


def at(server: Server, host: str = "localhost", *, tls: bool = True) -> Endpoint:
    return Endpoint("e", "127.0.0.1", server.port, host=host, tls=tls)


async def failure(source: DataSource, endpoint: Endpoint) -> UnreachableError:
    with pytest.raises(UnreachableError) as raised:
        await source.fetch(endpoint)
    return raised.value


async def test_https_endpoint_is_asked_by_its_name_and_without_verification_where_the_gateway_is_elsewhere(
    secure, source, authority
):
    assert await source(EndpointTrust(authority)).fetch(at(secure)) == PAGE
    assert f"host: localhost:{secure.port}\r\n" in secure.heads[0].lower()
    assert await source().fetch(at(secure, host="")) == PAGE  # as the parameters of the source have it by default


async def test_certificate_of_an_unknown_authority_is_not_trusted(secure, source):
    error = await failure(source(EndpointTrust()), at(secure))
    assert (error.contact, error.refused) == (Contact.NOT_TRUSTED, True)
    assert f"the certificate of localhost:{secure.port} is not trusted: self-signed certificate" in str(error)
    assert error.remedy == "name its authority with --endpoint-ca-file FILE, or give --endpoint-insecure-skip-verify"
    assert await source(EndpointTrust(verify=False)).fetch(at(secure)) == PAGE


async def test_certificate_for_another_name_is_not_trusted(secure, source, authority):
    error = await failure(source(EndpointTrust(authority)), at(secure, host=""))
    assert error.contact is Contact.NOT_TRUSTED
    assert error.remedy == "write the endpoint with a host name or address that its certificate has"


async def test_tls_server_asked_in_plaintext_is_recognised_once(secure, source):
    one = source()
    for _ in range(3):
        error = await failure(one, at(secure, tls=False))
        assert (error.contact, error.refused) == (Contact.SPEAKS_TLS, True)
        assert error.remedy.startswith(f"write https://localhost:{secure.port}, ")
    handshakes = secure.connections
    assert handshakes == 1  # of requests in plaintext, none gets as far as a connection here


async def test_plaintext_server_asked_over_tls_is_recognised(plain, source, authority):
    error = await failure(source(EndpointTrust(authority)), at(plain))
    assert (error.contact, error.refused) == (Contact.SPEAKS_PLAINTEXT, True)
    assert error.remedy.startswith(f"write http://localhost:{plain.port}, ")


async def test_server_that_neither_answers_nor_speaks_tls_has_closed_the_connection(source):
    async def close(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as listening:
        endpoint = Endpoint("e", "127.0.0.1", listening.sockets[0].getsockname()[1])
        error = await failure(source(), endpoint)
    assert (error.contact, error.refused) == (Contact.REFUSED, True)
    assert "closed without an answer" in str(error)


@contextlib.contextmanager
def proxy_that_asks_for_https(context: ssl.SSLContext, *, speaks_tls: bool) -> Iterator[int]:
    """A server like those that answer plaintext on their TLS port, in words; yields its port."""

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                with client, contextlib.suppress(OSError):
                    if speaks_tls and client.recv(1, socket.MSG_PEEK) == TLS_RECORD:
                        context.wrap_socket(client, server_side=True).close()
                    else:
                        client.recv(65536)
                        body = b"The plain HTTP request was sent to HTTPS port"
                        client.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        thread.join()


async def test_answer_that_asks_for_https_is_believed_after_a_handshake(context, source):
    with proxy_that_asks_for_https(context, speaks_tls=True) as port:
        error = await failure(source(), Endpoint("e", "127.0.0.1", port))
    assert error.contact is Contact.SPEAKS_TLS
    with proxy_that_asks_for_https(context, speaks_tls=False) as port, pytest.raises(PageError, match="answered 400"):
        await source().fetch(Endpoint("e", "127.0.0.1", port))


async def test_wrong_protocol_of_the_source_alone_is_a_bad_page(secure, plain, source):
    beside = Endpoint("e", "127.0.0.1", 1)
    with pytest.raises(PageError, match="speaks TLS") as raised:
        await source(port=secure.port).fetch(beside)
    assert raised.value.remedy == "write scheme: https in the parameters of metrics-data-source"
    with pytest.raises(PageError, match="speaks plaintext HTTP, but is polled over TLS") as raised:
        await source(scheme="https").fetch(at(plain, tls=False))
    assert raised.value.remedy == "write scheme: http in the parameters of metrics-data-source"


async def test_probe_connects_as_requests_would(secure, plain, authority, deaf_port):
    trusting, elsewhere = ConnectionProbe(EndpointTls(EndpointTrust(authority))), ConnectionProbe(None)
    for probe, endpoint in [
        (trusting, at(secure)),
        (elsewhere, at(secure, host="")),
        (elsewhere, at(secure, tls=False)),  # in plaintext, a connection is all that it makes
        (trusting, at(plain, tls=False)),
    ]:
        assert await probe.fetch(endpoint) == b""
    for probe, endpoint, contact in [
        (ConnectionProbe(EndpointTls(EndpointTrust())), at(secure), Contact.NOT_TRUSTED),
        (trusting, at(plain), Contact.SPEAKS_PLAINTEXT),
        (trusting, Endpoint("e", "127.0.0.1", deaf_port), Contact.REFUSED),
    ]:
        assert (await failure(probe, endpoint)).contact is contact


def test_file_of_authorities_that_is_none_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"--endpoint-ca-file .*missing.pem: No such file or directory"):
        EndpointTls(EndpointTrust(tmp_path / "missing.pem"))
    (tmp_path / "no.pem").write_text("not a certificate")
    with pytest.raises(ConfigurationError, match=r"--endpoint-ca-file .*no.pem: not a PEM file of certificates"):
        EndpointTls(EndpointTrust(tmp_path / "no.pem"))
