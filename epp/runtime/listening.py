# SPDX-License-Identifier: Apache-2.0
"""Sockets that listen, and why an address cannot be listened on."""

import errno
import socket

EVERYWHERE = "::"
"""The host that stands for all addresses of this machine, IPv6 and IPv4."""

_REASONS = {
    errno.EADDRINUSE: "the address is taken by another process: stop it (`ss -ltnp` names it), or choose another port",
    errno.EADDRNOTAVAIL: "this machine has no such address: choose one of its own, or :: for all of them",
    errno.EACCES: "this user may not: choose a port above 1023",
}


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
