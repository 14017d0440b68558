# SPDX-License-Identifier: Apache-2.0
"""Sockets for the ext_proc service: all of an address, or not at all."""

import socket
from pathlib import Path

from epp.framework import ConfigurationError
from epp.runtime.addresses import listener, parse_host_port, refusal

_UNIX = "unix:"


def bound_socket(address: str) -> socket.socket:
    """Return a socket that listens on `ip:port` or `unix:/path`; raises ConfigurationError when it is taken."""
    if address.startswith(_UNIX):
        return _unix(address)
    place = parse_host_port(address, min_port=0)
    try:
        return listener(place.host, place.port)
    except OSError as error:
        raise ConfigurationError(refusal(place, error)) from error


def unlink(address: str) -> None:
    """Remove the file of a unix socket that was listened on."""
    if address.startswith(_UNIX):
        Path(address.removeprefix(_UNIX)).unlink(missing_ok=True)


def _unix(address: str) -> socket.socket:
    path = Path(address.removeprefix(_UNIX))
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _answers(path):
            path.unlink()  # left behind by a process that has ended
        sock.bind(str(path))
        sock.listen()
    except OSError as error:
        sock.close()
        raise ConfigurationError(
            f"cannot listen on {address}: another process has it, or its directory cannot be written"
        ) from error
    return sock


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True
