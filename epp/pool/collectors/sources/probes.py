# SPDX-License-Identifier: Apache-2.0
"""TLS contexts, and brief connections that probe an endpoint."""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator
from functools import cached_property
from pathlib import Path

import structlog

from epp.framework.datalayer import DataSource, NotAskedError
from epp.framework.endpoint import Endpoint, EndpointTrust, PagePlace
from epp.framework.errors import ConfigurationError
from epp.framework.plugin import Parameters
from epp.pool.collectors.sources.page_client import Attempt
from epp.runtime.supervisor import NO_DESCRIPTOR, polling_bound

_HTTP = b"HTTP/"
_ALERT = "ALERT"
_log = structlog.get_logger()
_TIMEOUT_SECONDS = 1.0


def polling_socket(address: str, *, kept: bool) -> socket.socket:
    """Return a socket for a persistent or a short-lived connection; raises OSError without a file descriptor for it."""
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    bound = polling_bound(kept=kept)
    if bound is not None and made.fileno() >= bound:
        made.close()
        raise OSError(errno.EMFILE, "all free file descriptors are reserved for listeners")
    return made


async def handshake(address: str, port: int, context: ssl.SSLContext | None, host: str, seconds: float) -> None:
    """Connect, over TLS if there is a context, and close; raises OSError, including TimeoutError.

    The certificate is verified against `host`, or else the address.
    """
    async with asyncio.timeout(seconds), _connection(address, port) as connected:
        if context is not None:
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_connection(
                asyncio.Protocol, sock=connected.dup(), ssl=context, server_hostname=host or address
            )
            transport.abort()


async def speaks_tls(address: str, port: int, seconds: float) -> bool:
    """Return whether the server speaks TLS, with any certificate."""
    try:
        await handshake(address, port, _UNVERIFIED, "", seconds)
    except ssl.SSLError as error:  # an alert is an answer in TLS
        return _ALERT in (error.reason or "")
    except OSError:
        return False
    return True


async def speaks_http(address: str, port: int, seconds: float) -> bool:
    """Return whether the server speaks HTTP in plaintext."""
    try:
        async with asyncio.timeout(seconds), _connection(address, port) as connected:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(connected, b"GET / HTTP/1.0\r\n\r\n")
            answer = b""
            while len(answer) < len(_HTTP) and (piece := await loop.sock_recv(connected, len(_HTTP))):
                answer += piece
            return answer.startswith(_HTTP)
    except OSError:
        return False


@contextlib.asynccontextmanager
async def _connection(address: str, port: int) -> AsyncIterator[socket.socket]:
    with polling_socket(address, kept=False) as connecting:
        connecting.settimeout(0)
        await asyncio.get_running_loop().sock_connect(connecting, (address, port))
        yield connecting


def _without_verification(context: ssl.SSLContext) -> ssl.SSLContext:
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


_UNVERIFIED = _without_verification(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


class TlsParameters(Parameters, frozen=True):
    """Certificates of server and client."""

    insecure_skip_verify: bool = True
    """Accept any server certificate: model servers in a cluster rarely have one that can be verified."""
    ca_cert_path: str = ""
    """File with the certificate authorities of the server; by default those of the system."""
    client_cert_path: str = ""
    """File with the client certificate; none by default."""
    client_key_path: str = ""
    """File with the key of the client certificate."""

    def __post_init__(self) -> None:
        if bool(self.client_cert_path) != bool(self.client_key_path):
            raise ValueError("clientCertPath and clientKeyPath belong together: write both or neither")


class EndpointTls:
    """TLS with HTTPS endpoints as in the gateway with this picker; raises ConfigurationError for an invalid file."""

    def __init__(self, trust: EndpointTrust) -> None:
        self._trust = trust
        if trust.ca_file is not None:
            _ = self.context

    @cached_property
    def context(self) -> ssl.SSLContext:
        """The context, created on first use, since reading the system's authorities takes time."""
        file = self._trust.ca_file
        try:
            context = ssl.create_default_context(cafile=file)
        except OSError as error:  # ssl.SSLError is one
            why = f"not a PEM file of certificates ({error})" if isinstance(error, ssl.SSLError) else error.strerror
            raise ConfigurationError(f"--endpoint-ca-file {file}: {why}") from error
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Envoy is not strict either
        return context if self._trust.verify else _without_verification(context)


def tls_context(parameters: TlsParameters, name: str) -> ssl.SSLContext:
    """Return the context; raises ValueError for an invalid certificate file."""
    for key, path in (
        ("caCertPath", parameters.ca_cert_path),
        ("clientCertPath", parameters.client_cert_path),
        ("clientKeyPath", parameters.client_key_path),
    ):
        if path and not Path(path).is_file():
            raise ValueError(f"{key}: there is no file {path!r}")
    try:
        context = ssl.create_default_context(cafile=parameters.ca_cert_path or None)
        if parameters.client_cert_path:
            context.load_cert_chain(parameters.client_cert_path, parameters.client_key_path)
    except OSError as error:  # ssl.SSLError is one
        files = ", ".join(filter(None, (parameters.ca_cert_path, parameters.client_cert_path)))
        raise ValueError(f"certificate files ({files}) cannot be used: {error}") from error
    if not parameters.insecure_skip_verify:
        return context
    if parameters.ca_cert_path:
        _log.warning("caCertPath has no effect unless insecureSkipVerify is false", plugin=name)
    return _without_verification(context)


class ConnectionProbe(DataSource[Parameters]):
    """Probes endpoints that are not polled by any other source: connects, with TLS for HTTPS endpoints, and closes."""

    plugin_type = "connection-probe"

    def __init__(self, endpoint_tls: EndpointTls | None) -> None:
        super().__init__()
        self._verifies = endpoint_tls is not None
        self._endpoint_tls = endpoint_tls or EndpointTls(EndpointTrust(verify=False))

    @property
    def interval_seconds(self) -> float:
        return 1.0

    async def fetch(self, endpoint: Endpoint) -> bytes:
        place = PagePlace(endpoint.address, endpoint.port, endpoint.host)
        attempt = Attempt(endpoint, f"port {endpoint.port}", place, self.name, own_tls=True, as_gateway=self._verifies)
        context = self._endpoint_tls.context if endpoint.tls else None
        try:
            await handshake(endpoint.address, endpoint.port, context, endpoint.host.rstrip("."), _TIMEOUT_SECONDS)
        except ssl.SSLCertVerificationError as error:
            raise attempt.not_trusted(error) from error
        except (TimeoutError, ssl.SSLError) as error:
            if endpoint.tls and await speaks_http(endpoint.address, endpoint.port, _TIMEOUT_SECONDS):
                raise attempt.wrong_protocol(speaks_tls=False) from error
            if isinstance(error, TimeoutError):
                raise attempt.timed_out(_TIMEOUT_SECONDS) from None
            raise attempt.no_handshake(error) from error
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:
                raise NotAskedError(f"{attempt.place}: {error.strerror}") from None
            raise attempt.lost(error) from error
        return b""

    async def close(self) -> None:
        """Do nothing: no connection is kept."""
