# SPDX-License-Identifier: Apache-2.0
"""Counts open streams, waits until none is open, and tells how each one ended."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class StreamObserver:
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def opened(self) -> None:
        """Record a stream."""

    def ended(self, code: str, seconds: float) -> None:
        """Record its end: the name of its gRPC status, as Go's library writes it, and how long it was open."""


class OpenStreams:
    """Call `opened` and `closed`, or enter `one`, for each stream; await `quiet` for an idle period."""

    def __init__(self) -> None:
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._arrival = asyncio.Event()

    @property
    def count(self) -> int:
        """Streams that are open now."""
        return self._count

    def opened(self) -> None:
        """Count a stream."""
        self._count += 1
        if self._count == 1:
            self._idle.clear()
        self._arrival.set()

    def closed(self) -> None:
        """Count a stream no more."""
        self._count -= 1
        if self._count == 0:
            self._idle.set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count a stream for as long as the block lasts."""
        self.opened()
        try:
            yield
        finally:
            self.closed()

    async def quiet(self, seconds: float) -> None:
        """Wait until no stream has been open for so many seconds."""
        while True:
            while self._count:  # again: one may have come between the event and this
                await self._idle.wait()
            self._arrival.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._arrival.wait()
            if not self._arrival.is_set():
                return
