# SPDX-License-Identifier: Apache-2.0
"""Endpoints of several sources as one pool; a source that cannot be read does not affect the others."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import structlog

from epp.framework.clock import Clock
from epp.framework.datalayer import Discovery, EndpointSource, Pool, Unresolved
from epp.framework.endpoint import Endpoint
from epp.framework.errors import ConfigurationError
from epp.framework.messages import described
from epp.framework.plugin import Parameters
from epp.routing.datastore import by_id
from epp.runtime.supervisor import end, first_of

PATIENCE_SECONDS = 5.0
"""Longest wait for the other sources at the start, after the first source has been read."""
_FIRST_DELAY_SECONDS = 0.5
_LONGEST_DELAY_SECONDS = 30.0
"""Pauses before a source that failed is started again."""
_CHECK_SECONDS = 0.5
_REASON_LENGTH = 500
_NOT_READ = "it has not been read yet"

_log = structlog.get_logger()


class SourceState(NamedTuple):
    name: str
    type: str
    precedence: int
    endpoints: int
    hidden: int
    """Number of endpoints that are not in the pool, since a source before has one with the same address or id."""
    trouble: str
    """Reason that the endpoints may be out of date; empty if they are up to date."""
    stale_seconds: float
    """Time since the trouble began; 0 without trouble."""


class _Part(Pool):
    """The endpoints of one source."""

    def __init__(self, source: EndpointSource, whole: "SeveralSources", now: float) -> None:
        self.source = source
        self.by_id: Mapping[str, Endpoint] = {}
        self.shown: frozenset[str] = frozenset()
        """Ids of the endpoints that are in the pool."""
        self.is_started = False
        self.failure = _NOT_READ
        """Reason that the plugin does not run; empty while it does."""
        self.since = now
        self.logged = ""
        """Trouble in the last log line."""
        self._whole = whole

    @property
    def trouble(self) -> str:
        own = self.source.plugin.trouble
        reason = own or self.failure if self.failure == _NOT_READ else self.failure or own
        return reason[:_REASON_LENGTH]

    def replace(self, endpoints: Iterable[Endpoint]) -> None:
        self._whole.change(self, by_id(endpoints))

    def update(self, changed: Iterable[Endpoint], removed: Iterable[str] = ()) -> None:
        wanted, gone = by_id(changed), set(removed)
        kept = {name: one for name, one in self.by_id.items() if name not in gone}
        self._whole.change(self, kept | wanted, gone)


class SeveralSources(Discovery[Parameters]):
    """The endpoints of sources in order of precedence.

    An endpoint is in the pool unless a source before has one with the same address or id. A source that cannot be read
    keeps its last endpoints, and is tried again. The start fails if no source can be read.
    """

    plugin_type = "several-sources"

    def __init__(self, sources: Sequence[EndpointSource], *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self.sources = tuple(sources)
        self._pool: Pool | None = None
        self._merged: dict[str, Endpoint] = {}
        """The endpoints in the pool by id."""
        self._parts: tuple[_Part, ...] = tuple(_Part(source, self, self.clock.now()) for source in sources)
        self._tasks: dict[_Part, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    @property
    def unresolved(self) -> Sequence[Unresolved]:
        return tuple(each for part in self._parts for each in part.source.plugin.unresolved)

    @property
    def is_reported(self) -> bool:
        """Whether there are several sources, or the only one has failed."""
        return len(self._parts) > 1 or any(part.failure not in {"", _NOT_READ} for part in self._parts)

    @property
    def states(self) -> Sequence[SourceState]:
        """The sources in their order; may be read in any thread."""
        now, found = self.clock.now(), []
        for part in self._parts:
            source, trouble, shown = part.source, part.trouble, len(part.shown)
            stale = round(max(0.0, now - part.since), 1) if trouble else 0.0
            hidden = max(0, len(part.by_id) - shown)
            kind = source.plugin.plugin_type
            found.append(SourceState(source.name, kind, source.precedence, shown, hidden, trouble, stale))
        return found

    def source_of(self, identity: str) -> str:
        """Return the name of the source of the endpoint with this id; empty for an unknown one."""
        return next((part.source.name for part in self._parts if identity in part.shown), "")

    async def start(self, pool: Pool) -> None:
        """Fill the pool from all sources that can be read; raises ConfigurationError if none can."""
        self._pool = pool
        tasks = waiting = {asyncio.create_task(self._begin(part)) for part in self._parts}
        try:
            while waiting and not any(part.is_started for part in self._parts):
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if waiting:
                await asyncio.wait(waiting, timeout=PATIENCE_SECONDS)
        finally:
            await end(tasks)
        if not any(part.is_started for part in self._parts):
            reasons = [f"source {part.source.name!r}: {part.failure}" for part in self._parts]
            raise ConfigurationError("; ".join(reasons) if len(reasons) != 1 else self._parts[0].failure)
        self._log_trouble()

    async def follow(self, pool: Pool) -> None:  # noqa: ARG002  that of `start`
        """Follow all sources until cancelled, and log failures and recoveries."""
        try:
            while True:
                self._changed.clear()
                for part in self._tasks.keys() - set(self._parts):
                    self._tasks.pop(part).cancel()
                for part in self._parts:
                    if part not in self._tasks:
                        self._tasks[part] = asyncio.create_task(self._keep(part), name=f"source {part.source.name}")
                self._log_trouble()
                await first_of(self._changed.wait(), most_seconds=_CHECK_SECONDS)
        finally:
            tasks, self._tasks = self._tasks, {}
            await end(tasks.values())

    def use(self, sources: Sequence[EndpointSource]) -> None:
        """Replace the sources; a source with the plugin or the name of a former one keeps its endpoints meanwhile."""
        known = {part.source.plugin: part for part in self._parts}
        used = {source.plugin for source in sources}
        ended = {part.source.name: part for part in self._parts if part.source.plugin not in used}
        parts = []
        for source in sources:
            part = known.get(source.plugin)
            if part is None:
                part = _Part(source, self, self.clock.now())
                if source.name in ended:
                    part.by_id = ended[source.name].by_id
            part.source = source
            parts.append(part)
        self.sources, self._parts = tuple(sources), tuple(parts)
        self._merge()
        self._changed.set()

    def change(self, part: _Part, endpoints: Mapping[str, Endpoint], removed: Iterable[str] = ()) -> None:
        """Replace the endpoints of a source, by id; those that it removed and added again start without data."""
        if self._pool is not None and part in self._parts:  # otherwise the source is no longer used
            part.by_id = endpoints
            self._merge(part.shown.intersection(removed))

    def _merge(self, fresh: Collection[str] = ()) -> None:
        """Write the difference to the last merged endpoints into the pool; those in `fresh` start without data."""
        before, self._merged = self._merged, {}
        ids: set[str] = set()
        addresses: set[str] = set()
        for part in self._parts:
            shown = {name: one for name, one in part.by_id.items() if name not in ids and one.hostport not in addresses}
            part.shown = frozenset(shown)
            self._merged |= shown
            ids.update(part.by_id)
            addresses.update(one.hostport for one in part.by_id.values())
        changed = [one for name, one in self._merged.items() if before.get(name) is not one or name in fresh]
        gone = [name for name in before if name not in self._merged or name in fresh]
        if self._pool is not None and (changed or gone):
            self._pool.update(changed, gone)

    async def _begin(self, part: _Part) -> None:
        """Start the plugin of a source, and record a failure."""
        try:
            await part.source.plugin.start(part)
        except ConfigurationError as error:
            part.failure = str(error)
        except Exception as error:  # noqa: BLE001  of a plugin: the other sources are read
            self._failed(part, error)
        else:
            part.is_started, part.failure = True, ""

    def _failed(self, part: _Part, error: Exception) -> None:
        """Record and log the failure of a plugin; the first error of a group counts."""
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        reason = described(error)
        if part.failure != reason:
            _log.error("source of endpoints failed", source=part.source.name, exc_info=error)
        part.failure = reason

    async def _keep(self, part: _Part) -> None:
        """Run the plugin of a source, and start it again after a while if it fails."""
        delay = _FIRST_DELAY_SECONDS
        while True:
            if not part.is_started:
                await self._begin(part)
            if part.is_started:
                delay = _FIRST_DELAY_SECONDS
                try:
                    await part.source.plugin.follow(part)
                    part.failure = "it has ended"
                except Exception as error:  # noqa: BLE001  the same
                    self._failed(part, error)
                part.is_started = False
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_DELAY_SECONDS)

    def _log_trouble(self) -> None:
        """Log the trouble of each source when it begins, changes or ends; a single source logs its own trouble."""
        for part in self._parts if len(self._parts) > 1 else ():
            trouble, name = part.trouble, part.source.name
            if trouble == part.logged:
                continue
            if trouble:
                _log.warning("source of endpoints in trouble", source=name, kept_endpoints=len(part.shown), why=trouble)
            else:
                _log.info("source of endpoints read again", source=name, endpoints=len(part.shown))
            if not part.logged:
                part.since = self.clock.now()
            part.logged = trouble
