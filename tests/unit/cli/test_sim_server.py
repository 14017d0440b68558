# SPDX-License-Identifier: Apache-2.0
"""`epp sim-server` as a process: its address, its end, its errors."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator

import aiohttp

HELLO = [{"role": "user", "content": "hello"}]
SLOW = ("--time-scale=5", "--seed=1")
"""A step of the a100 preset then takes 0.07 s, and an answer of 32 tokens 2 s."""


@contextlib.asynccontextmanager
async def sim_server(*flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "epp", "sim-server", "--port=0"),
        *flags,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_server_without_metrics_has_no_page():
    async with sim_server("--no-metrics") as process:
        url = (await process.stdout.readline()).decode().split()[-1]
        async with aiohttp.ClientSession() as http:
            for path, status in (("metrics", 404), ("health", 200), ("v1/models", 200)):
                async with http.get(f"{url}/{path}") as response:
                    assert response.status == status, path


async def test_address_can_be_used_as_it_is_printed():
    async with sim_server("--host=::1", "--name=six") as process:
        name, _, url = (await process.stdout.readline()).decode().strip().partition(": ")
        url = url.rpartition(" on ")[2]
        assert (name, url[: len("http://[::1]:")]) == ("six", "http://[::1]:")
        async with aiohttp.ClientSession() as http, http.get(f"{url}/health") as response:
            assert (response.status, response.headers["x-sim-server"]) == (200, "six")


async def test_request_in_flight_is_finished_after_sigterm():
    async with sim_server(*SLOW) as process:
        url = (await process.stdout.readline()).decode().split()[-1]
        body = {"messages": HELLO, "stream": True}
        async with aiohttp.ClientSession(url) as http, http.post("/v1/chat/completions", json=body) as response:
            await response.content.readline()
            process.terminate()
            events = (await response.content.read()).decode().strip().split("\n\n")
        last_chunk = json.loads(events[-2].removeprefix("data: "))
        assert (last_chunk["choices"][0]["finish_reason"], events[-1]) == ("stop", "data: [DONE]")
        assert await process.wait() == 0


async def test_impossible_machine_is_one_line():
    async with sim_server("--num-gpu-blocks=10") as process:
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert errors.decode().startswith(
        "error: sim profile 'a100': max_model_len 8192 must be 2 to 160, the size of the KV"
    )


async def test_preset_is_a_name_or_a_file(tmp_path):
    (tmp_path / "mine.yaml").write_text("name: mine\nmodel: tiny\n")
    async with sim_server(f"--preset={tmp_path / 'mine.yaml'}") as process:
        assert (await process.stdout.readline()).decode().startswith("mine: tiny on http://")
    async with sim_server("--preset=l4os") as process:
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert "--preset: there is no preset and no file 'l4os'; did you mean 'l40s'" in errors.decode()
