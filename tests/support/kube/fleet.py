# SPDX-License-Identifier: Apache-2.0
"""Pods of a test with simulated model servers at their addresses."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec

from epp.lab.sim.profile import SimProfile
from epp.lab.sim.server import RunningSim, running
from tests.support.kube.client import Manifest
from tests.support.kube.space import Space
from tests.support.ports import reserved_ports
from tests.support.world import FAST


class Fleet:
    """Each pod has a loopback address of its own, and a server named `<pod>-rank-<i>` at each of the ports."""

    def __init__(self, space: Space, stack: AsyncExitStack, ports: Sequence[int], profile: SimProfile) -> None:
        self.space = space
        self.profile = profile
        self.ports = tuple(ports)
        self.pods: dict[str, Manifest] = {}
        self.servers: dict[str, RunningSim] = {}
        self._stack = stack
        self._running: dict[str, AsyncExitStack] = {}
        self._network = f"127.{random.randrange(16, 240)}.{random.randrange(256)}"
        self._addresses = 0

    def address(self) -> str:
        """Return an address that no pod of the fleet has had."""
        self._addresses += 1
        return f"{self._network}.{self._addresses}"

    async def start(self, *names: str, **content: Any) -> None:
        """Start servers and their pods, ready ones unless `ready=False`; `content` is that of `manifests.pod`."""
        for name in names:
            address = content.pop("ip", "") or self.address()
            await self.serve(name, address)
            self.pods[name] = await self.space.pod(name, address, **content)

    async def serve(self, name: str, address: str) -> None:
        """Start the servers of a pod at an address."""
        self._running[name] = stack = await self._stack.enter_async_context(AsyncExitStack())
        for rank, port in enumerate(self.ports):
            server = msgspec.structs.replace(self.profile, name=f"{name}-rank-{rank}")
            self.servers[server.name] = await stack.enter_async_context(running(server, address, port))

    async def stop(self, name: str) -> None:
        """End the servers of a pod; what they were about to answer is lost."""
        await self._running.pop(name).aclose()

    async def ready(self, name: str) -> None:
        self.pods[name] = await self.space.ready(self.pods[name])

    async def unready(self, name: str) -> None:
        self.pods[name] = await self.space.ready(self.pods[name], ready=False)

    async def terminate(self, name: str) -> None:
        """Mark the pod as terminating; its servers go on."""
        self.pods[name] = await self.space.terminate(self.pods[name])

    async def delete(self, name: str) -> None:
        """Delete the pod; its servers go on."""
        await self.space.delete(self.pods.pop(name))

    async def label(self, name: str, **labels: str | None) -> None:
        self.pods[name] = await self.space.label(self.pods[name], **labels)

    async def annotate(self, name: str, **annotations: str | None) -> None:
        self.pods[name] = await self.space.annotate(self.pods[name], **annotations)


@asynccontextmanager
async def fleet_in(space: Space, *, ports: int = 1, profile: SimProfile = FAST) -> AsyncIterator[Fleet]:
    """Open a fleet without pods, whose servers have so many ports each, and are like the profile."""
    async with AsyncExitStack() as stack:
        yield Fleet(space, stack, stack.enter_context(reserved_ports(ports)), profile)
