# SPDX-License-Identifier: Apache-2.0
"""Simulated model servers, each in its own process, on free ports."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from epp.child import tied_to_parent

_STOP_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class ModelServer:
    """One running server."""

    name: str
    address: str
    """`host:port`."""
    pid: int


class ServerFailedError(Exception):
    """A simulated server did not start."""


@asynccontextmanager
async def model_servers(presets: Sequence[str], model: str) -> AsyncIterator[tuple[ModelServer, ...]]:
    """Run one `epp sim-server` for each preset until the block ends; raises ServerFailedError."""
    async with AsyncExitStack() as stack:
        processes = []
        for preset in presets:  # in parallel: each takes most of a second to start
            process = await _spawn(preset, model)
            stack.push_async_callback(_stop, process)
            processes.append(process)
        yield tuple(
            [
                ModelServer(preset, await _announced_address(process, preset), process.pid)
                for preset, process in zip(presets, processes, strict=True)
            ]
        )


async def _spawn(preset: str, model: str) -> asyncio.subprocess.Process:
    command = tied_to_parent(
        sys.executable, "-m", "epp", "sim-server", "--port", "0", "--preset", preset, "--name", preset, "--model", model
    )
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # so that Ctrl-C reaches only the parent, which stops it
    )


async def _announced_address(process: asyncio.subprocess.Process, preset: str) -> str:
    line = await process.stdout.readline() if process.stdout else b""
    _, found, address = line.decode().strip().rpartition("http://")
    if not found:
        errors = (await process.stderr.read()).decode().strip() if process.stderr else ""
        raise ServerFailedError(f"simulated server {preset!r} did not start: {errors or line.decode()}")
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
