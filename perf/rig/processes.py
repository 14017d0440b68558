# SPDX-License-Identifier: Apache-2.0
"""Resource usage of processes, and children that read orders as lines of JSON."""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

from epp.lab.child import tied_to_parent

_CPU_CLOCK = 2
"""CPUCLOCK_SCHED of the kernel: run time of a process, in nanoseconds."""
_STOP_SECONDS = 5.0
_LOG_BYTES = 4000

_ROOT = Path(__file__).parents[2]


class BenchError(Exception):
    """A measurement is not possible; the message is the reason."""


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process with all its threads, without children, to the nanosecond."""
    return time.clock_gettime((~pid << 3) | _CPU_CLOCK)


def children(pid: int) -> list[int]:
    """Return the running child processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent, *_ = path.read_text().rpartition(")")[2].split()
            if int(parent) == pid and state != "Z":
                found.append(int(path.parent.name))
    return found


def memory_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


def _keep_priority(pid: int) -> None:
    """Give a new session our priority: the kernel shares CPUs among sessions, whatever the nice values of processes."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(os.nice(0)))


class Child:
    """A child process with its output in a file; it ends when this process ends for any reason."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: IO[bytes]) -> None:
        self.name = name
        self.process = process
        self._log = log

    @classmethod
    async def start(
        cls, name: str, *command: str, orders: bool = False, environment: Mapping[str, str] | None = None
    ) -> Self:
        """Run a command; with `orders`, its standard input and output are pipes."""
        log = tempfile.TemporaryFile()  # noqa: SIM115  closed by stop()
        pipe = asyncio.subprocess.PIPE if orders else None
        process = await asyncio.create_subprocess_exec(
            *tied_to_parent(*command),
            stdin=pipe or asyncio.subprocess.DEVNULL,
            stdout=pipe or log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        _keep_priority(process.pid)
        return cls(name, process, log)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        """Last lines of its output."""
        self._log.seek(0, 2)
        self._log.seek(max(0, self._log.tell() - _LOG_BYTES))
        return self._log.read().decode(errors="replace")

    def check(self) -> None:
        """Raise BenchError if it has ended."""
        if self.process.returncode is not None:
            raise BenchError(f"{self.name} ended with exit code {self.process.returncode}:\n{self.log}")

    async def stop(self) -> None:
        """Terminate the process, then kill it."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        if self.process.returncode is None:
            self.process.terminate()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        self._log.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


class Program(Child):
    """A program of this checkout, which answers each line of JSON with another one."""

    @classmethod
    async def run(cls, path: Path, *arguments: str) -> Self:
        """Start it."""
        command = (sys.executable, str(path), *arguments)
        environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
        return await cls.start(path.stem, *command, orders=True, environment=environment)

    async def says(self, line: str, *, within_seconds: float = 30.0) -> None:
        """Wait for this line; raises BenchError for any other, or after a timeout."""
        said = await self._line(line, within_seconds)
        if said != line.encode() + b"\n":
            raise BenchError(f"{self.name} says {said!r} instead of {line!r}:\n{self.log}")

    async def ask(self, order: Mapping[str, Any] | None = None, *, within_seconds: float = 30.0) -> dict[str, Any]:
        """Return the answer to an order; raises BenchError after a timeout."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order or {}).encode() + b"\n")
        answer: dict[str, Any] = json.loads(await self._line(order, within_seconds))
        if "error" in answer:
            raise BenchError(f"{self.name}, {order}: {answer['error']}")
        return answer

    async def _line(self, awaited: object, within_seconds: float) -> bytes:
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(within_seconds):
                line = await self.process.stdout.readline()
        except TimeoutError:
            raise BenchError(f"{self.name}: no {awaited} within {within_seconds:g} s:\n{self.log}") from None
        if not line:
            await self.process.wait()
            raise BenchError(f"{self.name} ended at {awaited}:\n{self.log}")
        return line
