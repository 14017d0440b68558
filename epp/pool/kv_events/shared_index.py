# SPDX-License-Identifier: Apache-2.0
"""An index of blocks in Redis or Valkey that pickers share."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import structlog

from epp.framework import Clock
from epp.framework.plugin_status import InputProblem, PluginMetric, Sample
from epp.pool.breaker import Breaker
from epp.pool.kv_events.events import BlockStored, hash_of
from epp.pool.kv_events.holders import Lane
from epp.pool.kv_events.parameters import RedisParameters
from epp.pool.kv_events.prompt_blocks import SharedMatch
from epp.pool.kv_events.rows import Keys
from epp.pool.kv_events.shared_layout import (
    CLEAR,
    FIND,
    MOST_KEYS,
    RESOLVE,
    WRITE,
    Write,
    WriteQueue,
    field_of,
    fields_pattern,
    found_in,
)
from epp.runtime.addresses import failure_text
from epp.runtime.supervisor import end

_BUDGET_SECONDS = 0.05
"""Longest time that a request waits."""
_ANSWER_SECONDS = 1.0
"""Time after which the server counts as failed."""
_RESOLVE_SECONDS = 0.1
"""Longest time that events wait for unknown keys of blocks."""
_CLOSING_SECONDS = 1.0
_MOST_LOOKUPS = 32
_FIRST_KEYS = 64
_MOST_FAILURES, _REST_SECONDS = 5, 10.0
"""Consecutive failed lookups after which requests are routed without the shared index, and the time of this pause."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 5.0
_MOST_REASON = 200
_LASTING = ("READONLY", "MISCONF", "LOADING", "MASTERDOWN", "NOREPLICAS", "NOPERM")
"""Errors of single writes that affect the whole server."""

_LOOKUPS = PluginMetric(
    "kv_cache_shared_index_lookups", "Requests looked up in the shared index, by result.", ("result",), is_counter=True
)
_BLOCKS = PluginMetric(
    "kv_cache_shared_index_blocks",
    "Blocks stored in or removed from the shared index, by result.",
    ("result",),
    is_counter=True,
)
_CLEARED = PluginMetric(
    "kv_cache_shared_index_cleared_endpoints", "Endpoints whose blocks were all removed.", is_counter=True
)
_WAITING = PluginMetric("kv_cache_shared_index_waiting_blocks", "Blocks that are not written yet.")
_UNAVAILABLE = PluginMetric(
    "kv_cache_shared_index_unavailable", "1 while the shared index is not used, since it failed."
)
SHARED_METRICS = (_LOOKUPS, _BLOCKS, _CLEARED, _WAITING, _UNAVAILABLE)
_log = structlog.get_logger()


class SharedIndex:
    """Writes the blocks that engines report to this picker, and looks up the blocks of all pickers.

    Writes wait in a queue. If it is full, or an endpoint is cleared, all blocks of the endpoint are removed from the
    shared index, so that no outdated blocks remain there; then only blocks that are stored later are written.
    """

    def __init__(
        self, given: RedisParameters, clock: Clock, *, block_tokens: int, weights: Mapping[str, float]
    ) -> None:
        self.name = given.server.name
        self._given = given
        self._block_tokens = block_tokens
        self._weights = weights
        self.endpoints: dict[Lane, str] = {}
        """Endpoints whose blocks are written, by lane."""
        self._breaker = Breaker(_MOST_FAILURES, self._log_change, clock=clock, rest_seconds=_REST_SECONDS)
        self._problem = ""
        """Reason that nothing is written now."""
        self._refused = ""
        """Reason that some of the latest writes failed."""
        self._other_sizes: set[int] = set()
        """Sizes of blocks that are not shared, in tokens."""
        self._lookups = Counter(dict.fromkeys(("answered", "partial", "late", "busy", "failed", "unavailable"), 0))
        self._blocks = Counter(dict.fromkeys(("written", "failed", "other size"), 0))
        self._cleared = 0
        self._queue = WriteQueue()
        self._awake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_open = self._is_checked = False
        self._client = given.server.client(_ANSWER_SECONDS)
        register = self._client.register_script
        self._find, self._write = register(FIND), register(WRITE)
        self._clear, self._resolve = register(CLEAR), register(RESOLVE)

    async def run(self) -> None:
        self._is_open, self._is_checked = True, False
        pause = _FIRST_PAUSE_SECONDS
        try:
            while True:
                has_work = bool(self._queue)
                try:
                    if not self._is_checked:
                        await self._client.ping()
                    elif has_work:
                        await self._write_some()
                except Exception as error:  # noqa: BLE001  raised by the client, or for an unexpected answer
                    self._failed(error)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                    continue
                if self._is_checked or not has_work:
                    pause = _FIRST_PAUSE_SECONDS
                    if self._problem:
                        _log.info("the KV caches are shared again", index=self.name)
                    self._problem = ""
                self._is_checked = True
                if not has_work:
                    await self._awake.wait()
                self._awake.clear()
        finally:
            self._is_open = False
            with suppress(Exception):  # remaining writes are lost
                async with asyncio.timeout(_CLOSING_SECONDS):
                    while self._queue:
                        await self._write_some()
            await end(self._tasks)
            with suppress(Exception):
                await self._client.aclose()

    def look_up(self, chains: Sequence[Keys], known: Collection[str]) -> tuple[SharedMatch, Awaitable[None]] | None:
        """Start to look up the blocks of prompts in the caches of known endpoints; None if that is not possible now.

        The awaitable ends when the match is complete, or after the longest time that a request waits.
        """
        if not self._is_open or not self._breaker.allows():
            self._lookups["unavailable"] += 1
            return None
        if len(self._tasks) >= _MOST_LOOKUPS:
            self._breaker.cancelled()
            self._lookups["busy"] += 1
            return None
        match = SharedMatch(self._weights)
        task = asyncio.create_task(self._match(match, chains, known))
        self._tasks.add(task)
        task.add_done_callback(partial(self._looked_up, match))
        return match, asyncio.ensure_future(_end_of(task))

    async def keys_of(self, hashes: Sequence[int]) -> Sequence[int]:
        """Return the keys of blocks by the engine's hashes, 0 for unknown hashes; empty after a failure."""
        if self._problem or not self._is_open:
            return ()
        found: list[int] = []
        try:
            async with asyncio.timeout(_RESOLVE_SECONDS):
                for start in range(0, len(hashes), MOST_KEYS):
                    names = [f"engine:{each}" for each in hashes[start : start + MOST_KEYS]]
                    answer: bytes = await self._resolve(keys=names)
                    found += [int(each) % 2**64 if each.isdigit() else 0 for each in answer.split()]
        except Exception as error:  # noqa: BLE001  raised by the client, or for an unexpected answer
            self._failed(error)
        return found if len(found) == len(hashes) else ()

    def stored(self, lane: Lane, tier: str, event: BlockStored, keys: Sequence[int]) -> None:
        """Store the first blocks of an event, one for each key; blocks of another size are not shared."""
        if event.block_size not in (0, self._block_tokens):  # 0 if the size of the blocks is unknown
            self._blocks["other size"] += len(keys)
            self._other_sizes.add(event.block_size)
            return
        if (endpoint := self.endpoints.get(lane)) is not None:
            fields = (field_of(endpoint, tier, event.group_idx),)
            self._enqueue(Write(endpoint, fields, keys, [hash_of(each) for each in event.block_hashes[: len(keys)]]))

    def removed(self, lane: Lane, tier: str, keys: Sequence[int], hashes: Sequence[int]) -> None:
        """Remove blocks without further copies in the cache, in all groups, by key and by the engine's hash."""
        if (endpoint := self.endpoints.get(lane)) is not None:
            fields = [field_of(endpoint, tier, group) for group in dict.fromkeys((None, *lane.kinds))]
            self._enqueue(Write(endpoint, fields, keys, hashes, is_removal=True))

    def cleared(self, lane: Lane) -> None:
        """Remove all blocks of a lane; pending writes are dropped."""
        if self._is_open and (endpoint := self.endpoints.get(lane)) is not None:
            self._queue.clear(endpoint)
            self._awake.set()

    def _log_change(self) -> None:
        self._breaker.log_change("the shared index of KV caches", "requests are routed without it", self.name)

    @property
    def problems(self) -> Iterable[InputProblem]:
        """Reasons that the server is not used, or not used for all blocks."""
        if problem := self._problem or self._breaker.problem or self._refused:
            yield InputProblem(self.name, reason=f"the KV caches of this picker are not shared: {problem}")
        if self._other_sizes:
            sizes = ", ".join(map(str, sorted(self._other_sizes)))
            remedy = "set tokenProcessorConfig.blockSizeTokens to the block size of the engines"
            yield InputProblem(self.name, reason=f"blocks of {sizes} tokens are not shared; {remedy}")

    @property
    def samples(self) -> Iterable[Sample]:
        for result, number in self._lookups.items():
            yield Sample(_LOOKUPS, number, (result,))
        for result, number in self._blocks.items():
            yield Sample(_BLOCKS, number, (result,))
        yield Sample(_BLOCKS, self._queue.dropped, ("dropped",))
        yield Sample(_CLEARED, self._cleared)
        yield Sample(_WAITING, self._queue.waiting)
        yield Sample(_UNAVAILABLE, bool(self._problem or self._breaker.problem))

    async def _match(self, match: SharedMatch, chains: Sequence[Keys], known: Collection[str]) -> None:
        async with asyncio.timeout(_BUDGET_SECONDS):
            for keys in chains:
                match.begin()
                start, size = 0, _FIRST_KEYS
                while start < len(keys):
                    some = keys[start : start + size].tolist()
                    found = found_in(await self._find(keys=some))
                    is_whole = match.add(found.read, [each for each in found.runs if each[0] in known])
                    if not is_whole or (found.read < len(some) and not found.has_more):
                        break
                    start, size = start + found.read, MOST_KEYS

    def _looked_up(self, match: SharedMatch, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if task.cancelled():
            self._breaker.cancelled()
        elif error is None:
            self._lookups["answered"] += 1
            self._breaker.succeeded()
        elif isinstance(error, TimeoutError) and match.blocks:
            self._lookups["partial"] += 1
            self._breaker.succeeded()
        elif isinstance(error, TimeoutError):
            self._lookups["late"] += 1
            self._breaker.failed(f"no answer in {_BUDGET_SECONDS * 1000:.0f} ms")
        else:
            self._lookups["failed"] += 1
            self._breaker.failed(failure_text(error))

    def _enqueue(self, write: Write) -> None:
        if self._is_open:
            self._queue.add(write)
            self._awake.set()

    async def _write_some(self) -> None:
        """Clear endpoints if any must be cleared, or else write the next blocks."""
        if self._queue.clearing:
            await self._clear_all()
            return
        fields: dict[bytes, int] = {}
        keys: list[str] = []
        codes: list[str] = []
        taken = self._queue.next()
        for write in taken:
            for field in write.fields:
                number = fields.setdefault(field, len(fields) + 1)
                codes += [str(-number if write.is_removal else number)] * len(write.keys)
                for key, engine in zip(write.keys, write.hashes, strict=True):
                    keys += (str(key), f"engine:{engine}")
        if not taken:
            return
        answer: bytes = await self._write(keys=keys, args=[" ".join(codes), *fields])
        failed, _, reason = answer.decode(errors="replace").partition(" ")
        if int(failed) == len(codes) and reason.startswith(_LASTING):
            raise ConnectionError(reason[:_MOST_REASON])
        self._queue.done(taken)
        self._refused = reason[:_MOST_REASON]
        self._blocks["failed"] += int(failed)
        self._blocks["written"] += len(codes) - int(failed)

    async def _clear_all(self) -> None:
        """Remove the fields of endpoints from all hashes."""
        endpoints, self._queue.clearing = self._queue.clearing, set()
        patterns = [fields_pattern(each) for each in sorted(endpoints)]
        cursor = 0
        try:
            while True:
                cursor, keys = await self._client.scan(cursor, count=MOST_KEYS, _type="hash")
                for start in range(0, len(keys), MOST_KEYS):
                    await self._clear(keys=keys[start : start + MOST_KEYS], args=patterns)
                if not cursor:
                    break
        except BaseException:
            self._queue.clearing |= endpoints
            raise
        self._cleared += len(endpoints)

    def _failed(self, error: BaseException) -> None:
        problem = failure_text(error)
        if not self._problem:
            _log.warning("the KV caches are not shared", index=self.name, problem=problem)
        self._problem, self._is_checked = problem, False
        self._awake.set()


async def _end_of(task: asyncio.Task[None]) -> None:
    """Wait for a task, which continues if the wait is cancelled."""
    await asyncio.wait((task,))
