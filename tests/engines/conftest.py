# SPDX-License-Identifier: Apache-2.0
"""Two genuine servers of llama.cpp on this machine, started once, behind a gateway."""

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from epp.app import PickerSettings
from epp.extproc.settings import ServerSettings
from epp.lab.child import tied_to_parent
from epp.lab.gateway.local import local_gateway
from epp.lab.gateway.settings import GatewaySettings
from epp.pool.discovery import StaticDiscovery, parse_targets
from tests.engines.llama_server import directory
from tests.support.gateway_world import World
from tests.support.ports import reserved_ports

START_SECONDS = 60
SLOTS = 2


@dataclass
class Server:
    """A server with two slots and one thread."""

    name: str
    port: int
    log: Path
    process: subprocess.Popen | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        place = directory()
        command = tied_to_parent(
            str(place / "llama-server"),
            *("--model", str(place / "model.gguf"), "--alias", "tiny", "--ctx-size", "8192", "--parallel", str(SLOTS)),
            *("--threads", "1", "--metrics", "--host", "127.0.0.1", "--port", str(self.port)),
        )
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output)

    def wait_until_healthy(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"http://{self.address}/health", timeout=1):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)  # between two looks at a condition
        pytest.fail(f"{self.name} is not healthy:\n{self.log.read_text()[-3000:]}")


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    if not os.access(directory() / "llama-server", os.X_OK):
        pytest.fail(f"no llama-server in {directory()}: run `make engine-assets`")
    logs = tmp_path_factory.mktemp("llama")
    with reserved_ports(2) as ports:
        servers = [Server(name, port, logs / f"{name}.log") for name, port in zip("ab", ports, strict=True)]
        try:
            for server in servers:
                server.start()
            for server in servers:
                server.wait_until_healthy()
            yield servers
        finally:
            for server in servers:
                if server.process is not None:
                    server.process.kill()
                    server.process.wait()


@pytest.fixture
async def world(servers: list[Server]) -> AsyncIterator[World]:
    endpoints = ",".join(f"{server.name}={server.address}" for server in servers)
    settings = PickerSettings(server=ServerSettings(), discovery=StaticDiscovery(parse_targets(endpoints)))
    async with (
        local_gateway(settings, GatewaySettings(listen_port=0)) as gateway,
        AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=60) as client,
    ):
        yield World(gateway, client, servers)
