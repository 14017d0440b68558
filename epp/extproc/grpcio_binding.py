# SPDX-License-Identifier: Apache-2.0
"""Binds a gRPC server to an address: to all of it, or not at all."""

import errno
import os
import socket

import grpc

from epp.framework import ConfigurationError
from epp.host_port import HostPort, parse_host_port
from epp.listening import EVERYWHERE, listener, refusal


def bind(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    """Listen on `ip:port` or `unix:/path`, in plaintext without credentials; return the port, 0 for a unix socket.

    Raises ConfigurationError when the address is taken, be it in part: gRPC by itself would take `[::]` for IPv4 alone
    where another program has the port on IPv6.
    """
    place = None if address.startswith("unix:") else parse_host_port(address, min_port=0)
    try:
        if place is not None and place.host == EVERYWHERE:
            _check_ipv6(place.port)
        port = _add_port(server, address, credentials)
    except OSError as error:
        raise ConfigurationError(_why_not(address, place, error)) from error
    return 0 if place is None else port


def _add_port(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise OSError from error  # of an unknown number


def _why_not(address: str, place: HostPort | None, error: OSError) -> str:
    """Return what an attempt by other means says, as gRPC says nothing."""
    if place is None:
        return f"cannot listen on {address}: another process has it, or its directory cannot be written"
    try:
        listener(place.host, place.port).close()
    except OSError as known:
        error = known
    return refusal(place, error)


def _check_ipv6(port: int) -> None:
    """Raise OSError where another process listens there on IPv6."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            if os.name == "posix":  # elsewhere the option lets two programs share a port
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind((EVERYWHERE, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
