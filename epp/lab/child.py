# SPDX-License-Identifier: Apache-2.0
"""Child processes that are killed when their parent ends for any reason.

`python -I -S child.py PARENT_PID PROGRAM ARGUMENT...` requests this from the kernel, then executes the program. A
`preexec_fn` would run Python between fork and exec in a process with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def tied_to_parent(*command: str) -> list[str]:
    """Return a command line that runs `command` and is killed when this process, its parent, ends.

    The kernel watches the thread that starts it: start it from the main thread. On systems other than Linux, return
    `command` unchanged.
    """
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def die_with_parent(parent_pid: int) -> bool:
    """Have the kernel kill this process when its parent ends; return False if it has ended already. Linux only."""
    # Survives exec. SIGKILL, because no process would remain to enforce a SIGTERM.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent_pid


def main(arguments: list[str]) -> None:
    parent_pid, *command = arguments
    if not die_with_parent(int(parent_pid)):
        sys.exit(f"the parent ended before {command[0]} was started")
    os.execv(command[0], command)  # noqa: S606  without a shell


if __name__ == "__main__":
    main(sys.argv[1:])
