# SPDX-License-Identifier: Apache-2.0
"""Requests that wait in a queue for longer than Envoy waits for an answer: the picker asks Envoy for more time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from epp.framework.headers import WENT_INTO_RESPONSE_HEADERS
from epp.framework.snapshot import IN_FLIGHT
from epp.lab.gateway.settings import Bodies, ClusterType, FailureMode
from epp.lab.sim.server import RunningSim
from tests.support.config_files import picker_config, replace
from tests.support.waiting import until
from tests.support.world import ANY_PORT, MODEL, World, open_world, pool_of

TIMEOUT_SECONDS = 1.0
"""Of a message, unless the picker asks for more."""
OPEN = {"failure_mode": FailureMode.FAIL_OPEN, "cluster_type": ClusterType.OVERRIDE_HOST}


def config(ttl: str) -> str:
    return picker_config(f"""
featureGates: [flowControl]
plugins:
- {{type: queue-scorer}}
- {{type: concurrency-detector, parameters: {{maxConcurrency: 1}}}}
schedulingProfiles: [{{name: default, plugins: [{{pluginRef: queue-scorer}}]}}]
flowControl:
  saturationDetector: {{pluginRef: concurrency-detector}}
  defaultRequestTTL: {ttl}
""")


@contextlib.asynccontextmanager
async def impatient(simulated: Callable, path: Path, ttl: str, **gateway: object) -> AsyncIterator[World]:
    """Run a gateway whose pool takes one request at a time, and which waits a second for an answer."""
    sims: dict[str, RunningSim] = await simulated("a")
    replace(path, config(ttl))
    settings = msgspec.structs.replace(ANY_PORT, message_timeout_seconds=TIMEOUT_SECONDS, **gateway)
    async with open_world(endpoints=pool_of(sims), sims=sims, config_file=path, gateway=settings) as world:
        yield world


async def ask(world: World, tokens: int = 2) -> tuple[int, bool]:
    """Return the status, and whether the picker saw the response."""
    body = {"model": MODEL, "prompt": "hello", "max_tokens": tokens, "ignore_eos": True}
    return await outcome(world.http.post(f"{world.url}/v1/completions", json=body))


async def outcome(asking: AbstractAsyncContextManager[aiohttp.ClientResponse]) -> tuple[int, bool]:
    async with asking as response:
        await response.read()
        return response.status, WENT_INTO_RESPONSE_HEADERS in response.headers


def queued(world: World) -> int:
    flow = world.gateway.picker.director.flow
    return 0 if flow is None else flow.queues.requests


async def assert_may_wait(world: World, asking: Coroutine[Any, Any, tuple[int, bool]]) -> None:
    """Let a request wait for longer than the gateway's own patience; check that it is served then."""
    async with taken(world):
        waiting = asyncio.create_task(asking)
        await until(lambda: queued(world) == 1, "a request waits", seconds=60)
        await asyncio.sleep(1.5 * TIMEOUT_SECONDS)
        assert queued(world) == 1
    assert await waiting == (200, True)


@contextlib.asynccontextmanager
async def taken(world: World) -> AsyncIterator[None]:
    """Hold the only place."""
    holder = asyncio.create_task(ask(world, tokens=100_000))
    await until(lambda: any(world.column(IN_FLIGHT).values()), "the place is taken", seconds=60)
    try:
        yield
    finally:
        holder.cancel()
        await asyncio.gather(holder, return_exceptions=True)


@pytest.mark.parametrize(
    ("gateway", "ttl"),
    [
        (OPEN, "10m"),
        ({**OPEN, "body_mode": Bodies.BUFFERED}, "0s"),
        ({}, "0s"),
        ({"body_mode": Bodies.BUFFERED}, "10m"),
    ],
    ids=["open", "open and buffered", "closed", "closed and buffered"],
)
async def test_request_may_wait_for_longer_than_a_message(simulated, tmp_path, gateway, ttl):
    async with impatient(simulated, tmp_path / "c.yaml", ttl, **gateway) as world:
        await assert_may_wait(world, ask(world))


@pytest.mark.parametrize("gateway", [{}, OPEN], ids=["closed", "open"])
async def test_request_without_a_body_may_wait_as_well(simulated, tmp_path, gateway):
    async with impatient(simulated, tmp_path / "c.yaml", "10m", **gateway) as world:
        await assert_may_wait(world, outcome(world.http.get(f"{world.url}/v1/models")))


async def test_longer_ttl_of_a_reload_counts_without_a_restart_of_the_gateway(simulated, tmp_path):
    path = tmp_path / "c.yaml"
    async with impatient(simulated, path, "100ms", **OPEN) as world:
        replace(path, config("10m"))

        def is_longer() -> bool:
            flow = world.gateway.picker.director.flow
            return flow is not None and flow.settings.default_band.ttl_seconds == 600

        await until(is_longer, "the configuration is in effect", seconds=60)
        await assert_may_wait(world, ask(world))
