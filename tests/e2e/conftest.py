# SPDX-License-Identifier: Apache-2.0
"""Worlds and servers, fresh for each test."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import msgspec
import pytest

from epp.lab.sim import RunningSim, running
from tests.support.ports import reserved_ports
from tests.support.world import FAST, World, open_world


@pytest.fixture
async def simulated() -> AsyncIterator[Callable[..., object]]:
    """Start simulated servers by name: `await simulated("a", "b")`; on the ports of those that end, nobody answers."""
    async with AsyncExitStack() as stack:

        async def start(*names: str, **changes) -> dict[str, RunningSim]:
            ports = stack.enter_context(reserved_ports(len(names)))
            return {
                name: await stack.enter_async_context(
                    running(msgspec.structs.replace(FAST, name=name, **changes), port=port)
                )
                for name, port in zip(names, ports, strict=True)
            }

        yield start


@pytest.fixture
async def world(simulated) -> AsyncIterator[World]:
    """Three servers, `a`, `b` and `c`, behind the default configuration."""
    sims = await simulated("a", "b", "c")
    endpoints = ",".join(f"{name}={sim.address}" for name, sim in sims.items())
    async with open_world(endpoints=endpoints, sims=sims) as world:
        await world.scraped()
        yield world
