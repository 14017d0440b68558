# SPDX-License-Identifier: Apache-2.0
"""Settings of the ext_proc server, limits on the resources of gateways, and the flags that set them."""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from epp.runtime.flags import CIPHER_SUITES, COUNT, DURATION, SIZE, SWITCH, TLS_VERSION, flag

_MIB: Final = 1024 * 1024
DEFAULT_MAX_BODY_BYTES: Final = 32 * _MIB
DEFAULT_GATHERED_BYTES: Final = 256 * _MIB
_HEADROOM_BYTES: Final = _MIB
_LARGEST_BODIES: Final = 2
"""Number of bodies of the largest size that must fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    """Limits on the resources of all gateways together; raises ValueError for contradictory limits."""

    max_body_bytes: int = flag(
        DEFAULT_MAX_BODY_BYTES, "Largest request body accepted.", SIZE, name="--max-request-body"
    )
    max_gathered_bytes: int | None = flag(
        None,
        "Bytes of all incoming bodies and of all replies that gateways have not read. Above this limit, requests "
        "are refused with 503, slow ones first. By default 256Mi, or twice --max-request-body if that is more.",
        SIZE,
    )
    max_pending_streams: int = flag(
        16_384, "Most incomplete requests at a time; further ones are refused with 503.", COUNT
    )
    max_streams: int = flag(65_536, "Most requests at a time, until their responses end; further ones get 503.", COUNT)
    max_streams_per_connection: int = flag(
        16_384, "Most requests at a time on one connection of a gateway, which then opens another connection.", COUNT
    )
    max_connections: int = flag(
        4096,
        "Most connections of gateways, at most half of the file descriptors. A further one replaces a connection "
        "without requests, preferably one that never had any, or is closed. Not with --transport grpcio.",
        COUNT,
    )
    body_timeout_seconds: float = flag(
        60.0,
        "Longest pause within a request body; after it, the request is refused with 408. 0 for no limit. The time "
        "for which a gateway buffers a body is not counted.",
        DURATION,
        name="--body-timeout",
    )

    def __post_init__(self) -> None:
        least = self.least_gathered_bytes
        if self.max_gathered_bytes is not None and self.max_gathered_bytes < least:
            raise ValueError(
                f"--max-gathered-bytes {self.max_gathered_bytes} is too little for bodies of --max-request-body "
                f"{self.max_body_bytes}: give it {least} or more, or lower --max-request-body"
            )

    @property
    def least_gathered_bytes(self) -> int:
        """Lowest limit of gathered bytes with which a body of the largest size always fits."""
        return _LARGEST_BODIES * self.max_body_bytes

    @property
    def gathered_bytes(self) -> int:
        given = self.max_gathered_bytes
        return max(DEFAULT_GATHERED_BYTES, self.least_gathered_bytes) if given is None else given

    @property
    def pause_seconds(self) -> float:
        """Longest pause within a request; infinite for no limit."""
        return self.body_timeout_seconds or math.inf


class ResponseUsage(StrEnum):
    """Responses whose tokens are counted, for metrics and log lines."""

    AUTO = "auto"
    """Responses whose body the gateway shows."""
    ALWAYS = "always"
    """All responses; the gateway is asked to show their bodies."""
    NEVER = "never"
    """No responses; the gateway is asked to hide the bodies that no plugin reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseSettings:
    """Answers to clients, and the use of their responses."""

    plain_errors: bool = flag(False, "Send errors as plain text instead of the API's JSON.", SWITCH)
    """The text is the sentence of llm-d-router."""
    decision_headers: bool = flag(
        False,
        "Add the response headers x-epp-endpoint and x-epp-reason, with the endpoint and the reason of the pick.",
        SWITCH,
    )
    response_usage: ResponseUsage = flag(
        ResponseUsage.AUTO,
        "Count the tokens of responses, for metrics and log lines. auto: if the gateway shows their bodies. "
        "always: request the bodies that it does not show. never: decline the bodies that no plugin needs. Envoy "
        "must allow this (allow_mode_override); it does not in full-duplex mode.",
    )


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


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of the ext_proc server and its health service."""

    address: str = "unix:unset"
    """`ip:port`, `[::]` for all addresses, port 0 for any free one; or `unix:/path`. Empty to adopt connections."""
    health_address: str | None = None
    """Address of a separate plaintext health service; None for none."""
    health_on_main: bool = flag(
        True,
        "Also answer gRPC health checks on the ext_proc port, where Envoy sends them.",
        SWITCH,
        name="--health-checking",
    )
    secure: bool = flag(True, "Serve ext_proc over TLS.", SWITCH, name="--secure-serving")
    cert_path: Path | None = flag(
        None, "Directory with tls.crt and tls.key; without it, the certificate is self-signed.", "DIRECTORY"
    )
    cert_reload: bool = flag(
        True,
        "Reload tls.crt and tls.key of --cert-path when they change; if false, at SIGHUP.",
        SWITCH,
        name="--enable-cert-reload",
    )
    tls_min_version: TlsVersion = flag(TlsVersion.TLS_1_2, "Minimum TLS version.", TLS_VERSION)
    """TLS 1.2 is the only minimum that `Transport.GRPCIO` supports."""
    tls_ciphers: str = flag(
        "", "Cipher suites of TLS 1.2; by default all that HTTP/2 allows.", CIPHER_SUITES, name="--tls-cipher-suites"
    )
    """Names of OpenSSL; not supported by `Transport.GRPCIO`."""
    max_receive_bytes: int | None = flag(
        None, "Largest message accepted; by default 1Mi more than a body.", SIZE, name="--grpc-max-recv-msg-size"
    )
    max_send_bytes: int | None = flag(
        None, "Largest message sent; by default 1Mi more than a body.", SIZE, name="--grpc-max-send-msg-size"
    )
    transport: Transport = Transport.ASYNCIO
    metadata_names: frozenset[str] = frozenset()
    """Names of gRPC metadata, in lower case, that sessions can read."""
    budgets: BudgetSettings = field(default_factory=BudgetSettings)
    """Limits on the resources of all gateways together."""

    @property
    def receive_bytes(self) -> int:
        """Size of the largest message accepted."""
        return self._body_message_bytes if self.max_receive_bytes is None else self.max_receive_bytes

    @property
    def send_bytes(self) -> int:
        """Size of the largest message sent."""
        return self._body_message_bytes if self.max_send_bytes is None else self.max_send_bytes

    @property
    def _body_message_bytes(self) -> int:
        """Size of a message with the largest body in one piece."""
        return self.budgets.max_body_bytes + _HEADROOM_BYTES
