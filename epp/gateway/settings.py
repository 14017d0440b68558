"""What one can choose about the local Envoy, and the address forms it understands."""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import msgspec

from epp.gateway.errors import SettingsError

__all__ = [
    "ENDPOINT_PICKER",
    "LISTENER",
    "MODEL_SERVERS",
    "BodyMode",
    "BodyModes",
    "ClusterType",
    "FailureMode",
    "GatewaySettings",
    "PipeAddress",
    "TcpAddress",
    "parse_address",
]

LISTENER = "gateway"
"""The name of the one listener, in Envoy's statistics too."""

ENDPOINT_PICKER = "endpoint_picker"
"""The name of the cluster that holds the one picker."""

MODEL_SERVERS = "model_servers"
"""The name of the cluster that requests go to; the endpoints in an EDS file are given to this name."""

_MAX_PORT = 65_535
# sockaddr_un.sun_path holds 108 bytes with its terminator.
_MAX_SOCKET_PATH_BYTES = 107


class BodyMode(StrEnum):
    """How Envoy hands a body to the picker; Envoy's own names."""

    NONE = "NONE"
    STREAMED = "STREAMED"
    BUFFERED = "BUFFERED"
    BUFFERED_PARTIAL = "BUFFERED_PARTIAL"
    FULL_DUPLEX_STREAMED = "FULL_DUPLEX_STREAMED"


class HeaderMode(StrEnum):
    """Whether Envoy shows headers or trailers to the picker; Envoy's own names."""

    DEFAULT = "DEFAULT"
    """Headers are shown, trailers are not."""
    SEND = "SEND"
    SKIP = "SKIP"


class BodyModes(NamedTuple):
    """The modes of both directions."""

    request: BodyMode
    response: BodyMode


class ClusterType(StrEnum):
    """How Envoy finds the server that the picker names."""

    ORIGINAL_DST = "original-dst"
    """It connects to the address in the header, whatever it is: exactly one, no fallback."""
    OVERRIDE_HOST = "override-host"
    """It knows the endpoints from a file, and walks the picker's list of them when one takes no connection."""


class FailureMode(StrEnum):
    """What becomes of requests while the picker is down; the names are those of an InferencePool."""

    FAIL_CLOSE = "FailClose"
    """503."""
    FAIL_OPEN = "FailOpen"
    """Envoy chooses: of two random endpoints the one with fewer requests."""


_BODY_MODES = {
    FailureMode.FAIL_CLOSE: BodyModes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED),
    FailureMode.FAIL_OPEN: BodyModes(BodyMode.BUFFERED, BodyMode.STREAMED),
}
_MESSAGE_TIMEOUT_SECONDS = {FailureMode.FAIL_CLOSE: 1000.0, FailureMode.FAIL_OPEN: 10.0}
_POSITIVE = (
    "buffer_limit_bytes",
    "concurrency",
    "connect_timeout_seconds",
    "max_body_bytes",
    "message_timeout_seconds",
)


class TcpAddress(msgspec.Struct, frozen=True):
    """An IP address and a port; prints as `host:port`, with brackets around IPv6."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class PipeAddress(msgspec.Struct, frozen=True):
    """The absolute path of a unix domain socket; prints as `unix:/path`."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A local Envoy in front of one picker.

    Raises `SettingsError`, naming the setting, when a value cannot be used.
    """

    listen_host: str = "127.0.0.1"
    """IP address clients connect to."""

    listen_port: int = 8080
    """0 lets the kernel choose; `EnvoyProcess.address` tells which."""

    picker_address: str = "127.0.0.1:9002"
    """Where the picker serves ext_proc: `ip:port`, `[ipv6]:port` or `unix:/absolute/path`."""

    picker_tls: bool = False
    """The picker serves TLS. Its certificate is not verified: self-signed is what pickers serve."""

    admin_address: str | None = None
    """Envoy's admin interface: loopback `ip:port`, or `unix:/absolute/path`.

    None leaves it out of a printed configuration; `EnvoyProcess` then uses a socket in its private directory.
    Whoever reaches this interface can stop Envoy, so nothing but loopback is accepted.
    """

    cluster_type: ClusterType = ClusterType.ORIGINAL_DST

    eds_file: Path | None = None
    """The file from which an override-host cluster takes its endpoints; see `EdsFile`. Its absolute path."""

    failure_mode: FailureMode = FailureMode.FAIL_CLOSE

    request_body_mode: BodyMode | None = None
    """None for what the failure mode needs, see `body_modes`."""

    response_body_mode: BodyMode | None = None
    """None for what the failure mode needs, see `body_modes`."""

    request_header_mode: HeaderMode = HeaderMode.SEND
    """SKIP cannot work: headers that are not shown leave before the picker has named a destination."""

    response_header_mode: HeaderMode = HeaderMode.SEND

    request_trailer_mode: HeaderMode = HeaderMode.SEND
    """Envoy takes nothing but SEND with a FULL_DUPLEX_STREAMED body."""

    response_trailer_mode: HeaderMode = HeaderMode.SEND
    """The same."""

    message_timeout_seconds: float | None = None
    """How long the picker may think about one message; Envoy has no such limit for full-duplex bodies.

    None for 1000 s with FailClose, and for 10 s with FailOpen, where a request goes on without a picker that hangs.
    """

    concurrency: int = 1
    """Envoy worker threads."""

    access_log: bool = False
    """One line per request on stdout."""

    connect_timeout_seconds: float = 2.0
    """How long a connection to a model server may take."""

    buffer_limit_bytes: int = 1024 * 1024
    """What Envoy holds per connection, in each direction, before it stops reading.

    It does not limit streamed bodies, only their pieces: the picker receives messages of about this size, so stay
    below the 4 MiB that gRPC servers accept by default. With BUFFERED it is the largest body, but for request bodies
    on the way to an override-host cluster: for those it is `max_body_bytes`.
    """

    metadata_namespaces: tuple[str, ...] = ()
    """Namespaces of dynamic metadata that are taken from the picker, besides the one of the destination."""

    max_body_bytes: int = 32 * 1024 * 1024
    """With an override-host cluster, the largest request body that can be tried again at another endpoint.

    With BUFFERED it is also the largest that is accepted; a larger one is answered with 413.
    """

    def __post_init__(self) -> None:
        listen = _tcp_address(self.listen_host, self.listen_port, setting="listen_host, listen_port")
        if listen.host != self.listen_host:
            raise SettingsError(f"listen_host: write {listen.host!r} for {self.listen_host!r}")
        if parse_address(self.picker_address, setting="picker_address") == listen:
            raise SettingsError(f"picker_address and listen address are both {listen}: choose another listen_port")
        if self.admin_address is not None:
            _check_admin_address(self.admin_address)
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise SettingsError(f"{name} must be greater than 0, not {value}")
        if self.eds_file is not None and not self.eds_file.is_absolute():
            raise SettingsError(f"eds_file: {str(self.eds_file)!r} is not an absolute path")
        if self.failure_mode is FailureMode.FAIL_OPEN:
            self._check_that_it_can_fail_open()

    @property
    def listen(self) -> TcpAddress:
        """The listen host and port as one address."""
        return TcpAddress(self.listen_host, self.listen_port)

    @property
    def body_modes(self) -> BodyModes:
        """The modes in force.

        With FailOpen, request bodies go to the picker whole (BUFFERED): Envoy then still has the body when the picker
        dies over it. Full-duplex bodies are the picker's to give back, and die with it: Envoy 1.40 answers 503, or
        cuts the response. STREAMED responses go on without the picker.
        """
        default = _BODY_MODES[self.failure_mode]
        return BodyModes(self.request_body_mode or default.request, self.response_body_mode or default.response)

    @property
    def patience_seconds(self) -> float:
        """The message timeout in force."""
        return self.message_timeout_seconds or _MESSAGE_TIMEOUT_SECONDS[self.failure_mode]

    def _check_that_it_can_fail_open(self) -> None:
        if self.cluster_type is not ClusterType.OVERRIDE_HOST:
            raise SettingsError(
                f"failure mode FailOpen does not go with cluster type {self.cluster_type}, which knows no endpoint but "
                "the one the picker names: choose cluster type override-host"
            )
        if BodyMode.FULL_DUPLEX_STREAMED in self.body_modes:
            raise SettingsError(
                "failure mode FailOpen does not go with FULL_DUPLEX_STREAMED bodies, which are lost when the picker "
                "dies: leave request_body_mode and response_body_mode out, or choose BUFFERED and STREAMED"
            )


def parse_address(text: str, *, setting: str) -> TcpAddress | PipeAddress:
    """Read `ip:port`, `[ipv6]:port`, `localhost:port` or `unix:/absolute/path`.

    `SettingsError` names `setting` when the text is none of these.
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path.startswith("/"):
            raise SettingsError(f"{setting}: {text!r} needs an absolute path, as in unix:/run/epp.sock")
        if len(path.encode()) > _MAX_SOCKET_PATH_BYTES:
            raise SettingsError(
                f"{setting}: {path!r} is longer than {_MAX_SOCKET_PATH_BYTES} bytes, use a shorter path"
            )
        return PipeAddress(path)
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()):
        raise SettingsError(f"{setting}: {text!r} is neither ip:port nor unix:/absolute/path")
    return _tcp_address(host, int(port), setting=setting)


def _tcp_address(host: str, port: int, *, setting: str) -> TcpAddress:
    bare_host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    # The clusters are static: Envoy resolves no names for them.
    bare_host = "127.0.0.1" if bare_host == "localhost" else bare_host
    try:
        ipaddress.ip_address(bare_host)
    except ValueError:
        raise SettingsError(f"{setting}: {host!r} is not an IP address (Envoy resolves no names here)") from None
    if not 0 <= port <= _MAX_PORT:
        raise SettingsError(f"{setting}: port {port} is not between 0 and {_MAX_PORT}")
    return TcpAddress(bare_host, port)


def _check_admin_address(text: str) -> None:
    address = parse_address(text, setting="admin_address")
    if not isinstance(address, TcpAddress):
        return
    if address.port == 0:
        raise SettingsError(f"admin_address: {text!r} has port 0, and nobody would know which it became; name one")
    if not ipaddress.ip_address(address.host).is_loopback:
        raise SettingsError(
            f"admin_address: {text!r} is not loopback, and whoever reaches it can stop Envoy; use 127.0.0.1"
        )
