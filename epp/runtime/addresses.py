# SPDX-License-Identifier: Apache-2.0
"""Addresses as people write them (`host:port`), and sockets that listen on them."""

import errno
import ipaddress
import re
import reprlib
import socket
from dataclasses import dataclass

_MAX_PORT = 65535
_MAX_HOST_CHARACTERS = 253
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
EVERYWHERE = "::"
"""The host that stands for all addresses of this machine, IPv6 and IPv4."""
_REASONS = {
    errno.EADDRINUSE: "the address is taken by another process: stop it (`ss -ltnp` names it), or choose another port",
    errno.EADDRNOTAVAIL: "this machine has no such address: choose one of its own, or :: for all of them",
    errno.EACCES: "this user may not: choose a port above 1023",
}


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host and a port; prints as `host:port`, an IPv6 address in brackets."""

    host: str
    """An IP address in canonical form, or a host name."""
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def shown_listening(host: str, port: int) -> str:
    """Return an address that is listened on as people read it: `*:port` for all of this machine."""
    return f"*:{port}" if host == "::" else str(HostPort(host, port))


def is_ip(host: str) -> bool:
    """Whether the host is an IPv4 or IPv6 address, without brackets."""
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
    """Return an IP address in canonical form, or a host name as it is; raises ValueError with the remedy."""
    if is_ip(text):
        return str(ipaddress.ip_address(text))
    if text.startswith("[") and text.endswith("]") and is_ip(text[1:-1]):
        raise ValueError(f"{text!r} has brackets: write {text[1:-1]}")
    last_label = text.rstrip(".").rpartition(".")[2]
    if last_label.isdigit() or len(text) > _MAX_HOST_CHARACTERS or not _HOST_NAME.fullmatch(text):
        raise ValueError(f"{text!r} is no IPv4 address, IPv6 address or host name: write one, without scheme or port")
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
        host = "0.0.0.0"  # noqa: S104  as asked for
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=backlog)


def refusal(address: object, error: OSError) -> str:
    """Return a sentence on an address that cannot be listened on, with the remedy; an error without a number: taken."""
    number = error.errno or errno.EADDRINUSE
    return f"cannot listen on {address}: {_REASONS.get(number) or error.strerror}"
