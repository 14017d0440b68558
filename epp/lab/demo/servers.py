# SPDX-License-Identifier: Apache-2.0
"""Simulated model servers in their own processes, and the demo's pool of three kinds of hardware."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType

from epp.config import LoadedConfig, load_text
from epp.framework.accelerators.tag import AcceleratorDeclaration
from epp.lab.child import tied_to_parent
from epp.pool.discovery import StaticDiscovery, Target
from epp.runtime.addresses import parse_host_port

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
"""The hardware that each preset simulates; US dollars for a whole device."""
_CONFIG = """
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


@dataclass(frozen=True, slots=True)
class ModelServer:
    """One running server."""

    name: str
    address: str
    """`host:port`."""
    pid: int
    spec: "ServerSpec"


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """A server to run."""

    preset: str
    """The simulated machine."""
    name: str = ""
    """By default the preset."""
    cluster: str = ""

    @property
    def title(self) -> str:
        """The name of the server."""
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
        yield tuple(
            [
                ModelServer(spec.title, await _announced_address(process, spec.title), process.pid, spec)
                for spec, process in zip(specs, processes, strict=True)
            ]
        )


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


def demo_config() -> LoadedConfig:
    """Return a configuration that fills the cheapest hardware first, and prefers cached prompts on it.

    With the sample `heterogeneous-cost`, the H100 would serve all traffic of the demo: a busy H100 is the cheapest.
    """
    return load_text(_CONFIG, "demo configuration")


def discovery(servers: Iterable[ModelServer]) -> StaticDiscovery:
    """Return the pool of the servers, each with its hardware and its cluster."""
    targets = []
    for server in servers:
        place, spec = parse_host_port(server.address), server.spec
        targets.append(
            Target(server.name, place.host, place.port, cluster=spec.cluster, accelerator=PRESETS[spec.preset])
        )
    return StaticDiscovery(targets)
