# SPDX-License-Identifier: Apache-2.0
"""Two genuine vLLM servers on this machine, started once; asked for with --vllm and nowhere else.

`--vllm DIR` names a virtual environment that holds `bin/vllm` and, in `models/medium`, a small model of random weights.
"""

import json
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from epp.app import PickerSettings
from epp.config.load import load_text, sample_texts
from epp.extproc.settings import ServerSettings
from epp.lab.child import tied_to_parent
from epp.lab.gateway.local import local_gateway
from epp.lab.gateway.settings import GatewaySettings
from epp.pool.discovery import StaticDiscovery, parse_targets
from tests.support.gateway_world import World
from tests.support.vllm import VLLM_ENVIRONMENT

START_SECONDS = 300
STOP_SECONDS = 60


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--vllm", type=Path, help="virtual environment with bin/vllm and models/medium")


@dataclass
class Server:
    """One engine on a core of its own; it publishes KV events, and tells more on its development routes."""

    name: str
    venv: Path
    core: int
    events_port: int
    log: Path
    port: int = field(default_factory=lambda: consecutive_ports(1)[0])
    process: subprocess.Popen | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self.events_port}",
            "topic": f"kv@{self.address}@medium",
        }
        adapter = f"lora-a={self.venv / 'models' / 'medium-lora' / 'lora-a'}"
        command = tied_to_parent(
            str(self.venv / "bin" / "vllm"),
            "serve",
            str(self.venv / "models" / "medium"),
            *("--load-format", "dummy", "--enforce-eager", "--dtype", "bfloat16", "--max-model-len", "4096"),
            *("--enable-prefix-caching", "--enable-prompt-tokens-details", "--block-size", "32", "--max-num-seqs", "4"),
            *("--kv-cache-memory-bytes", str(96 * 2**20), "--shutdown-timeout", "5"),
            *("--kv-events-config", json.dumps(events), "--enable-scale-out"),  # events, and the render API
            *("--enable-lora", "--max-loras", "1", "--max-lora-rank", "8", "--lora-modules", adapter),
            *("--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", "medium"),
        )
        environment = {
            **os.environ,
            **VLLM_ENVIRONMENT,
            "VLLM_CPU_OMP_THREADS_BIND": str(self.core % (os.cpu_count() or 1)),
        }
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, start_new_session=True
            )

    def wait_until_healthy(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                pytest.fail(f"{self.name} ended with {self.process.returncode}:\n{self.log.read_text()[-3000:]}")
            try:
                with urllib.request.urlopen(f"http://{self.address}/health", timeout=1):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.25)  # between two looks at a condition
        pytest.fail(f"{self.name} is not healthy after {START_SECONDS} s:\n{self.log.read_text()[-3000:]}")

    def post(self, path: str, body: object = None) -> None:
        headers = {"content-type": "application/json"}
        data = b"" if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(f"http://{self.address}{path}", data=data, headers=headers)):
            pass

    def kill(self) -> None:
        """End the engine and its workers at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    venv = request.config.getoption("--vllm")
    if venv is None:
        pytest.fail("say where vLLM is: make test-vllm VLLM=path/to/venv")
    logs = tmp_path_factory.mktemp("vllm")
    ports = consecutive_ports(2)
    servers = [
        Server(name, venv, core, port, logs / f"{name}.log")
        for core, (name, port) in enumerate(zip("ab", ports, strict=True))
    ]
    for server in servers:
        server.start()
    try:
        for server in servers:
            server.wait_until_healthy()
        yield servers
    finally:
        for server in servers:
            server.process.terminate()
        for server in servers:
            server.stop()


def consecutive_ports(count: int) -> list[int]:
    """Free ports below those that the kernel hands out: the ranks of one address publish on ports in a row."""
    while True:
        first = random.randrange(20_000, 32_000)
        ports = list(range(first, first + count))
        with ExitStack() as stack:
            try:
                for port in ports:
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return ports


@pytest.fixture
async def world(servers: list[Server]) -> AsyncIterator[World]:
    endpoints = ",".join(f"{server.name}={server.address}" for server in servers)
    settings = PickerSettings(server=ServerSettings(), discovery=StaticDiscovery(parse_targets(endpoints)))
    async with (
        local_gateway(settings, GatewaySettings(listen_port=0)) as gateway,
        AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=120) as client,
    ):
        yield World(gateway, client, servers)


@pytest.fixture(params=["render", "tokenizer file"])
async def precise(request: pytest.FixtureRequest, servers: list[Server]) -> AsyncIterator[World]:
    """The same servers as ranks of one engine, with empty caches and the ready-made configuration `precise-prefix`."""
    for server in servers:
        server.post("/reset_prefix_cache")
    endpoints = ",".join(f"engine-rank-{rank}={server.address}" for rank, server in enumerate(servers))
    tokens: dict[str, object] = {"tokenizer": {"path": str(servers[0].venv / "models" / "medium" / "tokenizer.json")}}
    if request.param == "render":
        tokens = {"modelName": "medium", "vllm": {"url": f"http://{servers[0].address}"}}
    producer = {"type": "token-producer", "parameters": {**tokens, "budget": "2s"}}
    config = sample_texts()["precise-prefix"].replace("5557", str(servers[0].events_port))
    settings = PickerSettings(
        server=ServerSettings("unix:unset"),
        discovery=StaticDiscovery(parse_targets(endpoints)),
        config=load_text(config.replace("plugins:\n", f"plugins:\n- {json.dumps(producer)}\n", 1)),
    )
    async with (
        local_gateway(settings, GatewaySettings(listen_port=0)) as gateway,
        AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=120) as client,
    ):
        yield World(gateway, client, servers)
