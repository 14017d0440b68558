# SPDX-License-Identifier: Apache-2.0
"""Fetches of token ids for requests that wait: a time budget, a cache, a limit of fetches, and a circuit breaker."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable
from enum import StrEnum
from functools import partial
from hashlib import blake2b
from secrets import token_bytes

import msgspec
import structlog

from epp.framework import Clock
from epp.pool.breaker import Breaker
from epp.pool.tokens.source import Api, Prompt, PromptRefusedError, SourceFailedError, Tokens, TokenSource

_CACHE_BYTES = 64 * 1024 * 1024
_ENTRY_BYTES = 512
"""Bytes of an entry of the cache beside its token ids."""
_KEY_BYTES = 16
_IN_FLIGHT_BYTES = 64 * 1024 * 1024
"""Bodies of fetches that have not ended."""
_FAILURES = 5
"""Consecutive failures after which the source is not asked for a while."""
_REST_SECONDS = 10.0
_LATE = "no answer in time"

_log = structlog.get_logger()


class Result(StrEnum):
    """How a request came to its token ids, or why it was routed without."""

    CACHED = "cached"
    FETCHED = "fetched"
    LATE = "late"
    """Not within the budget."""
    BUSY = "busy"
    """Too many fetches at that moment."""
    REFUSED = "refused"
    """The source has no tokens for this prompt."""
    FAILED = "failed"
    UNAVAILABLE = "unavailable"
    """The source had failed several times in a row, or is not in use yet."""
    TOO_LARGE = "too large"


class Lookup(msgspec.Struct):
    """The token ids of one request, as far as they are known."""

    key: bytes
    tokens: Tokens | None = None
    result: Result | None = None
    """None until the source was asked."""


class Cache:
    """Token ids by the digest of a request; of too many bytes, the least recently used go."""

    def __init__(self, most_bytes: int = _CACHE_BYTES) -> None:
        self.bytes = 0
        self._most = most_bytes
        self._found: OrderedDict[bytes, Tokens] = OrderedDict()

    def get(self, key: bytes) -> Tokens | None:
        """Return the tokens, and keep them for longer."""
        if key in self._found:
            self._found.move_to_end(key)
        return self._found.get(key)

    def put(self, key: bytes, tokens: Tokens) -> None:
        """Add tokens."""
        self.drop(key)
        self._found[key] = tokens
        self.bytes += _size(tokens)
        while self.bytes > self._most:
            self.drop(next(iter(self._found)))

    def drop(self, key: bytes) -> None:
        """Forget tokens, if they are there."""
        if (tokens := self._found.pop(key, None)) is not None:
            self.bytes -= _size(tokens)


class Fetches:
    """Fetches token ids from one source; a request waits for them up to the budget."""

    def __init__(self, source: TokenSource, clock: Clock, budget_seconds: float) -> None:
        self.results: Counter[Result] = Counter(dict.fromkeys(Result, 0))
        """Requests by result."""
        self.breaker = Breaker(_FAILURES, self._log_change, clock=clock, rest_seconds=_REST_SECONDS)
        self.cache = Cache()
        self.source = source
        self._budget = budget_seconds
        self._secret = token_bytes(_KEY_BYTES)
        self._tasks: dict[bytes, asyncio.Task[Tokens | Result]] = {}
        self._in_flight_bytes = 0
        self._is_open = False

    async def run(self) -> None:
        """Allow fetches until cancelled."""
        async with self.source.opened():
            try:
                await self.source.prepare()
            except (SourceFailedError, TimeoutError) as error:
                self.breaker.failed(str(error) or _LATE, _FAILURES)
            self._is_open = True
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._is_open = False
                for task in (tasks := tuple(self._tasks.values())):
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def look_up(self, api: Api, content: bytes, *, dry_run: bool = False) -> Lookup:
        """Return the tokens of a request from the cache, if they are there."""
        if len(content) > self.source.most_bytes:
            return self._settled(Lookup(b""), Result.TOO_LARGE, count=not dry_run)
        key = blake2b(content, digest_size=_KEY_BYTES, key=self._secret, person=api.name.encode()).digest()
        found = self.cache.get(key)
        if found is None:
            return Lookup(key)
        return self._settled(Lookup(key, found), Result.CACHED, count=not dry_run)

    def fetch(self, lookup: Lookup, api: Api, content: bytes, *, has_media: bool) -> Awaitable[None] | None:
        """Begin a fetch, and return an awaitable that ends with it or with the budget; None if none may begin."""
        task = self._tasks.get(lookup.key)
        if task is None:
            size = self._in_flight_bytes + len(content)
            if len(self._tasks) >= self.source.most_fetches or size > _IN_FLIGHT_BYTES:
                self._settled(lookup, Result.BUSY)
                return None
            if not self._is_open or not self.breaker.allows():
                self._settled(lookup, Result.UNAVAILABLE)
                return None
            task = asyncio.create_task(self._fetched(Prompt(api, content, lookup.key, has_media)))
            self._tasks[lookup.key], self._in_flight_bytes = task, size
            task.add_done_callback(partial(self._ended, lookup.key, len(content)))
        return asyncio.ensure_future(self._within_budget(lookup, task))

    async def _within_budget(self, lookup: Lookup, task: asyncio.Task[Tokens | Result]) -> None:
        await asyncio.wait((task,), timeout=self._budget)
        if not task.done():
            self._settled(lookup, Result.LATE)
        elif task.cancelled():
            self._settled(lookup, Result.UNAVAILABLE)
        else:
            found = task.result()
            if isinstance(found, Result):
                self._settled(lookup, found)
            else:
                lookup.tokens = found
                self._settled(lookup, Result.FETCHED)

    def _ended(self, key: bytes, size: int, _task: asyncio.Task[Tokens | Result]) -> None:
        del self._tasks[key]
        self._in_flight_bytes -= size

    async def _fetched(self, prompt: Prompt) -> Tokens | Result:
        try:
            tokens = await self.source.fetch(prompt)
        except PromptRefusedError:
            self.breaker.succeeded()
            return Result.REFUSED
        except (SourceFailedError, TimeoutError) as error:
            self.breaker.failed(str(error) or _LATE)
            return Result.FAILED
        except asyncio.CancelledError:
            self.breaker.cancelled()
            raise
        except Exception as error:  # noqa: BLE001  of a library; its text may hold something of the prompt
            self.breaker.failed(type(error).__name__)
            return Result.FAILED
        self.breaker.succeeded()
        self.cache.put(prompt.key, tokens)
        return tokens

    def _log_change(self) -> None:
        if self.breaker.is_closed:
            _log.info("the source of token ids answers again", source=self.source.name)
            return
        _log.warning(
            "the source of token ids fails: prompts in text are routed without them",
            source=self.source.name,
            problem=self.breaker.problem,
            next_try_seconds=_REST_SECONDS,
        )

    def _settled(self, lookup: Lookup, result: Result, *, count: bool = True) -> Lookup:
        lookup.result = result
        self.results[result] += count
        return lookup


def _size(tokens: Tokens) -> int:
    return _ENTRY_BYTES + tokens.ids.nbytes + 8 * len(tokens.ends) + _ENTRY_BYTES * len(tokens.media)
