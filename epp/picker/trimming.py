# SPDX-License-Identifier: Apache-2.0
"""Memory of bodies that are gone, given back to the system, as the C library keeps what lies between used parts."""

import asyncio
import ctypes
from collections.abc import Callable
from typing import Final

_LOOK_SECONDS: Final = 1.0
WORTHWHILE_BYTES: Final = 32 * 1024 * 1024
"""Bytes of bodies that must have been there, and be gone, before it is asked for."""


class Trimmer:
    """Knows when it is time: bodies held much at one look, and little at a later one."""

    def __init__(self, held_bytes: Callable[[], int]) -> None:
        self._held_bytes = held_bytes
        self._most = 0

    def is_due(self) -> bool:
        """Return whether much of what was held since the last time is gone; to be asked now and then."""
        held = self._held_bytes()
        self._most = max(self._most, held)
        if self._most - held < WORTHWHILE_BYTES or 2 * held > self._most:
            return False
        self._most = held
        return True


async def give_back_memory(held_bytes: Callable[[], int]) -> None:
    """Have the C library return memory, in a thread, whenever it is time; end at once where it cannot."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
    if trim is None:
        return
    trimmer = Trimmer(held_bytes)
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        if trimmer.is_due():
            await asyncio.to_thread(trim, 0)
