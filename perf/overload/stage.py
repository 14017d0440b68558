# SPDX-License-Identifier: Apache-2.0
"""Simulated model servers and a gateway in front of them, in separate processes."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp

PLACES = 16
"""Maximum number of running requests of a server."""
SERVERS = 2
WAITING_LOW = 60
"""Maximum number of queued requests of low priority."""
LOW_TTL_SECONDS = 30.0
HIGH, NORMAL, LOW = "high", "normal", "low"
PRIORITIES = {HIGH: 10, NORMAL: 0, LOW: -10}
"""Priorities by objective."""

_PATIENCE_SECONDS = 60.0
_TIME_SCALE = 10
"""Factor on times: a token takes 68 ms, so that the CPU has idle time at full load."""
_CONFIG = f"""
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- type: concurrency-detector
  parameters: {{maxConcurrency: {PLACES + 2}}}  # two wait at the server, so that no place is empty between two requests
- type: round-robin-fairness-policy
- type: active-request-scorer
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: active-request-scorer
flowControl:
  saturationDetector: {{pluginRef: concurrency-detector}}
  defaultPriorityBand: {{fairnessPolicyRef: round-robin-fairness-policy}}
  priorityBands:
  - {{priority: {PRIORITIES[HIGH]}, fairnessPolicyRef: round-robin-fairness-policy}}
  - priority: {PRIORITIES[LOW]}
    maxRequests: {WAITING_LOW}
    defaultRequestTTL: {LOW_TTL_SECONDS:g}s
    fairnessPolicyRef: round-robin-fairness-policy
"""
_OBJECTIVE = """
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceObjective
metadata: {{name: {name}}}
spec: {{priority: {priority}, poolRef: {{name: default}}}}
"""
_SERVER = re.compile(r"on (http://\S+:\d+)")
_GATEWAY = re.compile(r"listening on (http://\S+:\d+) for .*, metrics on (\S+:\d+)")


class Stage(NamedTuple):
    """Addresses of servers and gateway."""

    gateway: str
    metrics: str
    servers: tuple[str, ...]
    pid: int
    """Process id of the picker."""


@asynccontextmanager
async def open_stage(folder: Path) -> AsyncIterator[Stage]:
    """Run servers and gateway until the block ends."""
    (folder / "config.yaml").write_text(_CONFIG)
    objectives = [_OBJECTIVE.format(name=name, priority=priority) for name, priority in PRIORITIES.items()]
    (folder / "objectives.yaml").write_text("---".join(objectives))
    async with AsyncExitStack() as stack:
        servers = []
        for _ in range(SERVERS):
            simulated = ("sim-server", "--port", "0", "--preset", "h100", "--max-num-seqs", str(PLACES))
            process = await stack.enter_async_context(_running(folder, *simulated, "--time-scale", str(_TIME_SCALE)))
            while (said := _SERVER.search(await _line(process))) is None:
                pass
            servers.append(said[1])
        ports = ",".join(url.rsplit(":", 1)[1] for url in servers)
        flags = ["--endpoints", ports, "--config-file", "config.yaml", "--objects", "objectives.yaml", "-v", "0"]
        flags += ["--listen", "127.0.0.1:0", "--metrics-port", "0"]
        gateway = await stack.enter_async_context(_running(folder, "gateway", *flags))
        while (found := _GATEWAY.search(await _line(gateway))) is None:
            pass
        url, metrics = found[1], f"http://{found[2]}/metrics"
        await _until_ready(url)
        yield Stage(url, metrics, tuple(servers), gateway.pid)


@asynccontextmanager
async def _running(folder: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "epp"),
        *arguments,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def _line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), _PATIENCE_SECONDS)
    if not line:
        raise RuntimeError("a process ended before it was ready")
    return line.decode()


async def _until_ready(url: str) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            try:
                async with session.get(f"{url}/v1/models") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.2)
