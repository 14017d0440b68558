# SPDX-License-Identifier: Apache-2.0
"""A picker under attack: its memory and descriptors, and a client that must be served all the time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc

from epp.lab.sim.server import running
from tests.support.commands import descriptors, memory_kib
from tests.support.serving import PLAIN, Served, destination_of, serving
from tests.support.waiting import until
from tests.support.world import FAST

FEW_MIB = 48
"""What an attacked picker may grow by, in MiB: far more than one connection may hold, far less than is sent at it."""
_MIB_KIB = 1024


class Watched:
    """What is seen of a picker from outside."""

    def __init__(self, served: Served, certificate: bytes | None) -> None:
        self.served = served
        self.answered = 0
        self._certificate = certificate
        self._at_rest = self._kib("VmRSS")

    @property
    def port(self) -> int:
        return self.served.grpc_port

    async def be_a_bystander(self) -> None:
        async with self._channel() as channel:
            while True:
                await destination_of(channel)
                self.answered += 1

    async def still_serves(self) -> None:
        """Wait for answers on the old connection, and have one on a new one."""
        before = self.answered
        await until(lambda: self.answered > before + 5, "others are served", seconds=60)
        async with self._channel() as channel:
            await destination_of(channel)

    @property
    def grown_mib(self) -> float:
        """By how much the memory at its highest was above the one at the start."""
        return (self._kib("VmHWM") - self._at_rest) / _MIB_KIB

    @property
    def descriptors(self) -> int:
        return descriptors(self.served.command.pid)

    def _channel(self) -> grpc.aio.Channel:
        return self.served.channel() if self._certificate is None else self.served.trusting(self._certificate)

    def _kib(self, name: str) -> int:
        return memory_kib(self.served.command.pid, name)


@contextlib.asynccontextmanager
async def under_attack(
    *flags: str, certificate: bytes | None = None, ulimit: str = "", most_mib: float = FEW_MIB
) -> AsyncIterator[Watched]:
    """Run a picker; what an attack must not do to it is checked at the end.

    `flags` say where its certificate is, if it has one; without any flags it speaks in plaintext.
    """
    async with running(FAST) as sim, serving(sim, *(flags or (PLAIN,)), ulimit=ulimit) as served:
        watched = Watched(served, certificate)
        bystander = asyncio.create_task(watched.be_a_bystander())
        try:
            yield watched
            await watched.still_serves()
            assert watched.grown_mib < most_mib
            assert not bystander.done(), bystander
            assert served.command.running
            assert not any("Traceback" in line for line in served.command.err)
        finally:
            bystander.cancel()
            with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                await bystander
