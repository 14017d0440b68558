# SPDX-License-Identifier: Apache-2.0
"""Memory of bodies that are gone, given back to the system, as the C library keeps what lies between used parts."""

import asyncio
import ctypes
from typing import Final

from epp.extproc.http2.capacity import BufferedBytes

_LOOK_SECONDS: Final = 1.0
WORTHWHILE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of bodies that must have been there, and be gone, before it is asked for."""


class Trimmer:
    """Knows when it is time: bodies held much before one look, and little at a later one."""

    def __init__(self, held: BufferedBytes) -> None:
        self._held = held
        self._most = 0

    def is_due(self) -> bool:
        """Return whether much of what was held since the last time is gone; to be asked now and then."""
        held = self._held
        self._most, held.most = max(self._most, held.most), held.used
        if self._most - held.used < WORTHWHILE_BYTES or 2 * held.used > self._most:
            return False
        self._most = held.used
        return True


async def give_back_memory(held: BufferedBytes) -> None:
    """Have the C library return memory, in a thread, whenever it is time; end at once where it cannot."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
    if trim is None:
        return
    trimmer = Trimmer(held)
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        if trimmer.is_due():
            await asyncio.to_thread(trim, 0)
