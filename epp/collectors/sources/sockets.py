# SPDX-License-Identifier: Apache-2.0
"""Sockets of polling, whose file descriptors leave a share to listeners and files."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

from epp.descriptors import polling_bound

if TYPE_CHECKING:  # a configuration is checked without it
    import aiohttp


def kept_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Return a socket for a connection that is kept; raises OSError if no descriptor is left for such."""
    return _socket_below(polling_bound(kept=True), address)


def brief_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Return a socket for a connection that is closed soon; raises OSError if no descriptor is left for such."""
    return _socket_below(polling_bound(kept=False), address)


def _socket_below(bound: int | None, address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    if bound is not None and made.fileno() >= bound:
        made.close()
        raise OSError(errno.EMFILE, "all free file descriptors are reserved for listeners")
    return made
