# SPDX-License-Identifier: Apache-2.0
"""Addresses in flags and parameters: of listening sockets, and of Redis and Valkey with their client."""

import asyncio
import errno
import ipaddress
import os
import re
import reprlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

_MAX_PORT = 65535
_MAX_HOST_CHARACTERS = 253
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
EVERYWHERE = "::"
"""The host for all addresses of this machine, IPv6 and IPv4."""
_REASONS = {
    errno.EADDRINUSE: "the address is taken by another process: stop it (`ss -ltnp` names it), or choose another port",
    errno.EADDRNOTAVAIL: "this machine does not have the address: choose one of its own, or :: for all of them",
    errno.EACCES: "the permission is missing: choose a port above 1023",
}


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host and a port; as text `host:port`, with brackets around an IPv6 address."""

    host: str
    """An IP address in canonical form, or a host name."""
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def shown_listening(host: str, port: int) -> str:
    """Return the human-readable address of a listener: `*:port` for all addresses of this machine."""
    return f"*:{port}" if host == "::" else str(HostPort(host, port))


def is_ip(host: str) -> bool:
    """Return whether the host is an IPv4 or IPv6 address without brackets."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def parse_host_port(text: str, *, min_port: int = 1) -> HostPort:
    """Read `host:port` or `[ipv6]:port`; raises ValueError with the remedy."""
    host, colon, port = text.rpartition(":")
    if not colon or is_ip(text) or (text.startswith("[") and "]" in text and "]:" not in text):
        raise ValueError(f"{text!r} has no port: write host:port or [ipv6]:port")
    if not host:
        raise ValueError(f"{text!r} has no host: write host:port or [ipv6]:port")
    if text.count("[") != text.count("]"):
        raise ValueError(f"{text!r} has one bracket without the other: write [ipv6]:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif is_ip(host) and ":" in host:
        raise ValueError(f"{text!r} has no brackets around its IPv6 address: write [{host}]:{port}")
    return HostPort(parse_host(host), parse_port(port, min_port=min_port))


def parse_host(text: str) -> str:
    """Return an IP address in canonical form, or a host name unchanged; raises ValueError with the remedy."""
    if is_ip(text):
        return str(ipaddress.ip_address(text))
    if text.startswith("[") and text.endswith("]") and is_ip(text[1:-1]):
        raise ValueError(f"{text!r} has brackets: write {text[1:-1]}")
    last_label = text.rstrip(".").rpartition(".")[2]
    if last_label.isdigit() or len(text) > _MAX_HOST_CHARACTERS or not _HOST_NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not an IP address or a host name: write one, without scheme or port")
    return text


def parse_port(value: object, *, min_port: int = 1) -> int:
    """Return a port, given as a number or as its digits; raises ValueError with the remedy."""
    port = int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() else value
    if isinstance(port, bool) or not isinstance(port, int) or not min_port <= port <= _MAX_PORT:
        raise ValueError(f"{reprlib.repr(value)} is not a port: write a number from {min_port} to {_MAX_PORT}")
    return port


def listener(host: str, port: int, *, backlog: int = 1) -> socket.socket:
    """Return a socket that listens on an IP address; raises OSError."""
    if host == EVERYWHERE:
        if socket.has_dualstack_ipv6():
            return socket.create_server((host, port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
        host = "0.0.0.0"  # noqa: S104  requested by the user
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=backlog)


def refusal(address: object, error: OSError) -> str:
    """Return the reason that an address cannot be listened on, with the remedy."""
    number = error.errno or errno.EADDRINUSE
    return f"cannot listen on {address}: {_REASONS.get(number) or error.strerror}"


if TYPE_CHECKING:
    from redis.asyncio import Redis

_MOST_REASON = 200
_SENTINEL_PORT = 26379


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Address of a Redis or Valkey server, or of Sentinels that name one; clusters are not supported.

    Errors never quote the address, which may have a password.
    """

    text: str
    """`redis://` or, with TLS, `rediss://`, then `[user:password@]host[:port][/database]`; or `unix:///path`; or, for
    the primary that Sentinels name, `redis+sentinel://[user:password@]host[:port],.../service[/database]`."""
    ca_file: str = ""
    """File with certificates of authorities for TLS; empty for the authorities of the system."""
    setting: str = "--shared-state"
    """Name of the flag or parameter with the address, for errors."""
    ca_setting: str = "--shared-state-ca-file"
    password_file: Path | None = None
    """File with the password, read for each connection; takes precedence over other passwords."""

    @property
    def name(self) -> str:
        """The address without credentials."""
        found = self.connection()
        if "unix_socket_path" in found:
            return f"unix://{found['unix_socket_path']}"
        hosts = found.get("sentinels") or [(found["host"], found["port"])]
        service = f"/{found['service_name']}" if "service_name" in found else ""
        shown = ",".join(str(HostPort(host, port)) for host, port in hosts)
        return f"{self._parts.scheme}://{shown}{service}/{found['db']}"

    def connection(self, variables: Mapping[str, str] = os.environ) -> dict[str, Any]:
        """Return the arguments for a client of redis-py; raises ValueError for an invalid address.

        If the address has no password, `EPP_REDIS_PASSWORD` supplies it, and `EPP_REDIS_USERNAME` supplies a missing
        user. For Sentinels, the arguments are `sentinels` and `service_name` in place of host and port.
        """
        parts = self._parts
        if parts.scheme.endswith("+cluster"):
            raise ValueError(
                f"{self.setting}: clusters are not supported; write redis://host:6379/0 for one server, or "
                "redis+sentinel://host1:26379,host2:26379/service for a server with replicas"
            )
        found = self._place()
        if not found or not all(value for name, value in found.items() if name != "db"):
            raise ValueError(
                f"{self.setting} is not an address; write redis://host:6379/0, or "
                "redis+sentinel://host1:26379,host2:26379/service, and %2F for a / in a password"
            )
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        if not password:
            user = user or variables.get("EPP_REDIS_USERNAME", "")
            password = variables.get("EPP_REDIS_PASSWORD", "")
        if self.password_file is None:
            found |= {"username": user or None, "password": password or None}
        else:
            found["credential_provider"] = _PasswordFile(self.password_file, user)
        if parts.scheme.startswith("rediss"):
            found |= {"ssl": True, "ssl_ca_certs": self.ca_file or None}
        elif self.ca_file:
            raise ValueError(f"{self.ca_setting} needs an address that begins with rediss")
        return found

    def client(self, answer_seconds: float) -> "Redis":
        """Return a client, not yet connected and without retries; raises ValueError if the library is missing.

        An operation fails if the server does not answer within `answer_seconds`.
        """
        try:
            from redis.asyncio import Redis  # noqa: PLC0415  an optional library
            from redis.asyncio.retry import Retry  # noqa: PLC0415  the same
            from redis.asyncio.sentinel import Sentinel  # noqa: PLC0415  the same
            from redis.backoff import NoBackoff  # noqa: PLC0415  the same
        except ModuleNotFoundError as error:
            raise ValueError(
                f"{self.setting.partition('.')[0]} needs the extra redis: pip install 'inference-epp[redis]'"
            ) from error
        options: dict[str, Any] = {
            "protocol": 2,
            "driver_info": None,
            "socket_timeout": answer_seconds,
            "socket_connect_timeout": answer_seconds,
            "retry": Retry(NoBackoff(), 0),
        }
        given = self.connection()
        sentinels, service = given.pop("sentinels", None), given.pop("service_name", "")
        if not sentinels:
            return Redis(**given, **options)

        class Sentinels(Sentinel):
            """Sentinels that are only connected during a query, once for each connection to the server."""

            async def discover_master(self, service_name: str) -> Any:
                try:
                    return await super().discover_master(service_name)
                finally:
                    for each in self.sentinels:
                        await each.connection_pool.disconnect(inuse_connections=False)

        for_sentinels = {name: value for name, value in given.items() if name.startswith("ssl")} | options
        for_sentinels["password"] = os.environ.get("EPP_REDIS_SENTINEL_PASSWORD") or None
        resolver: Sentinel = Sentinels(sentinels, sentinel_kwargs=for_sentinels)  # type: ignore[no-untyped-call]  # redis-py
        found: Redis = resolver.master_for(service, **given, **options)
        return found

    def _place(self) -> dict[str, Any]:
        """Return the arguments that locate the server or its Sentinels; empty for an invalid address."""
        parts = self._parts
        try:
            if parts.scheme in {"redis+sentinel", "rediss+sentinel"}:
                hosts = [urlsplit(f"//{each}") for each in parts.netloc.rpartition("@")[2].split(",")]
                service, _, database = parts.path.strip("/").partition("/")
                sentinels = all(each.hostname for each in hosts) and [
                    (each.hostname, each.port or _SENTINEL_PORT) for each in hosts
                ]
                return {"sentinels": sentinels, "service_name": unquote(service), "db": int(database or 0)}
            is_socket = parts.scheme == "unix"
            named = parse_qs(parts.query).get("db", ["" if is_socket else parts.path.strip("/")])[0]
            if is_socket:
                return {"unix_socket_path": parts.path, "db": int(named or 0)}
            if parts.scheme in {"redis", "rediss"}:
                return {"host": parts.hostname, "port": parts.port or 6379, "db": int(named or 0)}
        except ValueError:
            pass
        return {}

    @property
    def _parts(self) -> SplitResult:
        address = self.text if "://" in self.text else f"redis://{self.text}"
        scheme, _, rest = address.partition("://")
        try:
            return urlsplit(f"{re.sub(r'^valkey', 'redis', scheme)}://{rest}")
        except ValueError:  # an invalid host in brackets
            return urlsplit("")


@dataclass(frozen=True, slots=True)
class _PasswordFile:
    """Credential provider for redis-py: a user, and the password in a file that may change."""

    path: Path
    user: str

    async def get_credentials_async(self) -> tuple[str, ...]:
        """Return the user, if it is not the default one, and the password; raises OSError for an unreadable file."""
        password = (await asyncio.to_thread(self.path.read_text)).strip()
        return (self.user, password) if self.user else (password,)


def failure_text(error: BaseException) -> str:
    """Return the reason of a failed operation in one short line."""
    return " ".join(str(error).split())[:_MOST_REASON] or type(error).__name__
