# SPDX-License-Identifier: Apache-2.0
"""A command of this program as a process: what it says, how it ends, and whom it leaves behind."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from tests.support.forked import ForkedProcess, forked
from tests.support.transports import transport_flags
from tests.support.waiting import until

PATIENCE_SECONDS = 60.0
"""More than anything takes; a failing test waits so long."""


class Command:
    """A running `epp`, in a process group of its own, as a shell would start it."""

    def __init__(self, arguments: tuple[str, ...], process: asyncio.subprocess.Process | ForkedProcess) -> None:
        self.out: list[str] = []
        self.err: list[str] = []
        self.pid = process.pid
        self._arguments = arguments
        self._process = process
        streams = ((process.stdout, self.out), (process.stderr, self.err))
        self._readers = [asyncio.create_task(_read(stream, lines)) for stream, lines in streams if stream is not None]

    def __str__(self) -> str:
        return "\n".join([f"$ epp {' '.join(self._arguments)}", *self.out, "--- stderr", *self.err])

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    @property
    def _silent(self) -> bool:
        return all(reader.done() for reader in self._readers)

    @property
    def error(self) -> str:
        """The one line that says what went wrong."""
        (line,) = [line for line in self.err if line.startswith("error: ")]
        assert not any("Traceback" in line for line in self.err), self
        return line

    async def says(self, text: str) -> str:
        """Wait for a line that contains the text, on either stream."""

        def said() -> str | None:
            return next((line for line in [*self.out, *self.err] if text in line), None)

        await until(lambda: said() is not None or self._silent, f"{text!r} is said", seconds=PATIENCE_SECONDS)
        line = said()
        assert line is not None, f"ended ({self._process.returncode}) without saying {text!r}:\n{self}"
        return line

    async def ready(self) -> dict:
        """Return the fields of the log line that says that a picker is ready: the addresses of its servers."""
        return json.loads(await self.says('"msg":"ready"'))

    async def url(self) -> str:
        """Return the address of a gateway, once it listens."""
        return (await self.says("listening on")).split()[2]

    async def end(self) -> int:
        """Wait for the end of the process and of its output; return the exit code."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            exit_code = await self._process.wait()
            await asyncio.gather(*self._readers)
        return exit_code

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def interrupt(self) -> None:
        """Do as Ctrl-C does: SIGINT for the whole group."""
        os.killpg(self.pid, signal.SIGINT)


@contextlib.asynccontextmanager
async def command(
    *arguments: str, terminal: int | None = None, ulimit: str = "", **environment: str
) -> AsyncIterator[Command]:
    """Run `epp` until it ends, or the block does; on the terminal with that file descriptor, if any.

    `ulimit` has arguments of the shell's command of that name, which is run before.
    """
    told = any(argument.startswith("--transport") for argument in arguments)
    if arguments[:1] in {("serve",), ("gateway",)} and not told:
        arguments += transport_flags()
    given = {**os.environ, **environment}
    process = await (_executed(arguments, given, ulimit) if ulimit else forked(arguments, given, terminal))
    running = Command(arguments, process)
    try:
        yield running
    finally:
        if running.running:
            running.kill()
        await running.end()


async def _executed(arguments: tuple[str, ...], environment: dict[str, str], ulimit: str) -> asyncio.subprocess.Process:
    shell = ("sh", "-c", f'ulimit {ulimit} && exec "$@"', "sh", sys.executable, "-m", "epp")
    pipes = {"stdin": asyncio.subprocess.DEVNULL, "stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    return await asyncio.create_subprocess_exec(*shell, *arguments, **pipes, env=environment, start_new_session=True)


async def outcome(*arguments: str) -> tuple[int, Command]:
    """Run `epp` to its end; return the exit code, and what it said."""
    async with command(*arguments) as running:
        return await running.end(), running


async def _read(stream: asyncio.StreamReader, lines: list[str]) -> None:
    async for line in stream:
        lines += [line.decode().rstrip("\n")]


def children(pid: int) -> dict[int, str]:
    """The processes that have this parent, and the names of their programs."""
    return {child: name for child, name, state, parent in _processes() if parent == pid and state not in "ZX"}


def envoy_of(gateway: Command) -> int:
    (envoy,) = [child for child, name in children(gateway.pid).items() if name == "envoy"]
    return envoy


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    return any(process == pid and state not in "ZX" for process, _, state, _ in _processes())


def descriptors(pid: int) -> int:
    """The number of files and sockets that a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def memory_kib(pid: int, name: str) -> int:
    """What Linux calls `VmRSS`, `VmHWM` and so on."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{name}:")]
    return int(line.split()[1])


def _processes() -> Iterator[tuple[int, str, str, int]]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pid, _, rest = path.read_text().partition(" (")
            name, _, fields = rest.rpartition(") ")  # a name may hold anything
            state, parent, *_ = fields.split()
            yield int(pid), name, state, int(parent)
