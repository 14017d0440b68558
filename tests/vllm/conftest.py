# SPDX-License-Identifier: Apache-2.0
"""Two genuine vLLM servers on this machine, started once; asked for with --vllm and nowhere else.

`--vllm DIR` names a virtual environment that holds `bin/vllm` and, in `models/medium`, a small model of random weights.
"""

import os
import socket
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
from epp.framework.snapshot import Column
from epp.lab.child import tied_to_parent
from epp.lab.gateway import GatewaySettings
from epp.lab.local import LocalGateway, local_gateway
from epp.pool.discovery import StaticDiscovery, parse_targets

START_SECONDS = 300
STOP_SECONDS = 60
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--vllm", type=Path, help="virtual environment with bin/vllm and models/medium")


@dataclass
class Server:
    name: str
    address: str
    process: subprocess.Popen
    log: Path

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


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    venv = request.config.getoption("--vllm")
    if venv is None:
        pytest.fail("say where vLLM is: make test-vllm VLLM=path/to/venv")
    logs = tmp_path_factory.mktemp("vllm")
    started = [start(venv, name, core, logs / f"{name}.log") for core, name in enumerate(("a", "b"))]
    try:
        for server in started:
            server.wait_until_healthy()
        yield started
    finally:
        for server in started:
            server.process.terminate()
        for server in started:
            try:
                server.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.process.kill()
                server.process.wait()


def start(venv: Path, name: str, core: int, log: Path) -> Server:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = tied_to_parent(
        str(venv / "bin" / "vllm"),
        "serve",
        str(venv / "models" / "medium"),
        *("--load-format", "dummy", "--enforce-eager", "--dtype", "bfloat16", "--max-model-len", "4096"),
        *("--enable-prefix-caching", "--enable-prompt-tokens-details", "--block-size", "32", "--max-num-seqs", "4"),
        *("--kv-cache-memory-bytes", str(96 * 2**20), "--shutdown-timeout", "5"),
        *("--host", "127.0.0.1", "--port", str(port), "--served-model-name", "medium"),
    )
    environment = {**os.environ, **QUIET, "VLLM_CPU_OMP_THREADS_BIND": str(core % (os.cpu_count() or 1))}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
    return Server(name, f"127.0.0.1:{port}", process, log)


@dataclass
class World:
    gateway: LocalGateway
    client: AsyncOpenAI
    servers: list[Server]

    def column(self, column: Column) -> dict[str, float]:
        snapshot = self.gateway.picker.store.snapshot()
        values = snapshot.column(column)
        return {e.name: float(values[i]) for i, e in enumerate(snapshot.endpoints.values) if e is not None}


@pytest.fixture
async def world(servers: list[Server]) -> AsyncIterator[World]:
    endpoints = ",".join(f"{server.name}={server.address}" for server in servers)
    settings = PickerSettings(server=ServerSettings(), discovery=StaticDiscovery(parse_targets(endpoints)))
    async with (
        local_gateway(settings, GatewaySettings(listen_port=0)) as gateway,
        AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=120) as client,
    ):
        yield World(gateway, client, servers)
