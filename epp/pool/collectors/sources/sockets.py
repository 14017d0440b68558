# SPDX-License-Identifier: Apache-2.0
"""Sockets of polling, whose file descriptors leave a share to listeners and files."""

import errno
import socket

from epp.runtime.process import polling_bound


def kept_socket(family: int) -> socket.socket:
    """Return a socket for a connection that is kept; raises OSError if no descriptor is left for such."""
    return _socket_below(polling_bound(kept=True), family)


def brief_socket(family: int) -> socket.socket:
    """Return a socket for a connection that is closed soon; raises OSError if no descriptor is left for such."""
    return _socket_below(polling_bound(kept=False), family)


def _socket_below(bound: int | None, family: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    if bound is not None and made.fileno() >= bound:
        made.close()
        raise OSError(errno.EMFILE, "all free file descriptors are reserved for listeners")
    return made
