# SPDX-License-Identifier: Apache-2.0
"""Child processes that are killed when their parent ends for any reason.

As a script, `python -I -S child.py PARENT_PID PROGRAM ARGUMENT...` requests this from the kernel, then executes the
program. A `preexec_fn` would run Python between fork and exec in a process with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def tied_to_parent(*command: str) -> list[str]:
    """Return a command line that runs `command` and is killed when this process, its parent, ends.

    The kernel watches the thread that starts it: start it from the main thread. On systems other than Linux, this is
    the command itself.
    """
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main(arguments: list[str]) -> None:
    """Execute the program, to be killed by the kernel as soon as the parent ends."""
    parent_pid, *command = arguments
    # Survives exec. SIGKILL, because no process would remain to enforce a SIGTERM.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent_pid):
        sys.exit(f"the parent ended before {command[0]} was started")
    os.execv(command[0], command)  # noqa: S606 - no shell is the point


if __name__ == "__main__":
    main(sys.argv[1:])
