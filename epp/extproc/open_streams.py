"""Knows how many streams are open, and waits until there are none and no more come."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class OpenStreams:
    """Enter `one` for as long as a stream lasts; `quiet` is for whoever wants to leave."""

    def __init__(self) -> None:
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._arrival = asyncio.Event()

    @property
    def count(self) -> int:
        """How many are open now."""
        return self._count

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count a stream for as long as the block lasts."""
        self._count += 1
        self._idle.clear()
        self._arrival.set()
        try:
            yield
        finally:
            self._count -= 1
            if self._count == 0:
                self._idle.set()

    async def quiet(self, seconds: float) -> None:
        """Wait until none has been open for so long."""
        while True:
            while self._count:  # again: one may have come between the event and this
                await self._idle.wait()
            self._arrival.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._arrival.wait()
            if not self._arrival.is_set():
                return
