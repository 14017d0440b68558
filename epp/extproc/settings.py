# SPDX-License-Identifier: Apache-2.0
"""Settings of the ext_proc server: address, TLS, transport."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from epp.extproc.budgets import BudgetSettings
from epp.extproc.exchange import DEFAULT_MAX_BODY_BYTES

_HEADROOM_BYTES = 1024 * 1024


class Transport(StrEnum):
    """Implementation of gRPC that carries the sessions."""

    ASYNCIO = "asyncio"
    """HTTP/2 on the event loop."""
    GRPCIO = "grpcio"
    """The library of the gRPC project."""


class TlsVersion(StrEnum):
    """Minimum version of TLS."""

    TLS_1_2 = "VersionTLS12"
    TLS_1_3 = "VersionTLS13"


def message_bytes_for(body_bytes: int) -> int:
    """Return the size of a message that has such a body in one piece."""
    return body_bytes + _HEADROOM_BYTES


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of the ext_proc server and its health service."""

    address: str
    """`ip:port`, `[::]` for all addresses, port 0 for any free one; or `unix:/path`."""
    health_address: str | None = None
    """Address of a separate plaintext health service; None for none."""
    health_on_main: bool = True
    """Whether the health service is on `address` too."""
    secure: bool = True
    cert_path: Path | None = None
    """Directory with tls.crt and tls.key; None for a self-signed certificate."""
    cert_reload: bool = True
    """Whether new connections get the current certificate in `cert_path`."""
    tls_min_version: TlsVersion = TlsVersion.TLS_1_2
    """With `Transport.GRPCIO`, TLS 1.2 is the only minimum."""
    tls_ciphers: str = ""
    """Cipher suites of TLS 1.2 in OpenSSL's names; empty for all secure ones. Not for `Transport.GRPCIO`."""
    max_receive_bytes: int = message_bytes_for(DEFAULT_MAX_BODY_BYTES)
    max_send_bytes: int = message_bytes_for(DEFAULT_MAX_BODY_BYTES)
    transport: Transport = Transport.ASYNCIO
    metadata_names: frozenset[str] = frozenset()
    """Names of gRPC metadata, in lower case, that sessions can read."""
    budgets: BudgetSettings = field(default_factory=BudgetSettings)
    """Limits on the resources of all gateways together."""
