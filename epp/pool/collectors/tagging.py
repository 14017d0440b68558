# SPDX-License-Identifier: Apache-2.0
"""Tags of endpoints in the datastore, kept up to date with the pool and the taggers."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import structlog

from epp.framework.datalayer import AffectedEndpoints, Report, Tagger
from epp.framework.endpoint import Endpoint
from epp.framework.messages import described
from epp.framework.records import Derivation
from epp.plugins.taggers import EndpointNotificationSource
from epp.pool.collectors.polling.poll import CollectorObserver
from epp.pool.collectors.retagging import Retagging
from epp.pool.collectors.turns import in_turns
from epp.routing.datastore import Change, Datastore, Staging

_BATCH = 4
"""Endpoints that are tagged before the event loop runs other tasks; one can take half a millisecond."""
_MOST_AT_ONCE = 64
"""Changed endpoints that are tagged with the change of the pool itself; of more, all are tagged in the background."""

_TRIES = 3
"""Attempts at a large change in steps while the pool keeps changing."""

Derivations: TypeAlias = Mapping[str, Iterable[Derivation]]
NO_DERIVATIONS: Derivations = MappingProxyType({})
_Tagged: TypeAlias = dict[str, tuple[Endpoint, Sequence[Report]]]
"""Endpoints and the reports of taggers of each, by id."""

_log = structlog.get_logger()


class Tagging:
    """Tags all endpoints of the pool, including new ones and those whose labels change."""

    def __init__(
        self, store: Datastore, taggers: Sequence[Tagger[Any]], *, observer: CollectorObserver | None = None
    ) -> None:
        self._store = store
        self._observer = observer or CollectorObserver()
        self._taggers: tuple[Tagger[Any], ...] = ()
        self._failed: set[Tagger[Any]] = set()
        self._retagging = Retagging(store, self._news, batch=_BATCH)
        self._is_tagged = False
        """Whether tags of endpoints that join are there."""
        self._steady = asyncio.Event()
        """Not set while the taggers are being changed over."""
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

        `derivations` are what requests are going to derive of endpoints and tags, by attribute. The turn in which this
        returns is that of the change.
        """
        if tuple(taggers) == self._taggers:
            await in_turns(self._store.snapshot().derive_ahead(derivations))
            return
        self._steady.clear()
        try:
            tagged: _Tagged = {}
            for _ in range(_TRIES):
                await _in_turns(lambda: self._store.endpoints, lambda one: self._news(one, taggers), tagged)
                staging = self._store.stage(tagged, derivations=derivations)
                await in_turns(staging.steps())
                late = [one for one in self._store.endpoints if tagged.get(one.id, (None,))[0] is not one]
                if len(late) <= _BATCH:
                    break
            self._apply(taggers)
            self._store.put_tags(staging)
            self._tag(late)
        finally:
            self._steady.set()

    async def tags_of(self, endpoints: Callable[[], Collection[Endpoint]], taggers: Sequence[Tagger[Any]]) -> _Tagged:
        """Return the tags of endpoints that are not in the pool yet, by id, without blocking the event loop."""
        return await _in_turns(endpoints, lambda one: self._reports(one, taggers), {})

    async def replace_with_pool(
        self,
        taggers: Sequence[Tagger[Any]],
        wanted: Collection[Endpoint],
        tagged: _Tagged,
        derivations: Derivations = NO_DERIVATIONS,
    ) -> None:
        """Replace the taggers and the pool, whose tags are there, without blocking the event loop.

        Readers see the old ones until the turn in which this returns; see `change_over`.
        """
        self._steady.clear()
        try:
            for attempt in range(_TRIES + 1):
                staging = self._store.stage(tagged, wanted, derivations)
                if attempt < _TRIES:
                    await in_turns(staging.steps())
                else:  # its source changes the old pool all the time
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

    def retag(self, tagger: Tagger[Any], concerns: AffectedEndpoints) -> None:
        """Have a tagger tag endpoints again in the background: see `follow`."""
        self._retagging.want(tagger, concerns)

    async def follow(self) -> None:
        """Tag again what `retag` asks for, until cancelled, in a fifth of the time of the event loop at most.

        Each of some endpoints is written as soon as it is tagged. For all of them, readers see the old tags until all
        are new; then one that was added or changed meanwhile keeps the tags of that moment.
        """
        while True:
            await self._retagging.wanted()
            await self._steady.wait()
            await self._retagging.step()

    def _apply(self, taggers: Sequence[Tagger[Any]]) -> None:
        before, self._taggers = self._taggers, tuple(taggers)
        self._failed.intersection_update(self._taggers)
        self._retagging.use(self._taggers)
        kept = {datum for tagger in self._taggers for datum in tagger.writes}
        self._store.forget({datum for tagger in before for datum in tagger.writes} - kept)

    def _pool_changed(self, change: Change) -> None:
        if self._is_tagged:
            return
        updated = [endpoint for _, endpoint in change.updated]
        if len(updated) > _MOST_AT_ONCE:
            for tagger in self._taggers:
                self._retagging.want_these(tagger, updated)
            updated = []
        self._tag((*(endpoint for _, endpoint in change.added), *updated))

    def _tag(self, endpoints: Iterable[Endpoint]) -> None:
        for endpoint in endpoints:
            for report in self._reports(endpoint, self._taggers):
                self._store.tag(endpoint, report)

    def _news(self, endpoint: Endpoint, taggers: Iterable[Tagger[Any]]) -> list[Report]:
        """Return what the reports of the taggers say beyond what is known."""
        return [self._store.news(endpoint, report) for report in self._reports(endpoint, taggers)]

    def _reports(self, endpoint: Endpoint, taggers: Iterable[Tagger[Any]]) -> list[Report]:
        """Return the report of each tagger that does not fail."""
        reports: list[Report] = []
        for tagger in taggers:
            try:
                reports.append(tagger.tag(endpoint))
            except Exception as error:  # noqa: BLE001  a plugin may raise anything; other taggers continue
                self._observer.extract_error(EndpointNotificationSource.plugin_type, tagger.plugin_type)
                self._log_failure(tagger, endpoint, error)
        return reports

    def _log_failure(self, tagger: Tagger[Any], endpoint: Endpoint, error: Exception) -> None:
        """Log the first failure of each tagger: it mostly fails for all endpoints alike."""
        if tagger not in self._failed:
            self._failed.add(tagger)
            reason = described(error, type(tagger))
            _log.warning("endpoint not tagged", endpoint=endpoint.id, tagger=tagger.name, reason=reason, exc_info=error)


async def _in_turns(
    endpoints: Callable[[], Collection[Endpoint]], tag: Callable[[Endpoint], Sequence[Report]], tagged: _Tagged
) -> _Tagged:
    """Tag endpoints besides those tagged, a few in each turn of the event loop, until all that there are have been."""

    def tag_each(missing: Iterable[Endpoint]) -> Iterator[None]:
        for endpoint in missing:
            tagged[endpoint.id] = endpoint, tag(endpoint)
            yield

    while missing := [one for one in endpoints() if tagged.get(one.id, (None,))[0] is not one]:
        await in_turns(tag_each(missing))
    return tagged
