# SPDX-License-Identifier: Apache-2.0
"""One picker behind an Envoy, with its own model servers; all compared pickers get the same load."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from epp.framework.headers import DESTINATION
from epp.lab.gateway.settings import GatewaySettings
from perf.rig.envoy import FULL_DUPLEX, Envoy
from perf.rig.pickers import Picker, PickerKind, address
from perf.rig.processes import BenchError, Program, cpu_seconds

NO_CHOICE: Mapping[str, GatewaySettings] = {"": FULL_DUPLEX}
_RIG = Path(__file__).parent
_RUN_SECONDS = 30.0
"""Maximum time of one run; requests without an answer by then have failed."""
_POLLED_SECONDS = 20.0
_TRIES = 3


@dataclass(frozen=True)
class Load:
    """Requests of one run; open loop with a rate, otherwise closed."""

    requests: int
    connections: int = 16
    prompt_bytes: int = 400
    pieces: int = 0
    rate: float | None = None


@dataclass(frozen=True)
class Outcome:
    """One run: its total time, times of requests, and the picker's CPU time, including its idle rate."""

    requests: int
    seconds: float
    p50: float
    p99: float
    cpu_seconds: float = 0.0
    envoy_cpu_seconds: float = 0.0
    messages: int = 0
    """Number of messages that Envoy sent to the picker."""
    failed: int = 0
    """Number of requests without a complete response of status 200."""
    problem: str = ""
    """Description of the last failure."""


class Loader(Protocol):
    """A process that sends requests."""

    async def run(self, envoy: Envoy, load: Load, first: int, headers: Mapping[str, str] | None = None) -> Outcome:
        """Send requests, numbered from `first`, and wait for the last response."""


class OwnLoader:
    """The program of this directory."""

    def __init__(self, program: Program) -> None:
        self._program = program

    async def run(self, envoy: Envoy, load: Load, first: int, headers: Mapping[str, str] | None = None) -> Outcome:
        """Send requests, numbered from `first`, and wait for the last response."""
        order = asdict(load) | {"port": envoy.port, "first": first, "headers": headers or {}, "seconds": _RUN_SECONDS}
        return Outcome(**await self._program.ask(order, within_seconds=_RUN_SECONDS + 10))


class Stand:
    """A picker that is compared with others."""

    def __init__(self, loader: Loader, servers: Program, picker: Picker, envoys: Mapping[str, Envoy]) -> None:
        self.picker = picker
        self._envoys = envoys
        self._servers = servers
        self._loader = loader

    @property
    def name(self) -> str:
        return self.picker.kind.name

    async def polls(self) -> int:
        """Return the number of reads of metrics pages so far."""
        return int((await self._servers.ask())["polls"])

    async def until_polled(self, count: int) -> None:
        """Wait for a number of page reads, or until a timeout; raises BenchError if there was none."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_POLLED_SECONDS):
                while await self.polls() < count:
                    self.picker.child.check()
                    await asyncio.sleep(0.1)
        if not await self.polls():
            raise BenchError(
                f"{self.name} has not read a metrics page in {_POLLED_SECONDS:g} s:\n{self.picker.child.log}"
            )

    async def moving_gauges(self) -> None:
        """Change the gauges of all servers at each poll from now on."""
        await self._servers.ask({"moving": True})

    async def idle_cores(self, seconds: float) -> float:
        """Return the share of a core that the picker uses without requests."""
        started, before = time.perf_counter(), self.picker.cpu_seconds
        await asyncio.sleep(seconds)
        return (self.picker.cpu_seconds - before) / (time.perf_counter() - started)

    async def run(self, load: Load, first: int, mode: str = "") -> Outcome:
        """Run a load through the Envoy of its mode."""
        envoy = self._envoys[mode]
        messages, before, of_envoy = await envoy.messages(), self.picker.cpu_seconds, cpu_seconds(envoy.child.pid)
        found = await self._loader.run(envoy, load, first)
        used, of_envoy = self.picker.cpu_seconds - before, cpu_seconds(envoy.child.pid) - of_envoy
        return replace(found, cpu_seconds=used, envoy_cpu_seconds=of_envoy, messages=await envoy.messages() - messages)

    async def served(self, load: Load, first: int, mode: str = "") -> Outcome:
        """Run a load without failed requests; retry if some fail, for example on a busy machine.

        Raises BenchError if requests fail each time.
        """
        for _ in range(_TRIES):
            outcome = await self.run(load, first, mode)
            if not outcome.failed:
                return outcome
            await asyncio.sleep(1.0)
        raise BenchError(
            f"{self.name}: {outcome.failed} of {outcome.requests} requests failed:\n{outcome.problem}\n"
            f"{self.picker.child.log}"
        )


class Alone:
    """Envoy without a picker: clients name the endpoint."""

    def __init__(self, loader: Loader, port: int, envoy: Envoy) -> None:
        self._loader = loader
        self._headers = {DESTINATION: f"{address(0)}:{port}"}
        self._envoy = envoy

    async def run(self, load: Load, first: int) -> Outcome:
        """Run a load."""
        return await self._loader.run(self._envoy, load, first, self._headers)


@contextlib.asynccontextmanager
async def loader() -> AsyncIterator[OwnLoader]:
    """Run the load generator until the block ends."""
    async with await Program.run(_RIG / "load.py") as program:
        yield OwnLoader(program)


@contextlib.asynccontextmanager
async def stand(
    with_loader: Loader,
    kind: PickerKind,
    *,
    servers: int,
    refusing: int = 0,
    settings: Mapping[str, GatewaySettings] = NO_CHOICE,
    verbosity: int = 0,
) -> AsyncIterator[Stand]:
    """Run servers, a picker, and an Envoy for each mode, until the block ends.

    At the start of the block, all are ready and every server has been polled.
    """
    async with AsyncExitStack() as stack:
        program = await stack.enter_async_context(await Program.run(_RIG / "model_servers.py"))
        port = (await program.ask())["port"]
        picker = await Picker.start(kind, servers=servers, server_port=port, refusing=refusing, verbosity=verbosity)
        stack.push_async_callback(picker.stop)
        envoys = {}
        for mode, each in settings.items():
            envoys[mode] = envoy = await Envoy.start(each, picker.grpc_port)
            stack.push_async_callback(envoy.stop)
            await envoy.ready()
        found = Stand(with_loader, program, picker, envoys)
        await found.until_polled(2 * servers)
        yield found


@contextlib.asynccontextmanager
async def alone(with_loader: Loader) -> AsyncIterator[Alone]:
    """Run a server and an Envoy without a picker until the block ends."""
    async with AsyncExitStack() as stack:
        program = await stack.enter_async_context(await Program.run(_RIG / "model_servers.py"))
        envoy = await Envoy.start(FULL_DUPLEX, None)
        stack.push_async_callback(envoy.stop)
        await envoy.ready()
        yield Alone(with_loader, (await program.ask())["port"], envoy)
