# SPDX-License-Identifier: Apache-2.0
"""Servers with a metrics page beside servers without one, behind `epp gateway`."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from uuid import uuid4

import openai
import pytest
import pytest_asyncio

from tests.support.commands import command
from tests.support.world import client_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = "outside-8b"
SIMULATE = ("sim-server", "--port=0", "--model", MODEL, "--time-scale=0.2")
REQUESTS = 72
TRIES = 3
"""On a busy machine equal servers are not equally fast each time; one that is starved is so each time."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers() -> AsyncIterator[dict[str, str]]:
    """Addresses of two equal servers with a page and two without, by name."""
    async with (
        command(*SIMULATE, "--name=page-1") as page,
        command(*SIMULATE, "--name=page-2") as other_page,
        command(*SIMULATE, "--name=none-1", "--no-metrics") as none,
        command(*SIMULATE, "--name=none-2", "--no-metrics") as other_none,
    ):
        said = {
            "page-1": await page.says(MODEL),
            "page-2": await other_page.says(MODEL),
            "none-1": await none.says(MODEL),
            "none-2": await other_none.says(MODEL),
        }
        yield {name: line.rpartition("http://")[2] for name, line in said.items()}


@pytest.mark.parametrize("names", [("page-1", "none-1"), ("none-1", "none-2"), ("page-1", "page-2", "none-1")])
async def test_servers_without_a_metrics_page_get_their_share(servers, names):
    endpoints = ",".join(f"{name}={servers[name]}" for name in names)
    async with command("gateway", "--listen=127.0.0.1:0", "--endpoints", endpoints) as gateway:
        url = (await gateway.says("listening on")).split()[2]
        async with client_of(url) as client:
            for at_once in (1, 12, REQUESTS):
                tried = []
                while not tried or min(tried[-1][name] for name in names) < REQUESTS // len(names) // 2:
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
