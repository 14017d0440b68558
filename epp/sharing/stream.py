# SPDX-License-Identifier: Apache-2.0
"""The stream in Redis or Valkey that carries shared state between pickers, and its metrics."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client.registry import CollectorRegistry

from epp.framework.clock import Clock
from epp.runtime.addresses import failure_text
from epp.runtime.supervisor import first_of
from epp.sharing.exchange import COUNTS, Exchange
from epp.sharing.settings import SharingSettings
from epp.telemetry.families import Computed, Row

if TYPE_CHECKING:
    from redis.asyncio import Redis

_ANSWER_SECONDS = 2.0
"""Time after which the server counts as failed."""
_SLOW_SECONDS = 0.25
"""Response time from which a problem is reported."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 0.5
"""Pauses between attempts while the server fails."""
_IDLE_SECONDS, _IDLE_BATCH_SECONDS = 1.0, 0.5
"""Time without a change after which the picker is idle, and time between two batches then, without requests."""
_BLOCK_MS = 1000
"""Longest wait of the server for a new entry; shorter than `_ANSWER_SECONDS`."""
_CHECK_SECONDS = 1.0
"""Time between two checks of the salt, which is lost if the server is emptied."""
_CLOSING_SECONDS = 0.5
_HOLD_SECONDS = 0.005
"""Longest time for which batches are applied while requests wait."""
_MOST_READ = 256
_LEAST_ENTRIES, _MOST_ENTRIES = 1_000, 100_000
"""Bounds of the length of the stream."""
_ENTRY_BYTES = 100
"""Size of an entry in the server, without its batch."""
_SMOOTHING = 0.01
_FIELD = b"b"
_FROM_START = b"0-0"

_log = structlog.get_logger()


class SharedStream:
    """Writes own batches, and reads the batches of other pickers as they arrive.

    The stream has the latest changes: a picker that starts reads all of it, and a picker that was disconnected
    continues after its last entry.
    """

    def __init__(self, exchange: Exchange, settings: SharingSettings, pool: str, clock: Clock) -> None:
        """Prepare; raises ValueError if the client library is missing."""
        self.name = settings.server.name
        self.is_connected = False
        self.problem = ""
        """Reason that state is late or not shared; empty for no problem."""
        self.failures = 0
        self.trimmed = 0
        """Number of times that the last entry read by this picker was missing from the stream."""
        self.exchange = exchange
        self._clock = clock
        self._stream = f"{settings.prefix}:{{{pool}}}:changes"
        self._salt_key = f"{settings.prefix}:{{{pool}}}:salt"
        self._history_bytes = settings.history_bytes
        self._client: Redis = settings.server.client(_ANSWER_SECONDS)
        self._last = _FROM_START
        """Id of the last entry that was read."""
        self._unsent: Sequence[bytes] = ()
        """Batches that the server may not have received."""
        self._mean_bytes = float(_ENTRY_BYTES)
        self._checked_at = self._wrote_at = -inf
        self._offset = 0.0
        """Time of the server minus time of the clock, in seconds."""
        self._caught_up = asyncio.Event()
        self.begins = asyncio.Event()
        """Set once the endpoints are known: changes of unknown endpoints have no effect."""
        self.wakes = asyncio.Event()
        """Set at each request, so that a batch is written soon, and after changes that wait for an answer."""
        self.collect: Callable[[], Sequence[bytes]] = exchange.collect_all
        """Returns the batches to write."""
        self.apply: Callable[[bytes, float], object] = exchange.apply
        """Takes a batch of another picker, and its age in seconds."""
        exchange.on_news = self.wakes.set

    async def caught_up(self, most_seconds: float) -> bool:
        """Wait until the whole stream has been read, or for the given time; return whether it has been read."""
        return await first_of(self._caught_up.wait(), most_seconds=most_seconds)

    async def run(self) -> None:
        """Share once it `begins`, until cancelled; then publish that this picker ends."""
        await self.begins.wait()
        pause = _FIRST_PAUSE_SECONDS
        try:
            while not _is_cancelled():
                try:
                    await self._connect()
                    pause = _FIRST_PAUSE_SECONDS
                    await first_of(self._publish(), self._read())
                except Exception as error:  # noqa: BLE001  raised by the client, or for an unexpected answer
                    self._failed(error)
                    self.exchange.sweep()
                    await self._client.connection_pool.disconnect()
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        finally:
            with suppress(Exception):  # other pickers forget a silent picker anyway
                async with asyncio.timeout(_CLOSING_SECONDS):
                    if self.is_connected and (batch := self.exchange.collect(is_last=True)) is not None:
                        await self._client.xadd(self._stream, {_FIELD: batch})
            with suppress(Exception):
                await self._client.aclose()

    @property
    def health(self) -> Mapping[str, object]:
        return {
            "server": self.name,
            "connected": self.is_connected,
            "other_pickers": self.exchange.peers,
            **({"problem": self.problem} if self.problem else {}),
        }

    async def _connect(self) -> None:
        """Agree on the salt, and restart at the beginning of the stream if the last entry that was read is missing.

        The stream may have been trimmed, or be that of a replica that took over: its entries may have lower ids.
        """
        await self._agree_on_salt()
        if self._last != _FROM_START and not await self._client.xrange(self._stream, self._last, self._last):
            self.trimmed += 1
            self._last = _FROM_START
            self.exchange.renew()

    async def _agree_on_salt(self) -> None:
        """Use the salt of the pool; the first picker sets its own."""
        async with self._client.pipeline(transaction=False) as commands:
            commands.set(self._salt_key, f"{self.exchange.salt:016x}", nx=True)
            commands.get(self._salt_key)
            commands.time()
            refused, found, time = await commands.execute(raise_on_error=False)
        for answer in (found, time, *((refused,) if found is None else ())):
            if isinstance(answer, BaseException):
                raise answer
        try:
            salt = int(found, 16)
        except (TypeError, ValueError):
            raise ValueError(f"the key {self._salt_key} is not the salt of a pool: delete it") from None
        self.exchange.use_salt(salt % 2**64)
        now = self._checked_at = self._clock.now()
        self._offset = time[0] + time[1] / 1e6 - now

    async def _publish(self) -> None:
        """Write a batch soon after a request, and otherwise in each interval with a change."""
        pause = _FIRST_PAUSE_SECONDS
        while not _is_cancelled():
            started = self._clock.now()
            self.wakes.clear()
            if started - self._checked_at > _CHECK_SECONDS:
                await self._agree_on_salt()
            self._unsent = self._unsent or self.collect()
            if self._unsent:
                refused = await self._write(self._unsent)
                if refused is not None:
                    self._failed(refused)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                    continue
                pause = _FIRST_PAUSE_SECONDS
                self.exchange.counts["published"] += len(self._unsent)
                self.exchange.counts["bytes_out"] += sum(map(len, self._unsent))
                self._unsent = ()
                self._succeeded(self._clock.now() - started)
                self._wrote_at = started
            self.exchange.sweep()
            await self._until_next()

    async def _until_next(self) -> None:
        """Wait for a request or a timeout, but at least until the interval since the last batch is over."""
        is_idle = self._clock.now() - self.exchange.changed_at > _IDLE_SECONDS
        with suppress(TimeoutError):
            async with asyncio.timeout(_IDLE_BATCH_SECONDS if is_idle else self.exchange.batch_seconds):
                await self.wakes.wait()
        await asyncio.sleep(max(0.0, self._wrote_at + self.exchange.batch_seconds - self._clock.now()))

    async def _write(self, batches: Sequence[bytes]) -> Exception | None:
        """Append batches to the stream; return the error of a refused batch, if any."""
        length = int(min(max(self._history_bytes / self._mean_bytes, _LEAST_ENTRIES), _MOST_ENTRIES))
        async with self._client.pipeline(transaction=False) as commands:
            for batch in batches:
                commands.xadd(self._stream, {_FIELD: batch}, maxlen=length, approximate=True)
            written = await commands.execute(raise_on_error=False)
        return next((answer for answer in written if isinstance(answer, Exception)), None)

    async def _read(self) -> None:
        """Apply the batches of other pickers: immediately after a pause, otherwise once for each interval."""
        while not _is_cancelled():
            found: Any = await self._client.xread({self._stream: self._last}, count=_MOST_READ, block=_BLOCK_MS)
            entries: Sequence[tuple[bytes, Mapping[bytes, bytes]]] = found[0][1] if found else ()
            await self._apply(entries)
            if len(entries) < _MOST_READ:
                self._caught_up.set()
                await asyncio.sleep(self.exchange.batch_seconds if entries else 0)

    async def _apply(self, entries: Sequence[tuple[bytes, Mapping[bytes, bytes]]]) -> None:
        turn_began = self._clock.now()
        for place, fields in entries:
            self._last = place
            batch = fields.get(_FIELD, b"")
            self._mean_bytes += (len(batch) + _ENTRY_BYTES - self._mean_bytes) * _SMOOTHING
            sent_at = int(place.partition(b"-")[0]) / 1000  # the id of an entry begins with the server's time, in ms
            self.apply(batch, max(0.0, self._clock.now() + self._offset - sent_at))
            if self._clock.now() - turn_began > _HOLD_SECONDS:
                await asyncio.sleep(0)
                turn_began = self._clock.now()

    def _succeeded(self, seconds: float) -> None:
        if not self.is_connected:
            _log.info("state is shared with other pickers", server=self.name, other_pickers=self.exchange.peers)
        self.is_connected = True
        self.exchange.connection(is_lost=False)
        self.problem = f"the server answered after {seconds * 1000:.0f} ms" if seconds > _SLOW_SECONDS else ""

    def _failed(self, error: BaseException) -> None:
        self.failures += 1
        self.problem = failure_text(error)
        if self.is_connected or self.failures == 1:
            _log.warning("state is not shared with other pickers", server=self.name, problem=self.problem)
        self.is_connected = False
        self.exchange.connection(is_lost=True)


def _is_cancelled() -> bool:
    """Return whether this task is cancelled: wait_for of Python 3.11, in the client, may swallow the exception."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def show_shared_state(registry: CollectorRegistry, stream: SharedStream) -> None:
    texts = {
        "llm_d_epp_shared_state_connected": "1 while the server of the shared state answers and takes writes.",
        "llm_d_epp_shared_state_peers": "Other pickers of the pool that sent a batch recently.",
        "llm_d_epp_shared_state_age_seconds": "Age of the last batch of another picker when it was applied.",
        "llm_d_epp_shared_state_failures_total": "Failures of the server of the shared state.",
        "llm_d_epp_shared_state_published_batches_total": "Batches that this picker shared.",
        "llm_d_epp_shared_state_published_bytes_total": "Bytes of published batches.",
        "llm_d_epp_shared_state_applied_batches_total": "Batches of other pickers that were applied.",
        "llm_d_epp_shared_state_applied_bytes_total": "Bytes of applied batches.",
        "llm_d_epp_shared_state_applied_entries_total": "Endpoints, chains, rates and tenants in applied batches.",
        "llm_d_epp_shared_state_lost_batches_total": "Batches of other pickers that never arrived.",
        "llm_d_epp_shared_state_repeated_batches_total": "Batches that arrived again or late, and were not applied.",
        "llm_d_epp_shared_state_refused_total": "Batches or payloads that are invalid.",
        "llm_d_epp_shared_state_trimmed_total": "Times that changes were dropped before this picker could read them.",
    }

    def rows() -> Iterator[Row]:
        exchange = stream.exchange
        counts = [exchange.counts[name] for name in COUNTS]
        yield (), (stream.is_connected, exchange.peers, exchange.last_age, stream.failures, *counts, stream.trimmed)

    Computed(registry, (), texts, rows)
