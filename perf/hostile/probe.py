# SPDX-License-Identifier: Apache-2.0
"""A client that repeats exchanges with the picker during an attack, as a program that reads orders.

`{"port": PORT, "secure": false, "pid": PID}` starts it; an empty order stops it and returns its observations.
"""

import asyncio
import contextlib
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from perf.hostile.judging import share_of
from perf.rig.orders import obey
from tests.support.serving import APART, destination_of, trusting

_BETWEEN_SECONDS = 0.01
_BEAT_SECONDS = 0.005
_LATE_SECONDS = 0.005
"""Delay of this process's timers, or of the picker without a CPU, above which the machine is the cause."""
_LONGEST_SECONDS = 30.0


@dataclass(slots=True)
class Probe:
    """Exchanges, one after the other, on one connection."""

    port: int
    secure: bool
    """Whether to use TLS."""
    pid: int
    """Process id of the picker."""
    seconds: list[float] = field(default_factory=list)
    held_up: int = 0
    """Exchanges that are not counted, because the machine delayed this process."""
    failures: list[str] = field(default_factory=list)
    _late_at: float = 0.0

    async def run(self) -> None:
        """Send requests until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat())
            group.create_task(self._ask())

    async def _beat(self) -> None:
        while True:
            due = time.monotonic() + _BEAT_SECONDS
            await asyncio.sleep(_BEAT_SECONDS)
            if time.monotonic() - due > _LATE_SECONDS:
                self._late_at = time.monotonic()

    def _waited(self) -> float:
        """Return the seconds that the picker's main thread was ready, but had no CPU."""
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text().split()[1]) / 1e9

    async def _channel(self) -> grpc.aio.Channel:
        address = ("127.0.0.1", self.port)
        if not self.secure:
            return grpc.aio.insecure_channel("{}:{}".format(*address), options=APART)
        return trusting(self.port, (await asyncio.to_thread(ssl.get_server_certificate, address)).encode())

    async def _ask(self) -> None:
        async with await self._channel() as channel:
            await destination_of(channel)
            while True:
                began, waited = time.monotonic(), self._waited()
                try:
                    async with asyncio.timeout(_LONGEST_SECONDS):
                        await destination_of(channel)
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError, AssertionError, TimeoutError) as error:
                    self.failures.append(f"{type(error).__name__}: {error}"[:300])
                else:
                    took = time.monotonic() - began
                    await asyncio.sleep(_BEAT_SECONDS)  # a late heartbeat is over
                    if self._late_at >= began or self._waited() - waited > _LATE_SECONDS:
                        self.held_up += 1
                    else:
                        self.seconds.append(took)
                await asyncio.sleep(_BETWEEN_SECONDS)

    def said(self) -> dict[str, Any]:
        """Return the observations."""
        return {
            "count": len(self.seconds),
            "p50": share_of(self.seconds, 0.5),
            "p99": share_of(self.seconds, 0.99),
            "longest": max(self.seconds, default=0.0),
            "held_up": self.held_up,
            "failures": self.failures,
        }


async def main() -> None:
    """Read orders until standard input is closed."""
    running: tuple[Probe, asyncio.Task[None]] | None = None

    async def order(given: dict[str, Any]) -> dict[str, Any]:
        nonlocal running
        if "port" in given:
            probe = Probe(given["port"], given["secure"], given["pid"])
            running = probe, asyncio.create_task(probe.run())
            return {}
        assert running is not None
        probe, task = running
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return probe.said()

    await obey(order)


if __name__ == "__main__":
    asyncio.run(main())
