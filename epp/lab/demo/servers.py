# SPDX-License-Identifier: Apache-2.0
"""Simulated model servers, each in its own process, on free ports."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from epp.lab.child import tied_to_parent

_STOP_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class ModelServer:
    """One running server."""

    name: str
    address: str
    """`host:port`."""
    pid: int


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """A server to run."""

    preset: str
    """The simulated machine."""
    name: str = ""
    """By default the preset."""

    @property
    def title(self) -> str:
        """Its name."""
        return self.name or self.preset


class ServerFailedError(Exception):
    """A simulated server did not start."""


@asynccontextmanager
async def model_servers(
    specs: Sequence[ServerSpec], model: str, *, port: int = 0
) -> AsyncIterator[tuple[ModelServer, ...]]:
    """Run one `epp sim-server` for each until the block ends; raises ServerFailedError.

    `port` is that of a single server; 0 for any free one.
    """
    async with AsyncExitStack() as stack:
        processes = []
        for spec in specs:  # in parallel: each takes most of a second to start
            process = await _spawn(spec, model, port)
            stack.push_async_callback(_stop, process)
            processes.append(process)
        yield tuple(
            [
                ModelServer(spec.title, await _announced_address(process, spec.title), process.pid)
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
