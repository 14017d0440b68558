# SPDX-License-Identifier: Apache-2.0
"""A child process with a log file: ended by its pid, and killed with its parent at the latest."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

from epp.lab.child import tied_to_parent

START_SECONDS = 120.0
STOP_SECONDS = 120.0
LOG_LINES = 40
"""Lines of the log in an error."""


class Process:
    """A program that may be started and ended any number of times."""

    def __init__(self, log: Path, *command: str) -> None:
        self.log = log
        self.command = command
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int:
        assert self._child is not None, f"{self.command[0]} was not started"
        return self._child.pid

    async def start(self, ready: Callable[[], Awaitable[bool]]) -> None:
        """Start it and wait until it is ready; an error has the end of its log."""
        assert not self.running, f"{self.command[0]} runs already, as {self.pid}"
        with self.log.open("ab") as log:
            # Not a child of the event loop: it outlives the loop of the fixture that started it.
            self._child = subprocess.Popen(tied_to_parent(*self.command), stdout=log, stderr=log)  # noqa: ASYNC220
        try:
            async with asyncio.timeout(START_SECONDS):
                while not await ready():
                    assert self.running, f"{self.command[0]} ended with {self._child.returncode}:\n{self.tail()}"
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            raise AssertionError(f"{self.command[0]} is not ready:\n{self.tail()}") from error

    def kill(self) -> None:
        """End it with SIGKILL, at once."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    async def stop(self) -> None:
        """End it with SIGTERM."""
        assert self._child is not None, f"{self.command[0]} was not started"
        self._child.terminate()
        await asyncio.to_thread(self._child.wait, STOP_SECONDS)

    def pause(self) -> None:
        """Stop it in its tracks: connections stay open, and nothing is answered."""
        assert self._child is not None, f"{self.command[0]} was not started"
        self._child.send_signal(signal.SIGSTOP)
        # Its threads run on until each has seen the signal, and could answer one more request.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Undo `pause`."""
        assert self._child is not None, f"{self.command[0]} was not started"
        self._child.send_signal(signal.SIGCONT)

    def tail(self) -> str:
        """Return the end of the log."""
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join([f"--- {self.log}", *lines])
