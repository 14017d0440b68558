"""Child processes that end with their parent, however it went.

Run as a script it stands between the two: `python -I -S child.py PARENT_PID PROGRAM ARGUMENT...` ties its own life to
its parent's, then becomes the program. A `preexec_fn` could do the same, but would run Python between fork and exec
in a program full of threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def tied_to_parent(*command: str) -> list[str]:
    """Return the command line that runs `command` so that it is killed when this process, its parent, is gone.

    The kernel watches the thread that starts it: start it from the main thread. Elsewhere than on Linux, the command
    itself.
    """
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main(arguments: list[str]) -> None:
    """Become the program, to be killed by the kernel as soon as the parent is gone."""
    parent_pid, *command = arguments
    # Survives exec. SIGKILL, because nobody is left to insist after a SIGTERM.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent_pid):
        sys.exit(f"the parent ended before {command[0]} was started")
    os.execv(command[0], command)  # noqa: S606 - no shell is the point


if __name__ == "__main__":
    main(sys.argv[1:])
