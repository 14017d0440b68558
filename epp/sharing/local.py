# SPDX-License-Identifier: Apache-2.0
"""Batches between the processes of one picker: a publisher and a reader for each, and the relay of the main process."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeAlias

from epp.framework.clock import Clock
from epp.framework.sharing import Shareable
from epp.runtime.supervisor import first_of
from epp.sharing.exchange import BATCH_SECONDS, Exchange
from epp.sharing.rings import Rings, TimedBatch
from epp.sharing.stream import SharedStream

_IDLE_SECONDS = 0.25
"""Time without a request after which changes are collected."""
_READ_SECONDS, _IDLE_READ_SECONDS = BATCH_SECONDS, 0.05
"""Time between two reads of the rings, and the same time if no batch arrived for a second."""
_QUIET_SECONDS = 1.0
_MOST_AT_ONCE = 4
"""Batches that are applied before one request is routed."""
_HOLD_SECONDS = 0.005
"""Longest time for which batches are applied while requests wait."""
_MOST_UNSENT_BYTES = 1024 * 1024
"""Batches that wait for the server of the shared state; older ones are dropped."""

Send: TypeAlias = Callable[[str, object], None]
"""Sends a message of kind `salt` or `lost` (whether other pickers cannot be reached) to another process."""


class Publisher:
    """Sends the batches of a process soon after requests."""

    def __init__(self, exchange: Exchange, send: Callable[[bytes], None]) -> None:
        self.exchange = exchange
        self.wakes = asyncio.Event()
        """Set at each request, and after changes that wait for an answer."""
        exchange.on_news = self.wakes.set
        self._send = send

    async def run(self) -> None:
        while True:
            self.wakes.clear()
            for batch in self.exchange.collect_all():
                self._send(batch)
                self.exchange.counts["published"] += 1
                self.exchange.counts["bytes_out"] += len(batch)
            self.exchange.sweep()
            await asyncio.sleep(self.exchange.batch_seconds)
            if not self.wakes.is_set():
                await first_of(self.wakes.wait(), most_seconds=_IDLE_SECONDS)


class Reader:
    """Applies the batches in the rings of other processes."""

    def __init__(self, rings: Rings, apply: Callable[[TimedBatch], object], clock: Clock) -> None:
        self._rings = rings
        self._apply = apply
        self._clock = clock
        self.caught_up = asyncio.Event()
        """Set once all batches from before the start are applied."""

    def poll(self) -> None:
        """Apply some new batches, before a request is routed."""
        if self._rings.has_news:
            for timed in islice(self._rings.read(), _MOST_AT_ONCE):
                self._apply(timed)

    async def run(self) -> None:
        """Apply batches until cancelled, beginning with the oldest ones in the rings."""
        news_at = self._clock.now()
        while True:
            began = self._clock.now()
            for timed in self._rings.read():
                self._apply(timed)
                news_at = self._clock.now()
                if news_at - began > _HOLD_SECONDS:
                    await asyncio.sleep(0)
                    began = self._clock.now()
            self.caught_up.set()
            await asyncio.sleep(_READ_SECONDS if began - news_at < _QUIET_SECONDS else _IDLE_READ_SECONDS)


class Relay:
    """Applies the batches of the workers in the main process, and exchanges batches with the other pickers.

    Batches for the workers are written into the ring of the main process. A process that joins reads all batches in the
    rings, as a picker that starts reads the whole stream.
    """

    def __init__(self, exchange: Exchange, clock: Clock, rings: Rings, stream: SharedStream | None = None) -> None:
        """Prepare; `exchange` and `rings` are those of the main process."""
        self._exchange = exchange
        self._clock = clock
        self._rings = rings
        self._stream = stream
        self._deferred: Sequence[Shareable] = ()
        self._completed = rings.oldest
        """Positions up to which batches are applied to these components."""
        self._sent = exchange.salt, exchange.is_lost
        self._members: dict[str, Send] = {}
        """Keyed by picker id."""
        self._unsent_bytes = 0
        self._unsent: deque[bytes] = deque()
        if stream is not None:
            stream.collect = self._take_unsent
            stream.apply = self.from_others

    def join(self, picker: str, send: Send) -> None:
        """Send the salt and the state of the connection to another process, now and after each change."""
        send("salt", self._exchange.salt)
        send("lost", self._exchange.is_lost)
        self._members[picker] = send

    def leave(self, picker: str) -> None:
        """Forget a process that ended, after applying its batches; notify the other processes."""
        self._members.pop(picker, None)
        for timed in self._rings.read():
            self.from_member(timed)
        batch = self._exchange.farewell(picker)
        if batch is not None:
            self._exchange.apply(batch, 0.0)
            self.from_main(batch)

    async def complete(self) -> None:
        """Apply the deferred parts of the batches in the rings, before a request is simulated."""
        deferred = self._exchange.deferred
        if deferred != self._deferred:  # the configuration has changed
            self._deferred, self._completed = deferred, self._rings.oldest
        began = self._clock.now()
        for timed in self._rings.read_all(self._completed):
            self._exchange.apply_deferred(timed.data)
            if self._clock.now() - began > _HOLD_SECONDS:
                await asyncio.sleep(0)
                began = self._clock.now()

    def from_member(self, timed: TimedBatch) -> None:
        self._exchange.apply(timed.data, self._clock.now() - timed.at)
        self._write(timed.data)

    def from_main(self, batch: bytes) -> None:
        self._send_changes()
        self._rings.write(batch, self._clock.now())
        self._write(batch)

    def from_others(self, batch: bytes, age_seconds: float) -> None:
        """Apply and forward a batch of another picker; the server also returns batches of own processes."""
        if self._exchange.apply(batch, age_seconds, known=self._members):
            self._send_changes()
            self._rings.write(batch, self._clock.now() - age_seconds)

    def _send_changes(self) -> None:
        """Notify the other processes if the server of the shared state has another salt, or cannot be reached."""
        sent, self._sent = self._sent, (self._exchange.salt, self._exchange.is_lost)
        if self._sent != sent:
            for send in self._members.values():
                send("salt", self._exchange.salt)
                send("lost", self._exchange.is_lost)

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
