# SPDX-License-Identifier: Apache-2.0
"""Worlds and servers, fresh for each test, and the carrier that their pickers use."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack

import msgspec
import pytest
from transports import OVER, VARIABLE, transports_of
from world import FAST, World, open_world

from epp.sim import RunningSim, running


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if mark := metafunc.definition.get_closest_marker(OVER):
        metafunc.parametrize("transport", transports_of(mark), indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def transport(request) -> Iterator[None]:
    """Have pickers use one carrier, where the test does; a picker that tests share needs this fixture too."""
    with pytest.MonkeyPatch.context() as patch:
        if chosen := getattr(request, "param", None):
            patch.setenv(VARIABLE, chosen)
        yield


@pytest.fixture
async def simulated() -> AsyncIterator[Callable[..., object]]:
    """Start simulated servers by name: `await simulated("a", "b")`."""
    async with AsyncExitStack() as stack:

        async def start(*names: str, **changes) -> dict[str, RunningSim]:
            return {
                name: await stack.enter_async_context(running(msgspec.structs.replace(FAST, name=name, **changes)))
                for name in names
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
