# SPDX-License-Identifier: Apache-2.0
"""Traffic in real time: `epp serve` behind a real Envoy, with simulated servers on loopback."""

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml

from perf.bench.profiles.fleets import Fleet
from perf.bench.profiles.outcome import TIMEOUT_SECONDS, Outcome, Served
from perf.bench.profiles.workloads import Trace
from perf.rig.envoy import FULL_DUPLEX, Envoy
from perf.rig.pickers import FLAGS
from perf.rig.processes import Child, Program
from tests.support.ports import reserved_ports

_RIG = Path(__file__).parents[2] / "rig"


async def run(sample: str, fleet: Fleet, trace: Trace) -> Outcome:
    """Send the requests of a trace when they are due, and return their outcome."""
    async with contextlib.AsyncExitStack() as stack:
        servers = await stack.enter_async_context(await Program.run(_RIG / "sim_servers.py"))
        profiles = [msgspec.to_builtins(server.profile) for server in fleet.servers]
        ports = (await servers.ask({"profiles": profiles}))["ports"]
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epp-bench-")))
        address = await stack.enter_async_context(gateway(_with_endpoints(sample, directory, fleet, ports)))
        served = await _send(f"{address}/v1/chat/completions", trace)
        busy = (await servers.ask())["busy"]
    dollars = sum(s * server.dollars_per_hour / 3600 for s, server in zip(busy, fleet.servers, strict=True))
    names = [server.name for server in fleet.servers]
    return Outcome(trace.seconds, tuple(served), dollars, dict(zip(names, busy, strict=True)), trace.target)


@contextlib.asynccontextmanager
async def gateway(config: str, *further: str) -> AsyncIterator[str]:
    """Run a picker with a configuration and flags, and an Envoy, until the block ends; yield the URL."""
    async with contextlib.AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="epp-bench-"))
        grpc_port, health_port, metrics_port = stack.enter_context(reserved_ports(3))
        path = Path(directory) / "config.yaml"
        path.write_text(config)
        flags = FLAGS.format(
            config_file=path, grpc_port=grpc_port, health_port=health_port, metrics_port=metrics_port, verbosity=0
        )
        command = (sys.executable, "-m", "epp", "serve", *flags.split(), *further)
        await stack.enter_async_context(await Child.start("epp", *command))
        envoy = await Envoy.start(FULL_DUPLEX, grpc_port)
        stack.push_async_callback(envoy.stop)
        await envoy.ready()
        await asyncio.sleep(0.5)  # several polls, so that the load is known to the first requests
        yield f"http://127.0.0.1:{envoy.port}"


def _with_endpoints(sample: str, directory: Path, fleet: Fleet, ports: list[int]) -> str:
    """Return a configuration whose endpoints are these servers."""
    entries: list[Mapping[str, Any]] = []
    for server, port in zip(fleet.servers, ports, strict=True):
        entry: dict[str, Any] = {"name": server.name, "address": "127.0.0.1", "port": str(port)}
        entry["labels"] = dict(server.labels)
        if server.declared is not None:
            told = msgspec.to_builtins(server.declared)
            entry["accelerator"] = {name: value for name, value in told.items() if value not in (None, "")}
        entries.append(entry)
    (directory / "endpoints.yaml").write_text(json.dumps({"endpoints": entries}))
    config = yaml.safe_load(sample)
    config["plugins"].append({"type": "file-discovery", "parameters": {"path": str(directory / "endpoints.yaml")}})
    config["dataLayer"] = {"discovery": {"pluginRef": "file-discovery"}}
    return json.dumps(config)


async def _send(url: str, trace: Trace) -> list[Served]:
    served = [Served(call.at, group=call.group) for call in trace.calls]
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        started = time.perf_counter()
        open_ones = []
        for call, one in zip(trace.calls, served, strict=True):
            await asyncio.sleep(max(0.0, started + call.at - time.perf_counter()))
            open_ones.append(asyncio.create_task(_request(session, url, call.body, one)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * TIMEOUT_SECONDS * trace.slowness):
                await asyncio.gather(*open_ones, return_exceptions=True)
    return served


async def _request(session: aiohttp.ClientSession, url: str, body: bytes, one: Served) -> None:
    sent = time.perf_counter()
    headers = {"content-type": "application/json"}
    async with session.post(url, data=body, headers=headers) as response:
        one.refused = response.status != 200
        one.server = response.headers.get("x-sim-server", "")
        tokens, last = 0, sent
        async for piece in response.content.iter_any():
            last = time.perf_counter()
            if one.ttft is None and not one.refused:
                one.ttft = last - sent
            tokens += piece.count(b"data: {")
        if one.ttft is not None:
            one.tpot = (last - sent - one.ttft) / max(1, tokens - 3)
