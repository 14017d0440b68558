# SPDX-License-Identifier: Apache-2.0
"""The stack of the main thread, seen by itself at the request of another, or of a timer."""

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType


class StackSignal:
    """Has the main thread show its stack, between two of its steps.

    It is asked by a signal. Another thread that walks the frames of one that runs ends the process at times: CPython
    3.11 does not expect it.
    """

    def __init__(self, seen: Callable[[FrameType], None]) -> None:
        """Begin; `seen` is called in the main thread, and may be in the midst of anything. It is to raise nothing."""
        self._seen = seen
        self._thread = threading.get_ident()
        self.number = 0
        """Of the signal; 0 where it has no effect: in other threads, and beside another one."""
        if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
            return
        number = signal.SIGRTMIN + 8
        if signal.getsignal(number) in (signal.SIG_DFL, signal.SIG_IGN):  # else it is somebody else's
            signal.signal(number, self._on_signal)
            signal.siginterrupt(number, False)  # noqa: FBT003  its only form
            self.number = number

    def ask(self) -> None:
        """Have the stack shown soon; called in any thread."""
        if self.number:
            signal.pthread_kill(self._thread, self.number)

    def close(self) -> None:
        """End; called in the main thread, with nobody asking any more. What was asked for is not shown."""
        if self.number:
            signal.signal(self.number, signal.SIG_IGN)  # the default would end the process
            self.number = 0

    def _on_signal(self, _: int, frame: FrameType | None) -> None:
        if frame is not None:
            self._seen(frame)
