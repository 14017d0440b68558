# SPDX-License-Identifier: Apache-2.0
"""Model servers of the demo: hardware, clusters, processes and simulated failures."""

import asyncio
import contextlib
import itertools
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
import yaml

from epp.config.load import sample_texts
from epp.framework.accelerators.tag import AcceleratorDeclaration
from epp.lab.child import tied_to_parent
from epp.pool.discovery import StaticDiscovery, Target
from epp.runtime.addresses import parse_host_port

LOCAL, REMOTE = "east", "west"
PRESET = "h100"
_SERVERS = 2
_BUSY = {"running": 40, "waiting": 20, "kv_usage": 0.8}
_UNREACHABLE = "cluster.open-cluster-management.io/unreachable"
_API = "cluster.open-cluster-management.io"
_STOP_SECONDS = 3.0
PRESETS: Mapping[str, AcceleratorDeclaration] = MappingProxyType(
    {
        "h100": AcceleratorDeclaration(accelerator_class="h100", count=1, cost_per_hour=4.25),
        "a100-3g.20gb": AcceleratorDeclaration(
            accelerator_class="a100-40gb", count=1, profile="3g.20gb", cost_per_hour=2.00
        ),
        "t4": AcceleratorDeclaration(accelerator_class="t4", count=1, cost_per_hour=0.53),
    }
)
"""Hardware of each preset, with the price of a whole device in US dollars."""
CHEAPEST_FIRST = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: cost-aware-spill
  parameters: {queueThreshold: 2, kvThreshold: 0.5, limits: {t4: {maxConcurrency: 3}, a100: {maxConcurrency: 6}}}
- type: prefix-cache-scorer
- type: active-request-scorer
  parameters: {normalizeBy: relativeCapacity}
- type: queue-scorer
  parameters: {normalizeBy: relativeCapacity}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: cost-aware-spill
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: active-request-scorer, weight: 2}
  - {pluginRef: queue-scorer, weight: 2}
"""
"""Configuration that fills the cheapest hardware first; otherwise, the H100 would serve all traffic of the demo."""


@dataclass(frozen=True, slots=True)
class ModelServer:
    name: str
    address: str
    """`host:port`."""
    pid: int
    spec: "ServerSpec"


@dataclass(frozen=True, slots=True)
class ServerSpec:
    preset: str
    name: str = ""
    """Name of the server; by default the preset."""
    cluster: str = ""

    @property
    def title(self) -> str:
        return self.name or self.preset


class ServerFailedError(Exception):
    """A simulated server did not start."""


@asynccontextmanager
async def model_servers(
    specs: Sequence[ServerSpec], model: str, *, port: int = 0
) -> AsyncIterator[tuple[ModelServer, ...]]:
    """Run one `epp sim-server` for each spec until the block ends; raises ServerFailedError.

    `port` is for a single server; 0 for any free port.
    """
    async with AsyncExitStack() as stack:
        processes = []
        for spec in specs:  # in parallel: each takes most of a second to start
            process = await _spawn(spec, model, port)
            stack.push_async_callback(_stop, process)
            processes.append(process)
        running = []
        for spec, process in zip(specs, processes, strict=True):
            address = await _announced_address(process, spec.title)
            running.append(ModelServer(spec.title, address, process.pid, spec))
        yield tuple(running)


async def _spawn(spec: ServerSpec, model: str, port: int) -> asyncio.subprocess.Process:
    flags = ("--port", str(port), "--preset", spec.preset, "--name", spec.title, "--model", model)
    command = tied_to_parent(sys.executable, "-m", "epp", "sim-server", *flags)
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # so that Ctrl-C reaches only the parent, which stops it
    )


async def _announced_address(process: asyncio.subprocess.Process, name: str) -> str:
    line = await process.stdout.readline() if process.stdout else b""
    _, found, address = line.decode().strip().rpartition("http://")
    if not found:
        errors = (await process.stderr.read()).decode().strip() if process.stderr else ""
        raise ServerFailedError(f"simulated server {name!r} did not start: {errors or line.decode()}")
    return address


async def _stop(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def discovery(servers: Iterable[ModelServer]) -> StaticDiscovery:
    """Return a pool of the servers with their hardware and clusters."""
    targets = []
    for server in servers:
        place, hardware = parse_host_port(server.address), PRESETS[server.spec.preset]
        targets.append(Target(server.name, place.host, place.port, cluster=server.spec.cluster, accelerator=hardware))
    return StaticDiscovery(targets)


class Phase(Enum):
    """Event in the local cluster."""

    CALM = "both clusters have room: east, the local cluster, serves"
    FULL = "east is full: its score is low and its servers have queues, so west serves"
    FAILED = "east has failed: its servers have stopped and the hub has tainted it"
    BACK = "east is back: new requests return to it"


_GPU_SCORES = {Phase.CALM: 60, Phase.FULL: -100, Phase.FAILED: -100, Phase.BACK: 60}


def config_text(objects: Path) -> str:
    """Return the sample `multi-cluster`, with the objects of a hub in a directory."""
    found = yaml.safe_load(sample_texts()["multi-cluster"])
    given: dict[str, dict[str, Any]] = {
        "cluster-data-source": {"paths": [str(objects)], "cluster": LOCAL},
        "accelerator-data-source": {"cluster": LOCAL},
    }
    for plugin in found["plugins"]:
        if more := given.get(plugin["type"]):
            plugin["parameters"] = {**plugin.get("parameters", {}), **more}
    return yaml.safe_dump(found, sort_keys=False)


def write_objects(directory: Path, phase: Phase) -> None:
    """Write the objects of the hub for a phase, atomically."""
    added = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    taint = {"key": _UNREACHABLE, "effect": "NoSelect", "timeAdded": added}
    documents = [
        _cluster(LOCAL, [taint] if phase is Phase.FAILED else []),
        _cluster(REMOTE, []),
        _score(LOCAL, _GPU_SCORES[phase]),
        _score(REMOTE, 20),
    ]
    new = directory / "hub.yaml.new"  # files with this suffix are not read
    new.write_text(yaml.safe_dump_all(documents))
    new.rename(directory / "hub.yaml")


def _cluster(name: str, taints: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "apiVersion": f"{_API}/v1",
        "kind": "ManagedCluster",
        "metadata": {"name": name},
        "spec": {"hubAcceptsClient": True, "taints": taints},
    }


def _score(cluster: str, value: int) -> dict[str, Any]:
    return {
        "apiVersion": f"{_API}/v1alpha1",
        "kind": "AddOnPlacementScore",
        "metadata": {"name": "resource-usage-score", "namespace": cluster},
        "status": {"scores": [{"name": "gpuClusterAvailable", "value": value}]},
    }


@dataclass
class TwoClusters:
    objects: Path
    servers: tuple[ModelServer, ...]
    _local: AsyncExitStack
    """Stops the servers of the local cluster."""
    _model: str
    phase: Phase = Phase.CALM

    async def enter(self, phase: Phase) -> None:
        """Start a phase; raises ServerFailedError."""
        self.phase = phase
        write_objects(self.objects, phase)
        if phase is Phase.FULL:
            async with aiohttp.ClientSession() as session:
                for server in self._locals:
                    async with session.post(f"http://{server.address}/sim/occupy", json=_BUSY) as answer:
                        answer.raise_for_status()
        elif phase is Phase.FAILED:
            await self._local.aclose()
        elif phase is Phase.BACK:
            for server in self._locals:
                port = parse_host_port(server.address).port
                await self._local.enter_async_context(model_servers([server.spec], self._model, port=port))

    async def run(self, phase_seconds: float) -> None:
        for phase in itertools.cycle(Phase):
            await self.enter(phase)
            await asyncio.sleep(phase_seconds)

    @property
    def _locals(self) -> list[ModelServer]:
        return [server for server in self.servers if server.spec.cluster == LOCAL]


@asynccontextmanager
async def two_clusters(model: str) -> AsyncIterator[TwoClusters]:
    """Run both clusters until the block ends; raises ServerFailedError."""
    async with AsyncExitStack() as stack:
        objects = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epp-hub-")))
        write_objects(objects, Phase.CALM)
        local, remote = (
            [ServerSpec(PRESET, f"{cluster}-{number}", cluster) for number in range(1, _SERVERS + 1)]
            for cluster in (LOCAL, REMOTE)
        )
        west = await stack.enter_async_context(model_servers(remote, model))
        of_local = await stack.enter_async_context(AsyncExitStack())
        east = await of_local.enter_async_context(model_servers(local, model))
        yield TwoClusters(objects, (*east, *west), of_local, model)
