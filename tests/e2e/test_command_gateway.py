# SPDX-License-Identifier: Apache-2.0
"""`epp gateway` from outside: it serves, it ends without a trace, and it says so when Envoy dies."""

import asyncio
import functools
import io
import json
import os
import signal
import socket
from collections.abc import AsyncIterator

import aiohttp
import openai
import pytest
import pytest_asyncio

from epp.lab.gateway.envoy import find_envoy
from tests.support.commands import Command, command, envoy_of, is_running, outcome
from tests.support.config_files import picker_config
from tests.support.world import ENDLESS, client_of, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = "outside-8b"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def endpoints() -> AsyncIterator[str]:
    """Two simulated servers, `one` and `other`, as `--endpoints` takes them."""
    simulate = ("sim-server", "--port=0", "--model", MODEL, "--time-scale=0.2")
    async with command(*simulate, "--name=one") as one, command(*simulate, "--name=other", "--preset=h100") as other:
        addresses = [await address_of(server) for server in (one, other)]
        yield ",".join(f"{name}={address}" for name, address in zip(("one", "other"), addresses, strict=True))


async def address_of(server: Command) -> str:
    return (await server.says(MODEL)).rpartition("http://")[2]


async def url_of(gateway: Command) -> str:
    return (await gateway.says("listening on")).split()[2]


async def test_gateway_serves_until_ctrl_c_and_leaves_nothing_behind(endpoints, directory):
    async with command("gateway", "--listen=127.0.0.1:0", "--endpoints", endpoints, TMPDIR=str(directory)) as gateway:
        url = await url_of(gateway)
        assert gateway.out == [f"listening on {url} for one, other; Ctrl-C stops"]
        async with client_of(url) as client:
            raw = await client.chat.completions.with_raw_response.create(
                model=MODEL, messages=[{"role": "user", "content": "hello"}], max_tokens=3
            )
        assert raw.headers["x-sim-server"] in {"one", "other"}
        assert raw.parse().usage.completion_tokens == 3
        envoy = envoy_of(gateway)
        assert len(list(directory.glob("epp-*"))) == 2  # the picker's socket; Envoy's configuration and admin socket

        gateway.interrupt()

        assert await gateway.end() == 0
        assert not is_running(envoy)
        assert list(directory.iterdir()) == []
        assert "Traceback" not in str(gateway)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*url.removeprefix("http://").split(":"))


CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "tell nobody"}], "max_tokens": 3}


def request_lines(gateway: Command) -> list[dict]:
    """The log lines of requests, without their times."""
    events = [json.loads(line) for line in gateway.err if line.startswith("{")]
    return [event for event in events if event["msg"] == "request"]


async def test_each_request_has_one_line_and_its_answer_tells_where_it_came_from(endpoints):
    flags = ("--listen=127.0.0.1:0", "--endpoints", endpoints, "--decision-headers=true")
    async with command("gateway", *flags) as gateway, aiohttp.ClientSession() as http:
        url = f"{await url_of(gateway)}/v1/chat/completions"
        async with http.post(url, json=CHAT, headers={"x-request-id": "good"}) as response:
            assert response.status == 200
            served = response.headers["x-sim-server"]
            name, _, address = response.headers["x-epp-endpoint"].partition("=")
            assert (name, f"{name}={address}" in endpoints) == (served, True)
            assert response.headers["x-epp-reason"].startswith("default: ")
            reason = response.headers["x-epp-reason"]
        async with http.post(url, data=b"{", headers={"x-request-id": "bad"}) as response:
            assert response.status == 400
        forever = CHAT | {"max_tokens": 4_000, "stream": True, "ignore_eos": True}
        async with http.post(url, json=forever, headers={"x-request-id": "left"}) as response:
            await response.content.readline()
            response.close()
        await gateway.says('"x-request-id":"left"')
        answered, refused, left = request_lines(gateway)
    assert (answered["x-request-id"], answered["endpoint"], answered["why"]) == ("good", served, reason)
    assert (answered["modelName"], answered["status"], answered["outcome"]) == (MODEL, 200, "natural")
    assert answered["completion_tokens"] == 3
    assert 0 < answered["ttft_seconds"] <= answered["duration_seconds"]
    assert (refused["x-request-id"], refused["status"], refused["outcome"]) == ("bad", 400, "refused")
    assert (left["x-request-id"], left["status"], left["outcome"]) == ("left", 200, "client-disconnect")
    assert set(answered) == set(refused) == set(left)
    assert "tell nobody" not in str(gateway)


@pytest.mark.parametrize("usage", ["auto", "always"])
async def test_buffered_gateway_sees_ends_and_tokens_where_it_is_told_to(endpoints, usage):
    flags = ("--listen=127.0.0.1:0", "--endpoints", endpoints, "--body-mode=buffered", f"--response-usage={usage}")
    async with command("gateway", *flags) as gateway, aiohttp.ClientSession() as http:
        url = f"{await url_of(gateway)}/v1/chat/completions"
        for name in ("first", "second"):
            async with http.post(url, json=CHAT, headers={"x-request-id": name}) as response:
                assert (await response.json())["usage"]["completion_tokens"] == 3
        forever = CHAT | {"max_tokens": 4_000, "stream": True, "ignore_eos": True}
        async with http.post(url, json=forever, headers={"x-request-id": "left"}) as response:
            await response.content.readline()
            response.close()
        await gateway.says('"x-request-id":"left"')
        *answered, left = request_lines(gateway)
    ends = [(line["outcome"], line["completion_tokens"], line["ttft_seconds"] is None) for line in (*answered, left)]
    if usage == "always":
        assert ends == [("natural", 3, False), ("natural", 3, False), ("client-disconnect", None, False)]
    else:  # the plugins that run without a configuration measure streams
        assert ends == [("unseen", None, False), ("unseen", None, False), ("client-disconnect", None, False)]


async def test_quiet_gateway_has_no_line_and_a_thorough_one_has_every_step(endpoints):
    flags = ("--listen=127.0.0.1:0", "--endpoints", endpoints)
    async with (
        command("gateway", *flags, "-v=0") as quiet,
        command("gateway", *flags, "-v=4") as thorough,
        aiohttp.ClientSession() as http,
    ):
        for gateway in (quiet, thorough):
            async with http.post(f"{await url_of(gateway)}/v1/chat/completions", json=CHAT) as response:
                assert response.status == 200
                assert "x-epp-endpoint" not in response.headers
        await thorough.says('"msg":"request"')
        events = [json.loads(line)["msg"] for line in thorough.err if "x-request-id" in line]
        quiet.interrupt()
        assert await quiet.end() == 0
        assert [line for line in quiet.err if "event loop delayed" not in line] == []  # it is busy here
    assert events == [
        "candidates", "scorer", "picker", "destination", "response started", "first piece",
        "last piece", "request",
    ]  # fmt: skip
    assert "tell nobody" not in str(thorough)


async def test_death_of_envoy_ends_the_gateway_with_a_line_that_says_so(endpoints, directory):
    async with command("gateway", "--listen=127.0.0.1:0", "--endpoints", endpoints, TMPDIR=str(directory)) as gateway:
        await url_of(gateway)
        os.kill(envoy_of(gateway), signal.SIGKILL)
        assert await gateway.end() == 1
        assert gateway.error == "error: Envoy exited unexpectedly (signal 9)"
        assert list(directory.iterdir()) == []


async def test_killed_gateway_takes_envoy_along(endpoints, directory):
    async with command("gateway", "--listen=127.0.0.1:0", "--endpoints", endpoints, TMPDIR=str(directory)) as gateway:
        await url_of(gateway)
        envoy = envoy_of(gateway)
        gateway.kill()
        assert await gateway.end() == -signal.SIGKILL
        await until(lambda: not is_running(envoy), "Envoy is gone")


async def test_taken_port_is_named_and_nothing_is_left(directory):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = (f"--listen={address}", "--endpoints=127.0.0.1:1")
        async with command("gateway", *flags, TMPDIR=str(directory)) as gateway:
            assert await gateway.end() == 1
    assert gateway.error.startswith(f"error: {address} is taken by another process: ")
    assert gateway.out == []
    assert list(directory.iterdir()) == []


async def test_printed_configuration_is_one_that_envoy_takes(tmp_path):
    exit_code, said = await outcome("gateway", "--listen=127.0.0.1:18080", "--print-envoy-config")
    assert exit_code == 0
    path = tmp_path / "envoy.yaml"
    path.write_text("\n".join(said.out))
    envoy = await asyncio.create_subprocess_exec(
        str(find_envoy()),
        "--mode",
        "validate",
        "--config-path",
        str(path),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await envoy.communicate()
    assert envoy.returncode == 0, output.decode()
    assert f"configuration '{path}' OK" in output.decode()


FALLBACKS = ("--cluster-type=override-host", "--failure-mode=FailOpen")
BUFFERED = ("--body-mode=buffered",)
MIB = 1024 * 1024


@pytest.mark.parametrize(
    "mode", [(), FALLBACKS, BUFFERED, (*FALLBACKS, *BUFFERED)], ids=["default", "fallbacks", "buffered", "both"]
)
@pytest.mark.slow
async def test_largest_request_body_is_the_one_asked_for(endpoints, mode):
    most = 40  # MiB, more than by default
    flags = ("gateway", "--listen=127.0.0.1:0", "--endpoints", endpoints, *mode)
    async with command(*flags, f"--max-request-body={most}MiB") as gateway, aiohttp.ClientSession() as client:
        url = f"{await url_of(gateway)}/v1/chat/completions"
        assert await status_of(client, url, size=(most - 1) * MIB) == 200
        assert await status_of(client, url, size=(most + 1) * MIB) == 413
    async with command(*flags, "--max-request-body=1Mi") as gateway, aiohttp.ClientSession() as client:
        url = f"{await url_of(gateway)}/v1/chat/completions"
        assert await status_of(client, url, size=MIB // 2) == 200
        assert await status_of(client, url, size=2 * MIB) == 413


async def status_of(client: aiohttp.ClientSession, url: str, *, size: int) -> int:
    """Send a request with a body of this size, most of which is no prompt."""
    head = f'{{"model":"{MODEL}","max_tokens":1,"messages":[{{"role":"user","content":"hi"}}],"padding":"'
    body = f'{head}{"x" * (size - len(head) - 2)}"}}'.encode()
    async with client.post(url, data=io.BytesIO(body), headers={"content-type": "application/json"}) as response:
        await response.read()
        return response.status


async def test_errors_are_plain_text_where_that_is_asked_for(endpoints):
    flags = ("gateway", "--listen=127.0.0.1:0", "--endpoints", endpoints, "--plain-errors", "true")
    async with command(*flags) as gateway, aiohttp.ClientSession() as client:
        url = f"{await url_of(gateway)}/v1/chat/completions"
        async with client.post(url, data=b"{", headers={"content-type": "application/json"}) as response:
            assert response.status == 400
            assert not (await response.text()).startswith("{")


async def test_metrics_page_is_named_and_has_the_name_of_the_pool(endpoints):
    flags = ("--listen=127.0.0.1:0", "--metrics-port=0", "--bind-address=::1", "--pool-name=mine")
    async with command("gateway", "--endpoints", endpoints, *flags) as gateway, aiohttp.ClientSession() as client:
        page = (await gateway.says("listening on")).partition("metrics on ")[2].partition(";")[0]
        assert page.startswith("[::1]:")
        async with client.get(f"http://{page}/metrics") as response:
            assert 'llm_d_epp_ready_endpoints{name="mine"}' in await response.text()


@pytest.mark.parametrize("mode", [(), BUFFERED], ids=["default", "buffered"])
async def test_drain_lets_open_requests_finish_and_accepts_no_more(endpoints, mode):
    flags = ("gateway", "-v=2", "--listen=127.0.0.1:0", "--endpoints", endpoints, "--drain-timeout=10m", *mode)
    async with command(*flags) as gateway:
        url = await url_of(gateway)
        async with client_of(url) as client:
            stream = await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "go on"}], max_tokens=1_000, stream=True, **ENDLESS
            )
            chunks = [await anext(stream)]
            gateway.terminate()
            await gateway.says('"msg":"draining"')
            await until(functools.partial(refuses, url), "no connection is accepted")
            chunks += [chunk async for chunk in stream]
        assert chunks[-1].choices[0].finish_reason == "length"
        assert await gateway.end() == 0


async def refuses(url: str) -> bool:
    try:
        _, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


async def test_second_signal_ends_the_drain(endpoints):
    flags = ("gateway", "-v=2", "--listen=127.0.0.1:0", "--endpoints", endpoints, "--drain-timeout=10m")
    async with command(*flags) as gateway:
        url = await url_of(gateway)
        async with client_of(url) as client:
            stream = await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "go on"}], max_tokens=8_000, stream=True, **ENDLESS
            )
            await anext(stream)
            gateway.interrupt()
            await gateway.says('"msg":"draining"')
            gateway.interrupt()
            assert await gateway.end() == 0
            with pytest.raises(openai.APIError):
                _ = [chunk async for chunk in stream]


async def test_labels_and_hardware_of_endpoints_reach_plugins_in_one_line(endpoints):
    one, other = endpoints.split(",")
    config = picker_config("""
plugins:
- {type: label-selector-filter, parameters: {matchLabels: {spot: "true"}}}
- {type: accelerator-data-source}
schedulingProfiles: [{name: default, plugins: [{pluginRef: label-selector-filter}]}]
""")
    pool = f"{one};spot=false {other.replace('=', '=http://')}/;spot=true;accelerator=h100"
    flags = ("--listen=127.0.0.1:0", "--metrics-port=0", "--endpoints", pool, "--config-text", config)
    async with command("gateway", *flags) as gateway, aiohttp.ClientSession() as client:
        line = await gateway.says("listening on")
        page = line.partition("metrics on ")[2].partition(";")[0]
        url = f"{line.split()[2]}/v1/chat/completions"
        for _ in range(6):
            body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
            async with client.post(url, json=body) as response:
                assert response.headers["x-sim-server"] == "other"
        async with client.get(f"http://{page}/metrics") as response:
            assert (
                'accelerator_selections_total{accelerator="h100",policy="",profile="default"} 6.0'
                in await response.text()
            )
