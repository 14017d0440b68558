"""Binds a gRPC server to an address: to all of it, or not at all."""

import errno
import os
import socket

import grpc

from epp.framework import ConfigurationError

_EVERYWHERE = "[::]:"


def bind(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    """Listen on `host:port` or `unix:/path`, in plaintext without credentials; return the port, 0 for a unix socket.

    Raises ConfigurationError when the address is taken, be it in part: gRPC by itself would take `[::]` for IPv4 alone
    where another program has the port on IPv6.
    """
    taken = ConfigurationError(
        f"cannot listen on {address}: the address is taken or not this machine's; choose another port"
    )
    if address.startswith(_EVERYWHERE) and _is_taken_on_ipv6(int(address.removeprefix(_EVERYWHERE))):
        raise taken
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise taken from error
    return 0 if address.startswith("unix:") else port


def _is_taken_on_ipv6(port: int) -> bool:
    """Whether another process listens there on IPv6."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            if os.name == "posix":  # elsewhere the option lets two programs share a port
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(("::", port))
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False
