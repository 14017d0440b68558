# SPDX-License-Identifier: Apache-2.0
"""Ports for programs that are told theirs before they listen."""

import contextlib
import random
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Choose ports on which, until the end of the block, programs that are told them can listen, again and again.

    They lie below the range that the kernel hands out. A socket that is bound, but does not listen, keeps others who
    reserve ports away; it has SO_REUSEADDR, and so it is no hindrance to servers, which have that too.
    """
    with contextlib.ExitStack() as reserved:
        ports: list[int] = []
        for port in random.sample(range(20_000, 32_000), 1_000):
            with contextlib.suppress(OSError):
                ports.append(_reserve(port, reserved))
            if len(ports) == count:
                break
        else:
            raise OSError("no free ports between 20000 and 32000")
        yield ports


def _reserve(port: int, until: contextlib.ExitStack) -> int:
    dual = socket.has_dualstack_ipv6()
    holder = until.enter_context(socket.socket(socket.AF_INET6 if dual else socket.AF_INET))
    if dual:
        holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    holder.bind(("", port))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after bind, which is to fail where there is another
    return port
