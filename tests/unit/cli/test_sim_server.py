# SPDX-License-Identifier: Apache-2.0
"""`epp sim-server` as a process: its address, its end, its errors."""

import json

import aiohttp

from tests.support.commands import Command, command, outcome

HELLO = [{"role": "user", "content": "hello"}]


async def url_of(server: Command) -> str:
    return (await server.says(" on http://")).rpartition(" on ")[2]


async def test_server_without_metrics_has_no_page():
    async with command("sim-server", "--port=0", "--no-metrics") as server, aiohttp.ClientSession() as http:
        url = await url_of(server)
        for path, status in (("metrics", 404), ("health", 200), ("v1/models", 200)):
            async with http.get(f"{url}/{path}") as response:
                assert response.status == status, path


async def test_address_can_be_used_as_it_is_printed():
    async with command("sim-server", "--port=0", "--host=::1", "--name=six") as server:
        url = await url_of(server)
        assert (await server.says("six: ")).endswith(f" on {url}")
        assert url.startswith("http://[::1]:")
        async with aiohttp.ClientSession() as http, http.get(f"{url}/health") as response:
            assert (response.status, response.headers["x-sim-server"]) == (200, "six")


async def test_request_in_flight_is_finished_after_sigterm():
    # A step of the a100 preset takes 0.07 s then, and an answer of 32 tokens 2 s.
    async with command("sim-server", "--port=0", "--time-scale=5", "--seed=1") as server:
        body = {"messages": HELLO, "stream": True}
        async with (
            aiohttp.ClientSession(await url_of(server)) as http,
            http.post("/v1/chat/completions", json=body) as response,
        ):
            await response.content.readline()
            server.terminate()
            events = (await response.content.read()).decode().strip().split("\n\n")
        last_chunk = json.loads(events[-2].removeprefix("data: "))
        assert (last_chunk["choices"][0]["finish_reason"], events[-1]) == ("stop", "data: [DONE]")
        assert await server.end() == 0


async def test_impossible_machine_is_one_line():
    code, server = await outcome("sim-server", "--port=0", "--num-gpu-blocks=10")
    assert code == 1
    assert server.error.startswith("error: sim profile 'a100': max_model_len 8192 must be 2 to 160, the size of the KV")


async def test_preset_is_a_name_or_a_file(tmp_path):
    (tmp_path / "mine.yaml").write_text("name: mine\nmodel: tiny\n")
    async with command("sim-server", "--port=0", f"--preset={tmp_path / 'mine.yaml'}") as server:
        await server.says("mine: tiny on http://")
    code, server = await outcome("sim-server", "--port=0", "--preset=l4os")
    assert code == 1
    assert "--preset: there is no preset and no file 'l4os'; did you mean 'l40s'" in server.error
