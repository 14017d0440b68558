# SPDX-License-Identifier: Apache-2.0
"""`epp gateway` from outside: it serves, it ends without a trace, and it says so when Envoy dies."""

import asyncio
import io
import json
import os
import signal
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import aiohttp
import openai
import pytest
import pytest_asyncio

from epp.lab.gateway.envoy import find_envoy
from tests.support.commands import Command, command, envoy_of, is_running, outcome
from tests.support.config_files import picker_config
from tests.support.gateways import gateway_of
from tests.support.waiting import until
from tests.support.world import client_of, endless, question, rest_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = "outside-8b"
CHAT = question("tell nobody", 3, model=MODEL)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def endpoints() -> AsyncIterator[str]:
    """Two simulated servers, `one` and `other`, as `--endpoints` takes them."""
    simulate = ("sim-server", "--port=0", "--model", MODEL, "--time-scale=0.2")
    async with command(*simulate, "--name=one") as one, command(*simulate, "--name=other", "--preset=h100") as other:
        addresses = [await address_of(server) for server in (one, other)]
        yield ",".join(f"{name}={address}" for name, address in zip(("one", "other"), addresses, strict=True))


async def address_of(server: Command) -> str:
    return (await server.says(MODEL)).rpartition("http://")[2]


def gateway_for(endpoints: str, *flags: str, **environment: str) -> AbstractAsyncContextManager[Command]:
    return command("gateway", "--listen=127.0.0.1:0", "--endpoints", endpoints, *flags, **environment)


async def chat_url(gateway: Command) -> str:
    return f"{await gateway.url()}/v1/chat/completions"


async def test_gateway_serves_until_ctrl_c_and_leaves_nothing_behind(endpoints, directory):
    async with gateway_for(endpoints, TMPDIR=str(directory)) as gateway:
        url = await gateway.url()
        assert gateway.out == [f"listening on {url} for one, other; Ctrl-C stops"]
        async with client_of(url) as client:
            raw = await client.chat.completions.with_raw_response.create(**CHAT)
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


def request_lines(gateway: Command) -> list[dict]:
    """The log lines of requests, without their times."""
    events = [json.loads(line) for line in gateway.err if line.startswith("{")]
    return [event for event in events if event["msg"] == "request"]


async def test_each_request_has_one_line_and_its_answer_tells_where_it_came_from(endpoints):
    async with gateway_for(endpoints, "--decision-headers=true") as gateway, aiohttp.ClientSession() as http:
        url = await chat_url(gateway)
        async with http.post(url, json=CHAT, headers={"x-request-id": "good"}) as response:
            assert response.status == 200
            served, reason = response.headers["x-sim-server"], response.headers["x-epp-reason"]
            name, _, address = response.headers["x-epp-endpoint"].partition("=")
            assert (name, f"{name}={address}" in endpoints) == (served, True)
            assert reason.startswith("default: ")
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


@pytest.mark.parametrize(("usage", "sees"), [("auto", ("unseen", None)), ("always", ("natural", 3))])
async def test_buffered_gateway_sees_ends_and_tokens_if_it_is_told_to(endpoints, usage, sees):
    async with gateway_for(endpoints, "--body-mode=buffered", f"--response-usage={usage}") as gateway:
        async with aiohttp.ClientSession() as http, http.post(await chat_url(gateway), json=CHAT) as response:
            assert (await response.json())["usage"]["completion_tokens"] == 3
        await gateway.says('"outcome"')
        (line,) = request_lines(gateway)
    assert (line["outcome"], line["completion_tokens"]) == sees


async def test_quiet_gateway_has_no_line_and_a_thorough_one_has_every_step(endpoints):
    async with (
        gateway_for(endpoints, "-v=0") as quiet,
        gateway_for(endpoints, "-v=4") as thorough,
        aiohttp.ClientSession() as http,
    ):
        for gateway in (quiet, thorough):
            async with http.post(await chat_url(gateway), json=CHAT) as response:
                assert response.status == 200
                assert "x-epp-endpoint" not in response.headers
        await thorough.says('"msg":"request"')
        events = [json.loads(line)["msg"] for line in thorough.err if "x-request-id" in line]
        quiet.interrupt()
        assert await quiet.end() == 0
        assert [line for line in quiet.err if "event loop delayed" not in line] == []  # it is busy here
    routed = ["candidates", "scorer", "picker", "destination"]
    assert events == [*routed, "response started", "first piece", "last piece", "request"]
    assert "tell nobody" not in str(thorough)


async def test_death_of_envoy_ends_the_gateway_with_a_line_that_says_so(endpoints, directory):
    async with gateway_for(endpoints, TMPDIR=str(directory)) as gateway:
        await gateway.url()
        os.kill(envoy_of(gateway), signal.SIGKILL)
        assert await gateway.end() == 1
        assert gateway.error == "error: Envoy exited unexpectedly (signal 9)"
        assert list(directory.iterdir()) == []


async def test_killed_gateway_takes_envoy_along(endpoints, directory):
    async with gateway_for(endpoints, TMPDIR=str(directory)) as gateway:
        await gateway.url()
        envoy = envoy_of(gateway)
        gateway.kill()
        assert await gateway.end() == -signal.SIGKILL
        await until(lambda: not is_running(envoy), "Envoy is gone")


async def test_printed_configuration_is_one_that_envoy_takes(tmp_path):
    exit_code, said = await outcome("gateway", "--listen=127.0.0.1:18080", "--print-envoy-config")
    assert exit_code == 0
    path = tmp_path / "envoy.yaml"
    path.write_text("\n".join(said.out))
    arguments = ("--mode", "validate", "--config-path", str(path))
    envoy = await asyncio.create_subprocess_exec(find_envoy(), *arguments, stdout=PIPE, stderr=STDOUT)
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
    async with gateway_for(endpoints, *mode, f"--max-request-body={most}MiB") as gateway:
        assert await status_of(gateway, size=(most - 1) * MIB) == 200
        assert await status_of(gateway, size=(most + 1) * MIB) == 413
    async with gateway_for(endpoints, *mode, "--max-request-body=1Mi") as gateway:
        assert await status_of(gateway, size=MIB // 2) == 200
        assert await status_of(gateway, size=2 * MIB) == 413


async def status_of(gateway: Command, *, size: int) -> int:
    """Send a request with a body of about this size, most of which is no prompt."""
    body = io.BytesIO(json.dumps({**CHAT, "padding": "x" * size}).encode())
    headers = {"content-type": "application/json"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(await chat_url(gateway), data=body, headers=headers) as response,
    ):
        await response.read()
        return response.status


async def test_errors_are_plain_text_where_that_is_asked_for(endpoints):
    async with gateway_for(endpoints, "--plain-errors", "true") as gateway, aiohttp.ClientSession() as client:
        headers = {"content-type": "application/json"}
        async with client.post(await chat_url(gateway), data=b"{", headers=headers) as response:
            assert response.status == 400
            assert not (await response.text()).startswith("{")


async def test_metrics_page_is_named_and_has_the_name_of_the_pool(endpoints):
    flags = ("--metrics-port=0", "--bind-address=::1", "--pool-name=mine")
    async with gateway_for(endpoints, *flags) as gateway, aiohttp.ClientSession() as client:
        page = (await gateway.says("listening on")).partition("metrics on ")[2].partition(";")[0]
        assert page.startswith("[::1]:")
        async with client.get(f"http://{page}/metrics") as response:
            assert 'llm_d_epp_ready_endpoints{name="mine"}' in await response.text()


@pytest.mark.parametrize("mode", [(), BUFFERED], ids=["default", "buffered"])
async def test_drain_lets_open_requests_finish_and_accepts_no_more(endpoints, mode):
    async with gateway_for(endpoints, "-v=2", "--drain-timeout=10m", *mode) as gateway:
        url = await gateway.url()
        async with client_of(url) as client:
            stream = await endless(client, 1_000, MODEL)
            gateway.terminate()
            await gateway.says('"msg":"draining"')
            await until(lambda: refuses(url), "no connection is accepted")
            await rest_of(stream)
        assert await gateway.end() == 0


async def refuses(url: str) -> bool:
    try:
        _, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


async def test_second_signal_ends_the_drain(endpoints):
    flags = ("-v=2", "--drain-timeout=10m")
    async with gateway_for(endpoints, *flags) as gateway, client_of(await gateway.url()) as client:
        stream = await endless(client, 8_000, MODEL)
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
    async with gateway_of(f"--endpoints={pool}", f"--config-text={config}") as gateway:
        for _ in range(6):
            response = await gateway.post("/v1/chat/completions", CHAT)
            assert response.headers["x-sim-server"] == "other"
        selections = (await gateway.metrics())["llm_d_epp_accelerator_selections_total"]
        assert selections == {frozenset({"accelerator=h100", "policy=", "profile=default"}): 6.0}
