# SPDX-License-Identifier: Apache-2.0
"""A trace in real time: simulated servers and a gateway in separate processes, and one client per request."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

import aiohttp
import msgspec
import yaml

from epp.config.load import sample_texts
from epp.lab.replay.traffic import TraceTraffic
from epp.lab.traces.formats import own_lines
from epp.lab.traces.reading import open_trace
from epp.lab.traces.trace import TraceRequest
from perf.fidelity.cases import MODEL, Case
from perf.rig.processes import BenchError, Child
from tests.support.ports import reserved_ports

TRACE, DECISIONS = "trace.jsonl", "decisions.jsonl"
_READY_SECONDS = 60.0
_END_SECONDS = 60.0
"""Time limit for answers after the last request."""


class Played(NamedTuple):
    """One request, in seconds."""

    late: float
    """Delay with which it was sent, relative to the trace."""
    ttft: float
    total: float


def write_files(case: Case, directory: Path, ports: list[int]) -> None:
    """Write trace, profiles, endpoint list and configuration, for both gateway and replay."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / DECISIONS).unlink(missing_ok=True)
    entries = []
    for (name, profile), port in zip(case.profiles.items(), ports, strict=True):
        (directory / f"{profile.name}.yaml").write_bytes(msgspec.yaml.encode(profile))
        device, _, part = profile.name.partition("-")
        accelerator = {"class": {"a100": "a100-40gb"}.get(device, device), "count": 1, "costPerHour": 1.0}
        accelerator |= {"profile": part} if part else {}
        entries.append({"name": name, "address": "127.0.0.1", "port": str(port), "accelerator": accelerator})
    (directory / TRACE).write_bytes(b"".join(own_lines(case.requests, case.block_tokens)))
    (directory / "endpoints.yaml").write_text(json.dumps({"endpoints": entries}))
    config = yaml.safe_load(sample_texts()[case.config])
    config["plugins"] += [
        {"type": "file-discovery", "parameters": {"path": str(directory / "endpoints.yaml")}},
        {"type": "session-id-producer"},
    ]
    config["dataLayer"] = {"discovery": {"pluginRef": "file-discovery"}}
    (directory / "config.yaml").write_text(json.dumps(config))


@asynccontextmanager
async def gateway(case: Case, directory: Path) -> AsyncIterator[str]:
    """Run servers and gateway until the block ends, and write decisions.jsonl; yield the URL."""
    async with AsyncExitStack() as stack:
        *ports, listen = stack.enter_context(reserved_ports(len(case.servers) + 1))
        write_files(case, directory, ports)
        for profile, port in zip(case.profiles.values(), ports, strict=True):
            flags = ("--preset", str(directory / f"{profile.name}.yaml"), "--port", str(port))
            await stack.enter_async_context(await _start("sim-server", *flags))
        flags = ("--config-file", str(directory / "config.yaml"), "--listen", f"127.0.0.1:{listen}")
        record = ("--decision-file", str(directory / DECISIONS), "--decision-file-prefixes")
        child = await stack.enter_async_context(await _start("gateway", *flags, *record, "--decision-sample-rate", "1"))
        url = f"http://127.0.0.1:{listen}"
        await _until_ready(url, child)
        await asyncio.sleep(1.0)  # several polls, so that the load is known to the first requests
        yield url


async def _start(command: str, *flags: str) -> Child:
    return await Child.start(command, sys.executable, "-m", "epp", command, *flags)


async def _until_ready(url: str, child: Child) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(_READY_SECONDS):
        while True:
            child.check()
            with suppress(aiohttp.ClientError):
                async with session.get(f"{url}/v1/models") as response:
                    if response.status == HTTPStatus.OK:
                        return
            await asyncio.sleep(0.2)


async def play(case: Case, directory: Path, url: str) -> list[Played]:
    """Send each request when it is due; raises BenchError if one is refused."""
    arrivals = TraceTraffic(open_trace(directory / TRACE))
    headers = [{key: value for key, value in one.headers.items() if key[0] != ":"} for one in arrivals]
    bodies = [_body(one, prompt) for one, prompt in zip(case.requests, case.prompts(), strict=True)]
    connector, no_limit = aiohttp.TCPConnector(limit=0, keepalive_timeout=60), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(url, connector=connector, timeout=no_limit) as session:
        started = time.perf_counter() + 0.1
        async with asyncio.timeout(case.requests[-1].at + _END_SECONDS):
            sent = []
            for one, of_it, body in zip(case.requests, headers, bodies, strict=True):
                due = started + one.at
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                sent.append(asyncio.create_task(_request(session, of_it, body, due)))
            return await asyncio.gather(*sent)


def _body(one: TraceRequest, prompt: str) -> bytes:
    length = {"max_tokens": one.output_tokens, "ignore_eos": True}
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    return msgspec.json.encode({"model": one.model or MODEL, "prompt": prompt, **length, **stream})


async def _request(session: aiohttp.ClientSession, headers: dict[str, str], body: bytes, due: float) -> Played:
    first, sent = 0.0, time.perf_counter()
    async with session.post("/v1/completions", data=body, headers=headers) as response:
        if response.status != HTTPStatus.OK:
            raise BenchError(f"status {response.status}: {(await response.text())[:500]}")
        async for _ in response.content.iter_any():
            first = first or time.perf_counter()
    return Played(sent - due, first - sent, time.perf_counter() - sent)
