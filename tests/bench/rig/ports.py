# SPDX-License-Identifier: Apache-2.0
"""Free TCP ports."""

import contextlib
import random
import socket


def free_ports(count: int) -> list[int]:
    """Return ports below the range that the kernel hands out, so that nobody who binds port 0 gets one meanwhile."""
    with contextlib.ExitStack() as probes:
        ports: list[int] = []
        for port in random.sample(range(20_000, 32_000), 1_000):
            with contextlib.suppress(OSError):
                probes.enter_context(socket.create_server(("", port)))
                ports.append(port)
            if len(ports) == count:
                return ports
    raise OSError("no free ports between 20000 and 32000")
