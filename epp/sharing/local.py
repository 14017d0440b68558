# SPDX-License-Identifier: Apache-2.0
"""Batches between the processes of one picker: a publisher for each, and the relay of the main process."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from epp.framework.clock import Clock
from epp.sharing.exchange import Exchange
from epp.sharing.stream import SharedStream

_IDLE_SECONDS = 0.25
"""Time without a request after which changes are looked for."""
_MOST_HISTORY_BYTES = 16 * 1024 * 1024
_MOST_UNSENT_BYTES = 1024 * 1024
"""Batches that wait for the server of the shared state; older ones are dropped."""

Send: TypeAlias = Callable[[str, object], None]
"""Sends a message to another process: `batch`, with its age in seconds, `salt`, or whether other pickers are `lost`."""


class Publisher:
    """Hands out the batches of a process soon after requests."""

    def __init__(self, exchange: Exchange, send: Callable[[bytes], None]) -> None:
        self.exchange = exchange
        self.wakes = asyncio.Event()
        """To be set with each request. Changes that wait for an answer set it too."""
        exchange.on_news = self.wakes.set
        self._send = send

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            self.wakes.clear()
            for batch in self.exchange.collect_all():
                self._send(batch)
                self.exchange.counts["published"] += 1
                self.exchange.counts["bytes_out"] += len(batch)
            self.exchange.sweep()
            await asyncio.sleep(self.exchange.batch_seconds)
            with suppress(TimeoutError):
                async with asyncio.timeout(_IDLE_SECONDS):
                    await self.wakes.wait()


class _Kept(NamedTuple):
    batch: bytes
    at: float


class Relay:
    """Passes each batch on to all other processes, and to the server of the shared state if there is one.

    A process that joins gets the latest batches, as a picker that starts reads the stream.
    """

    def __init__(self, exchange: Exchange, clock: Clock, stream: SharedStream | None = None) -> None:
        """Prepare; `exchange` is that of the main process."""
        self._exchange = exchange
        self._clock = clock
        self._stream = stream
        self._told = exchange.salt, exchange.is_lost
        self._members: dict[str, Send] = {}
        """By picker id."""
        self._kept: deque[_Kept] = deque()
        self._kept_bytes = self._unsent_bytes = 0
        self._unsent: deque[bytes] = deque()
        if stream is not None:
            stream.collect = self._take_unsent
            stream.apply = self.from_others

    def join(self, picker: str, send: Send) -> None:
        """Send batches to another process from now on."""
        now = self._clock.now()
        send("salt", self._exchange.salt)
        send("lost", self._exchange.is_lost)
        for kept in self._kept:
            send("batch", (kept.batch, now - kept.at))
        self._members[picker] = send

    def leave(self, picker: str) -> None:
        """Forget a process that ended; tell the others."""
        self._members.pop(picker, None)
        batch = self._exchange.farewell(picker)
        if batch is not None:
            self.from_member(picker, batch)

    def from_member(self, picker: str, batch: bytes) -> None:
        """Pass on a batch of another process."""
        self._exchange.apply(batch, 0.0)
        self._pass_on(batch, 0.0, but=picker)
        self._write(batch)

    def from_main(self, batch: bytes) -> None:
        """Pass on a batch of this process."""
        self._pass_on(batch, 0.0)
        self._write(batch)

    def from_others(self, batch: bytes, age_seconds: float) -> None:
        """Pass on a batch of another picker; those of own processes come back from the server, too."""
        if self._exchange.apply(batch, age_seconds, but=self._members):
            self._pass_on(batch, age_seconds)

    def _pass_on(self, batch: bytes, age_seconds: float, but: str = "") -> None:
        told, self._told = self._told, (self._exchange.salt, self._exchange.is_lost)
        if self._told != told:  # the server of the shared state has another salt, or is away
            for send in self._members.values():
                send("salt", self._exchange.salt)
                send("lost", self._exchange.is_lost)
        for picker, send in self._members.items():
            if picker != but:
                send("batch", (batch, age_seconds))
        self._kept.append(_Kept(batch, self._clock.now() - age_seconds))
        self._kept_bytes += len(batch)
        while self._kept_bytes > _MOST_HISTORY_BYTES:
            self._kept_bytes -= len(self._kept.popleft().batch)

    def _write(self, batch: bytes) -> None:
        if self._stream is None:
            return
        self._unsent.append(batch)
        self._unsent_bytes += len(batch)
        while self._unsent_bytes > _MOST_UNSENT_BYTES:
            self._unsent_bytes -= len(self._unsent.popleft())
        self._stream.wakes.set()

    def _take_unsent(self) -> Sequence[bytes]:
        taken = tuple(self._unsent)
        self._unsent.clear()
        self._unsent_bytes = 0
        return taken
