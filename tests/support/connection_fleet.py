# SPDX-License-Identifier: Apache-2.0
"""Workers without processes: they count what they are passed, and report what a test says."""

import contextlib
import socket

from epp.framework import ManualClock
from epp.sharing.connections import Connections, Load


def load(*rates: float, received: int = 0, young: int = 0, streams: int = 0, begun: int = 0) -> Load:
    """Return the load of a worker with a working connection for each rate."""
    return Load(received, len(rates) + young, len(rates), streams, begun, sum(rates), tuple(sorted(rates)))


class Fleet:
    """Workers that count what they are passed and report what a test says."""

    def __init__(self, *numbers: int) -> None:
        self.clock = ManualClock()
        self.released: list[tuple[int, float]] = []
        self.connections = Connections(lambda *what: self.released.append(what), self.clock.now)
        self.ends: dict[int, socket.socket] = {}
        self.passed: dict[int, int] = {}
        self._open = contextlib.ExitStack()
        for number in numbers:
            self.add(number)

    def add(self, number: int) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            self._open.enter_context(end)
        theirs.setblocking(False)  # noqa: FBT003
        self.ends[number] = theirs
        self.passed[number] = 0
        self.connections.add(number, ours)

    def hand_over(self) -> int | None:
        """Pass a connection; return who got it."""
        with socket.socket() as connection:
            taken = self.connections.hand_over(connection)
        for number, end in self.ends.items():
            with contextlib.suppress(OSError):
                _, descriptors, _, _ = socket.recv_fds(end, 1, 1)
                for descriptor in descriptors:
                    socket.close(descriptor)
                    self.passed[number] += 1
                    return number
        assert not taken
        return None

    def report(self, **loads: Load) -> None:
        """Report for `w1`, `w2` and so on each second of two."""
        for seconds in (1, 1, 0):
            for name, each in loads.items():
                self.connections.report(int(name[1:]), each)
            self.clock.advance(seconds)

    def close(self) -> None:
        self._open.close()
