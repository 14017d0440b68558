# SPDX-License-Identifier: Apache-2.0
"""Servers with a metrics page beside one without, behind `epp gateway`; more in tests/unit/test_mixed_pools.py."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from uuid import uuid4

import openai
import pytest

from tests.support.commands import command
from tests.support.world import client_of

MODEL = "outside-8b"
SIMULATE = ("sim-server", "--port=0", "--model", MODEL, "--time-scale=0.2")
REQUESTS = 72
TRIES = 3
"""On a busy machine equal servers are not equally fast each time; one that is starved is so each time."""


@pytest.fixture
async def servers() -> AsyncIterator[dict[str, str]]:
    """Addresses of two equal servers with a page and one without, by name."""
    async with (
        command(*SIMULATE, "--name=page-1") as page,
        command(*SIMULATE, "--name=page-2") as other_page,
        command(*SIMULATE, "--name=none", "--no-metrics") as none,
    ):
        said = {
            "page-1": await page.says(MODEL),
            "page-2": await other_page.says(MODEL),
            "none": await none.says(MODEL),
        }
        yield {name: line.rpartition("http://")[2] for name, line in said.items()}


async def test_server_without_a_metrics_page_gets_its_share(servers):
    endpoints = ",".join(f"{name}={address}" for name, address in servers.items())
    async with command("gateway", "--listen=127.0.0.1:0", "--endpoints", endpoints) as gateway:
        url = (await gateway.says("listening on")).split()[2]
        async with client_of(url) as client:
            for at_once in (1, 12, REQUESTS):
                tried = []
                while not tried or min(tried[-1][name] for name in servers) < REQUESTS // len(servers) // 2:
                    assert len(tried) < TRIES, f"one gets less than half of its share, {at_once} at once: {tried}"
                    tried.append(await shares_of(client, at_once))


async def shares_of(client: openai.AsyncOpenAI, at_once: int) -> Counter[str]:
    """Send requests, so many at a time; return how many each server answered."""
    gate = asyncio.Semaphore(at_once)

    async def ask() -> str:
        async with gate:
            raw = await client.chat.completions.with_raw_response.create(
                model=MODEL, messages=[{"role": "user", "content": f"{uuid4()} is the question"}], max_tokens=4
            )
        return raw.headers["x-sim-server"]

    return Counter(await asyncio.gather(*(ask() for _ in range(REQUESTS))))
