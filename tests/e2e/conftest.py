# SPDX-License-Identifier: Apache-2.0
"""Simulated servers and gateways, fresh for each test unless their names say `module`."""

import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from epp.lab.sim.server import RunningSim, running
from tests.support.ports import reserved_ports
from tests.support.serving import PLAIN, Served, serving
from tests.support.world import FAST, World, open_world, pool_of

Start = Callable[..., Awaitable[dict[str, RunningSim]]]


@contextlib.asynccontextmanager
async def _simulated_servers() -> AsyncIterator[Start]:
    async with contextlib.AsyncExitStack() as stack:

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
async def simulated() -> AsyncIterator[Start]:
    """Start simulated servers by name: `await simulated("a", "b")`; on the ports of those that end, nobody answers."""
    async with _simulated_servers() as start:
        yield start


@pytest.fixture
async def sim(simulated: Start) -> RunningSim:
    """One simulated server."""
    return (await simulated("a"))["a"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_sim() -> AsyncIterator[RunningSim]:
    """One simulated server for all tests of a module, which run in the module's event loop."""
    async with running(FAST) as sim:
        yield sim


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(module_sim: RunningSim) -> AsyncIterator[Served]:
    """A picker of its own process, in plaintext, before `module_sim`."""
    async with serving(module_sim, PLAIN, "--refresh-prometheus-metrics-interval=20ms") as served:
        yield served


@pytest_asyncio.fixture(loop_scope="module")
async def world() -> AsyncIterator[World]:
    """Three servers, `a`, `b` and `c`, behind the default configuration."""
    async with _simulated_servers() as start:
        sims = await start("a", "b", "c")
        async with open_world(endpoints=pool_of(sims), sims=sims) as world:
            await world.scraped()
            yield world


@pytest.fixture
def directory() -> Iterator[Path]:
    """For temporary files; short enough for the path of a unix socket, which `tmp_path` is not always."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.fixture
def port() -> Iterator[int]:
    """A free port, for a program that comes and goes."""
    with reserved_ports(1) as (port,):
        yield port
