# SPDX-License-Identifier: Apache-2.0
"""Tags of endpoints in the datastore, kept up to date with the pool and the taggers."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter
from types import MappingProxyType
from typing import Any, TypeAlias

import structlog

from epp.framework.datalayer import AffectedEndpoints, EveryEndpoint, Report, Tagger
from epp.framework.endpoint import Endpoint
from epp.framework.messages import described
from epp.framework.records import Derivation
from epp.plugins.request_control import EndpointNotificationSource
from epp.pool.collectors.polling.poll import CollectorObserver
from epp.routing.datastore import Change, Datastore, Staging
from epp.runtime.supervisor import SWEEPS

_SHARE = 0.2
"""Largest share of the event loop's time for tagging again: 5,000 endpoints at 0.3 ms each take 8 seconds."""

_Taggers: TypeAlias = dict[Tagger[Any], None]
_Reports: TypeAlias = Callable[[Endpoint, Iterable[Tagger[Any]]], Sequence[Report]]
_Tagged: TypeAlias = dict[str, tuple[Endpoint, Sequence[Report]]]
"""Endpoints and the reports of their taggers, by id."""
_BATCH = 4
"""Endpoints tagged in one step: one can take half a millisecond."""
_MOST_AT_ONCE = 64
"""Changed endpoints that are tagged immediately; if there are more, all are tagged in the background."""
_TRIES = 3
"""Attempts to prepare a large change in steps while the pool keeps changing."""
_log = structlog.get_logger()


@dataclass(slots=True)
class _Round:
    """One round through all endpoints."""

    taggers: _Taggers
    left: list[Endpoint]
    """Endpoints still to be tagged, the next one last."""
    done: _Tagged = field(default_factory=dict)
    """Reports by endpoint id; written when all endpoints are tagged."""


class Retagging:
    """Queue of endpoints to tag again: single endpoints, and rounds through all of them, independent of each other."""

    def __init__(self, store: Datastore, reports: _Reports) -> None:
        """Use `reports` for the new parts of reports."""
        self._store = store
        self._reports = reports
        self._used: frozenset[Tagger[Any]] = frozenset()
        self._some: dict[str, _Taggers] = {}
        """Taggers by endpoint id, in order of the requests."""
        self._next: _Taggers = {}
        """Taggers of the next round."""
        self._round: _Round | None = None
        self.is_due = asyncio.Event()
        """Set while an endpoint is queued."""

    def queue_affected(self, tagger: Tagger[Any], affected: AffectedEndpoints) -> None:
        """Queue the affected endpoints; all endpoints are tagged in a round."""
        if isinstance(affected, EveryEndpoint):
            if self._store.endpoints:  # new endpoints are tagged when they join
                self._next[tagger] = None
                self.is_due.set()
            affected = affected.first
        self.queue(tagger, filter(affected, self._store.endpoints))

    def queue(self, tagger: Tagger[Any], endpoints: Iterable[Endpoint]) -> None:
        for endpoint in endpoints:
            self._some.setdefault(endpoint.id, {})[tagger] = None
        if self._some:
            self.is_due.set()

    def use(self, taggers: Iterable[Tagger[Any]]) -> None:
        """Replace the taggers; a round starts again with its remaining taggers."""
        if self._round is not None:
            self._next.update(self._round.taggers)
            self._round = None
        self._used = frozenset(taggers)

    async def step(self) -> None:
        """Tag some endpoints, then pause as long as the share requires."""
        started = perf_counter()
        self._tag_some()
        await self._go_round()
        if not (self._some or self._next or self._round):
            self.is_due.clear()
        await asyncio.sleep((perf_counter() - started) * (1 / _SHARE - 1))

    def _tag_some(self) -> None:
        this = self._round
        for name in tuple(islice(self._some, _BATCH)):
            taggers = self._in_use(self._some.pop(name))
            endpoint = self._store.endpoint(name)
            if endpoint is None or not taggers:
                continue
            for report in self._reports(endpoint, taggers):
                self._store.tag(endpoint, report)
            if this is not None and name in this.done and not taggers.keys().isdisjoint(this.taggers):
                this.done[name] = endpoint, self._reports(endpoint, this.taggers)

    async def _go_round(self) -> None:
        if self._round is None and self._next:
            taggers, self._next = self._in_use(self._next), {}
            self._round = _Round(taggers, list(reversed(self._store.endpoints))) if taggers else None
        this = self._round
        if this is None:
            return
        for _ in range(min(_BATCH, len(this.left))):
            endpoint = this.left.pop()
            this.done[endpoint.id] = endpoint, self._reports(endpoint, this.taggers)
        if not this.left:
            staging = self._store.stage(this.done)
            await run_in_steps(staging.steps())
            if self._round is this:  # the taggers are unchanged
                self._round = None
                self._store.put_tags(staging)

    def _in_use(self, taggers: _Taggers) -> _Taggers:
        return {tagger: None for tagger in taggers if tagger in self._used}


Derivations: TypeAlias = Mapping[str, Iterable[Derivation]]
NO_DERIVATIONS: Derivations = MappingProxyType({})


class Tagging:
    """Tags all endpoints of the pool, including new ones and those whose labels change."""

    def __init__(
        self, store: Datastore, taggers: Sequence[Tagger[Any]], *, observer: CollectorObserver | None = None
    ) -> None:
        self._store = store
        self._observer = observer or CollectorObserver()
        self._taggers: tuple[Tagger[Any], ...] = ()
        self._failed: set[Tagger[Any]] = set()
        self._retagging = Retagging(store, self._news)
        self._is_tagged = False
        """Whether the endpoints that are joining are tagged already."""
        self._steady = asyncio.Event()
        """Cleared while the taggers are being replaced."""
        self._steady.set()
        store.subscribe(self._pool_changed)
        self.replace(taggers)

    def replace(self, taggers: Sequence[Tagger[Any]]) -> None:
        """Replace the taggers and tag all endpoints; data that only removed taggers wrote becomes unknown."""
        if tuple(taggers) != self._taggers:
            self._apply(taggers)
            self._tag(self._store.endpoints)

    async def change_over(self, taggers: Sequence[Tagger[Any]], derivations: Derivations = NO_DERIVATIONS) -> None:
        """Replace the taggers without blocking the event loop; readers see the old tags until all are new.

        `derivations` are computed ahead for requests, by attribute. The change takes effect in the event-loop iteration
        in which this returns.
        """
        if tuple(taggers) == self._taggers:
            await run_in_steps(self._store.snapshot().derive_ahead(derivations))
            return
        self._steady.clear()
        try:
            tagged: _Tagged = {}
            for _ in range(_TRIES):
                await _tag_in_steps(lambda: self._store.endpoints, lambda one: self._news(one, taggers), tagged)
                staging = self._store.stage(tagged, derivations=derivations)
                await run_in_steps(staging.steps())
                late = _missing(self._store.endpoints, tagged)
                if len(late) <= _BATCH:
                    break
            self._apply(taggers)
            self._store.put_tags(staging)
            self._tag(late)
        finally:
            self._steady.set()

    async def tags_of(self, endpoints: Callable[[], Collection[Endpoint]], taggers: Sequence[Tagger[Any]]) -> _Tagged:
        """Return the tags of endpoints that are not in the pool yet, by id, without blocking the event loop."""
        return await _tag_in_steps(endpoints, lambda one: self._reports(one, taggers), {})

    async def replace_with_pool(
        self,
        taggers: Sequence[Tagger[Any]],
        wanted: Collection[Endpoint],
        tagged: _Tagged,
        derivations: Derivations = NO_DERIVATIONS,
    ) -> None:
        """Replace the taggers and the pool, with its tags, without blocking the event loop; see `change_over`."""
        self._steady.clear()
        try:
            for attempt in range(_TRIES + 1):
                staging = self._store.stage(tagged, wanted, derivations)
                if attempt < _TRIES:
                    await run_in_steps(staging.steps())
                else:  # the pool keeps changing
                    deque(staging.steps(), maxlen=0)
                if self._put_pool(staging):
                    break
            if tuple(taggers) != self._taggers:
                self._apply(taggers)
            self._store.put_tags(staging)
        finally:
            self._steady.set()

    def _put_pool(self, staging: Staging) -> bool:
        self._is_tagged = True
        try:
            return self._store.put_pool(staging)
        finally:
            self._is_tagged = False

    def retag(self, tagger: Tagger[Any], affected: AffectedEndpoints) -> None:
        """Tag endpoints again in the background: see `follow`."""
        self._retagging.queue_affected(tagger, affected)

    async def follow(self) -> None:
        """Tag the queued endpoints until cancelled, in at most a fifth of the event loop's time.

        Single endpoints are written as soon as they are tagged. In a round through all endpoints, readers see the old
        tags until all are new; endpoints that were added or changed meanwhile keep their newer tags.
        """
        while True:
            await self._retagging.is_due.wait()
            await self._steady.wait()
            await self._retagging.step()

    def _apply(self, taggers: Sequence[Tagger[Any]]) -> None:
        before, self._taggers = self._taggers, tuple(taggers)
        self._failed.intersection_update(self._taggers)
        self._retagging.use(self._taggers)
        kept = {datum for tagger in self._taggers for datum in tagger.writes}
        self._store.forget({datum for tagger in before for datum in tagger.writes} - kept)

    def _pool_changed(self, change: Change) -> None:
        for _, endpoint in change.removed:
            for tagger in self._taggers:
                tagger.untag(endpoint)
        if self._is_tagged:
            return
        updated = [endpoint for _, endpoint in change.updated]
        if len(updated) > _MOST_AT_ONCE:
            for tagger in self._taggers:
                self._retagging.queue(tagger, updated)
            updated = []
        self._tag((*(endpoint for _, endpoint in change.added), *updated))

    def _tag(self, endpoints: Iterable[Endpoint]) -> None:
        for endpoint in endpoints:
            for report in self._reports(endpoint, self._taggers):
                self._store.tag(endpoint, report)

    def _news(self, endpoint: Endpoint, taggers: Iterable[Tagger[Any]]) -> list[Report]:
        """Return the parts of the reports of the taggers that are new."""
        return [self._store.news(endpoint, report) for report in self._reports(endpoint, taggers)]

    def _reports(self, endpoint: Endpoint, taggers: Iterable[Tagger[Any]]) -> list[Report]:
        """Return the report of each tagger that does not fail."""
        reports: list[Report] = []
        for tagger in taggers:
            try:
                reports.append(tagger.tag(endpoint))
            except Exception as error:  # noqa: BLE001  a plugin may raise anything; other taggers continue
                self._observer.extract_error(EndpointNotificationSource.plugin_type, tagger.plugin_type)
                if tagger not in self._failed:  # it usually fails for all endpoints
                    self._failed.add(tagger)
                    why = described(error, type(tagger))
                    _log.warning(
                        "endpoint not tagged", endpoint=endpoint.id, tagger=tagger.name, reason=why, exc_info=error
                    )
        return reports


async def _tag_in_steps(
    endpoints: Callable[[], Collection[Endpoint]], tag: Callable[[Endpoint], Sequence[Report]], tagged: _Tagged
) -> _Tagged:
    """Tag all endpoints that are not in `tagged`, including endpoints that join meanwhile, in steps."""

    def tag_each(missing: Iterable[Endpoint]) -> Iterator[None]:
        for endpoint in missing:
            tagged[endpoint.id] = endpoint, tag(endpoint)
            yield

    while missing := _missing(endpoints(), tagged):
        await run_in_steps(tag_each(missing))
    return tagged


def _missing(endpoints: Iterable[Endpoint], tagged: _Tagged) -> list[Endpoint]:
    return [one for one in endpoints if tagged.get(one.id, (None,))[0] is not one]


STRETCH_SECONDS = 0.001
"""Time after which the event loop runs other tasks."""


async def run_in_steps(steps: Iterable[None]) -> None:
    """Run all steps, at most a millisecond (or one longer step) in each event-loop iteration."""
    started = perf_counter()
    for _ in steps:
        worked = perf_counter() - started
        if worked >= STRETCH_SECONDS:
            await pause(worked)
            started = perf_counter()


async def pause(worked_seconds: float) -> None:
    """Let the event loop run other tasks after work that created long-lived objects."""
    await asyncio.sleep(0)
    if SWEEPS.is_due(worked_seconds):
        SWEEPS.sweep()
        await asyncio.sleep(0)
