# SPDX-License-Identifier: Apache-2.0
"""Commands of this program as children of a process that has imported it: they start in a fifth of the time."""

import asyncio
import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path


class LoadedProgram:
    """The process that has imported the program; see `loaded_program.py`."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(Path(__file__).with_name("loaded_program.py")), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self._close)

    def run(self, arguments: Sequence[str], environment: Mapping[str, str], out: int, err: int) -> int:
        """Start a command; return its process id."""
        order = json.dumps({"run": arguments, "environment": dict(environment)}).encode()
        socket.send_fds(self._control, [order], [out, err])
        return int(self._control.recv(100))

    def exit_code_of(self, pid: int) -> int:
        """Wait for the end of a command; a negative code is the number of a signal."""
        self._control.send(json.dumps({"wait": pid}).encode())
        return int(self._control.recv(100))

    def _close(self) -> None:
        self._control.close()
        self._process.wait()


loaded_program = cache(LoadedProgram)


class ForkedProcess:
    """A command; as much of `asyncio.subprocess.Process` as tests need."""

    def __init__(self, pid: int, stdout: asyncio.StreamReader | None, stderr: asyncio.StreamReader) -> None:
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self.returncode: int | None = None
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._descriptor = os.pidfd_open(pid)
        self._loop.add_reader(self._descriptor, self._end)

    def terminate(self) -> None:
        self._send_signal(15)

    def kill(self) -> None:
        self._send_signal(9)

    async def wait(self) -> int | None:
        await self._ended.wait()
        return self.returncode

    def _send_signal(self, number: int) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    def _end(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self.returncode = loaded_program().exit_code_of(self.pid)
        self._ended.set()


async def forked(
    arguments: Sequence[str], environment: Mapping[str, str], terminal: int | None = None
) -> ForkedProcess:
    """Start a command in a process group of its own, with pipes for what it writes, or a terminal for its output."""
    with contextlib.ExitStack() as stack:
        err, to_err = os.pipe()
        stack.callback(os.close, to_err)
        if terminal is not None:
            pid = loaded_program().run(arguments, environment, terminal, to_err)
            return ForkedProcess(pid, None, await _reader(err))
        out, to_out = os.pipe()
        stack.callback(os.close, to_out)
        pid = loaded_program().run(arguments, environment, to_out, to_err)
        return ForkedProcess(pid, await _reader(out), await _reader(err))


async def _reader(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    pipe = os.fdopen(descriptor, "rb", buffering=0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader
