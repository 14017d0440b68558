"""`epp gateway` from outside: it serves, it ends without a trace, and it says so when Envoy dies."""

import asyncio
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
import pytest_asyncio
from commands import Command, command, envoy_of, is_running, outcome
from world import until

from epp.gateway.envoy import find_envoy

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = "outside-8b"


@pytest.fixture
def directory():
    """For temporary files; short enough for the path of a unix socket, which `tmp_path` is not always."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


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
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
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
