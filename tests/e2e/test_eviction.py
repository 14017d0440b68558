# SPDX-License-Identifier: Apache-2.0
"""Requests of low priority under way make room for one of high priority, behind a real Envoy."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from epp.framework.snapshot import IN_FLIGHT, SERVED
from epp.lab.gateway.settings import GatewaySettings
from tests.e2e.test_policies import OBJECTIVE, objective, written
from tests.support.config_files import picker_config
from tests.support.waiting import read_until, until
from tests.support.world import World, open_world, pool_of, question

CONFIG = picker_config("""
featureGates: [flowControl]
plugins:
- {type: queue-scorer}
- {type: concurrency-detector, parameters: {maxConcurrency: 2}}
- {type: sheddable-eviction-filter, parameters: {afterFirstToken: AFTER}}
flowControl:
  enableEviction: true
  saturationDetector: {pluginRef: concurrency-detector}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: queue-scorer}]}
""")
LONG = 150_000
"""Tokens that take much longer than any test."""


@asynccontextmanager
async def servers(
    simulated: Callable,
    tmp_path: Path,
    mode: str = "FULL_DUPLEX_STREAMED",
    *,
    after_first_token: bool = False,
    plain_errors: bool = False,
) -> AsyncIterator[World]:
    """Two servers with room for two requests each."""
    sims = await simulated("a", "b")
    objectives = objective("high", 10), objective("low", -5), objective("lower", -9)
    objects = written(tmp_path / "objects.yaml", *objectives)
    async with open_world(
        endpoints=pool_of(sims),
        sims=sims,
        config=CONFIG.replace("AFTER", str(after_first_token).lower()),
        gateway=GatewaySettings(listen_port=0, modes={"request_body_mode": mode}),
        objects=objects,
        experimental=True,
        plain_errors=plain_errors,
    ) as world:
        yield world


def asking_for(world: World, objective: str, tokens: int, **more: object):
    """The context of one request and its response."""
    body = question("hello", tokens, ignore_eos=True, **more)
    return world.http.post(f"{world.url}/v1/chat/completions", json=body, headers={OBJECTIVE: objective})


async def ask(world: World, objective: str, tokens: int) -> tuple[int, Mapping[str, str], str]:
    async with asking_for(world, objective, tokens) as response:
        return response.status, response.headers, await response.text()


def under_way(world: World) -> float:
    return sum(world.column(IN_FLIGHT).values())


async def full_of(world: World, *objectives: str) -> list[asyncio.Task]:
    """Let these requests fill the servers, one after the other."""
    asking = []
    for count, name in enumerate(objectives, 1):
        asking.append(asyncio.create_task(ask(world, name, LONG)))
        await until(lambda count=count: under_way(world) == count, "the request is under way")
    return asking


async def gave_up(world: World, count: int) -> None:
    """Wait until the servers have given up so many requests, as their clients left, and check that it is no more."""

    async def aborted() -> int:
        logs = [await world.requests_at(name) for name in world.sims]
        return sum(each["finish_reason"] == "abort" for log in logs for each in log)

    assert await read_until(aborted, lambda found: found >= count, f"{count} requests are given up") == count


async def ended(world: World, *asking: asyncio.Task) -> None:
    """Let clients leave, and check that the books are even then."""
    for each in asking:
        each.cancel()
    await until(lambda: under_way(world) == 0, "nothing is under way")
    await asyncio.wait(asking, timeout=20)


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED", "STREAMED"])
async def test_tf_11_one_request_of_low_priority_is_ended_before_its_first_token_for_one_of_high_priority(
    simulated, tmp_path, mode
):
    async with servers(simulated, tmp_path, mode) as world:
        asking = await full_of(world, "low", "low", "lower", "low")
        status, _, body = await ask(world, "high", 2)
        assert status == 200, body
        done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED, timeout=20)
        assert done == {asking[2]}  # the lowest priority
        status, headers, body = asking[2].result()
        assert status == 429
        assert headers["x-llm-d-request-dropped-reason"] == "evicted"
        assert int(headers["retry-after"]) >= 1
        assert "make room" in body
        await gave_up(world, 1)
        assert under_way(world) == 3
        await ended(world, *(each for each in asking if not each.done()))
        assert sum(world.column(SERVED).values()) == 5
        value = world.gateway.picker.metrics.registry.get_sample_value
        pool = {"inference_pool": "default"}
        assert value("llm_d_epp_flow_control_revocations_issued_total", {"priority": "10", **pool}) == 1
        assert value("llm_d_epp_flow_control_revocations_total", {"outcome": "confirmed", **pool}) == 1
        assert value("llm_d_epp_flow_control_revocation_confirmation_seconds_count", pool) == 1
        assert value("llm_d_epp_flow_control_pending_reclaim", pool) == 0


@asynccontextmanager
async def streams(world: World, count: int) -> AsyncIterator[list[aiohttp.ClientResponse]]:
    """Fill the servers with streams of low priority that have had their first token."""
    opened = []
    for _ in range(count):
        response = await asking_for(world, "low", LONG, stream=True)
        opened.append(response)
        assert b"data:" in await response.content.readline()
    try:
        yield opened
    finally:
        for response in opened:
            response.close()


async def test_tf_11_stream_that_has_begun_is_cut_where_the_configuration_says_so(simulated, tmp_path):
    async with servers(simulated, tmp_path, after_first_token=True) as world, streams(world, 4) as opened:
        status, _, body = await ask(world, "high", 2)
        assert status == 200, body
        assert under_way(world) == 3
        await gave_up(world, 1)
        with pytest.raises(aiohttp.ClientError):
            await opened[-1].read()  # the one that left last


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
async def test_evicted_client_has_the_sentence_of_llm_d_router_where_errors_are_plain(simulated, tmp_path, mode):
    async with servers(simulated, tmp_path, mode, plain_errors=True) as world:
        asking = await full_of(world, "low", "low", "lower", "low")
        status, _, body = await ask(world, "high", 2)
        assert status == 200, body
        status, headers, body = await asyncio.wait_for(asking[2], 20)
        assert (status, headers["x-llm-d-request-dropped-reason"]) == (429, "evicted")
        assert headers["content-type"].startswith("text/plain")
        assert body == "request evicted by flow control"
        assert int(headers["retry-after"]) >= 1
        await gave_up(world, 1)
        await ended(world, *asking)
