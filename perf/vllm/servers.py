# SPDX-License-Identifier: Apache-2.0
"""Two genuine vLLM servers on separate CPU cores, one with twice the layers of the other, and their profiles."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import MappingProxyType

import aiohttp

from perf.rig.processes import BenchError, Child
from tests.support.vllm import VLLM_ENVIRONMENT

MODEL = "medium"
LAYERS: Mapping[str, int] = MappingProxyType({"fast": 4, "slow": 8})
"""Layers of each server; weights are random, so a model of any depth can be served."""
_CORES = os.cpu_count() or 1
_START_SECONDS = 300.0
_LOOK_SECONDS = 0.5
_KV_BYTES = 128 * 2**20
_ONE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""Executor without a worker process. By default, the engine busy-waits for a worker, here on another server's core."""


@asynccontextmanager
async def running(venv: Path, ports: Mapping[str, int]) -> AsyncIterator[None]:
    """Run the servers until the block ends; raises BenchError."""
    async with AsyncExitStack() as stack, aiohttp.ClientSession() as session:
        children = []
        for core, (name, port) in enumerate(ports.items()):
            command = ("/usr/bin/env", "taskset", "--cpu-list", str(core % _CORES), *_command(venv, name, port))
            child = await Child.start(name, *command, environment={**os.environ, **VLLM_ENVIRONMENT})
            stack.push_async_callback(_end, child)
            children.append(child)
        async with asyncio.timeout(_START_SECONDS):
            for child, port in zip(children, ports.values(), strict=True):
                while not await _is_healthy(session, port):
                    child.check()
                    await asyncio.sleep(_LOOK_SECONDS)
        yield


async def calibrate(ports: Mapping[str, int], directory: Path, budget: float) -> None:
    """Write NAME.yaml for each server; both are measured at the same time, as in the comparison."""

    async def one(name: str, port: int) -> None:
        url, file = f"http://127.0.0.1:{port}", str(directory / f"{name}.yaml")
        flags = (url, "--model", MODEL, "--budget", f"{budget:g}s", "--output", file)
        async with await Child.start("calibrate", sys.executable, "-m", "epp", "calibrate", *flags) as child:
            if await child.process.wait():
                raise BenchError(f"{name}: {child.log}")
            print(f"{name}:\n{child.log}", file=sys.stderr)

    async with asyncio.TaskGroup() as group:
        for name, port in ports.items():
            group.create_task(one(name, port))


async def empty_caches(ports: Iterable[int]) -> None:
    """Clear the prefix caches of servers."""
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        for port in ports:
            async with session.post(f"http://127.0.0.1:{port}/reset_prefix_cache"):
                pass


def _command(venv: Path, name: str, port: int) -> tuple[str, ...]:
    layers = LAYERS[name]
    return (
        *(str(venv / "bin" / "vllm"), "serve", str(venv / "models" / "medium"), "--served-model-name", MODEL),
        *("--load-format", "dummy", "--hf-overrides", json.dumps({"num_hidden_layers": layers})),
        *("--enforce-eager", "--dtype", "float32", "--max-model-len", "4096", "--max-num-seqs", "4"),
        *("--enable-prefix-caching", "--enable-prompt-tokens-details", "--block-size", "32"),
        *("--kv-cache-memory-bytes", str(_KV_BYTES), "--distributed-executor-backend", _ONE_PROCESS),
        *("--host", "127.0.0.1", "--port", str(port)),
    )


async def _is_healthy(session: aiohttp.ClientSession, port: int) -> bool:
    try:
        async with session.get(f"http://127.0.0.1:{port}/health", timeout=aiohttp.ClientTimeout(5)) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


async def _end(child: Child) -> None:
    await child.stop()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)  # its workers
