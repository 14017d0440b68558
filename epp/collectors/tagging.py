"""Keeps what taggers say of endpoints in the datastore, in step with the pool."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import structlog

from epp.collectors.observer import CollectorObserver
from epp.datastore import Change, Datastore
from epp.framework.datalayer import Report, Tagger
from epp.framework.endpoint import Endpoint
from epp.plugins.taggers import EndpointNotificationSource

_AT_A_TIME = 4
"""Endpoints that are tagged before others have their turn: one may take half a millisecond."""

_log = structlog.get_logger()


class Tagging:
    """Tags the endpoints that are there, those that join, and those whose labels change."""

    def __init__(
        self, store: Datastore, taggers: Sequence[Tagger[Any]], *, observer: CollectorObserver | None = None
    ) -> None:
        self._store = store
        self._observer = observer or CollectorObserver()
        self._taggers: tuple[Tagger[Any], ...] = ()
        self._troubled: set[Tagger[Any]] = set()
        self._refreshes = 0
        store.subscribe(self._pool_changed)
        self.replace(taggers)

    def replace(self, taggers: Sequence[Tagger[Any]]) -> None:
        """Take these taggers and tag everyone at once; what only those before said is unknown again."""
        if tuple(taggers) != self._taggers:
            self._take(taggers)
            self._tag(self._store.endpoints)

    async def change_over(self, taggers: Sequence[Tagger[Any]]) -> None:
        """Do the same as `refresh` does it: others have their turn, and see the tags of before until all are new."""
        if tuple(taggers) == self._taggers:
            return
        found = await self._gather(tuple(taggers))
        self._take(taggers)
        tagged = {endpoint.id: (endpoint, reports) for endpoint, reports in found or ()}
        for endpoint in self._store.endpoints:
            before, reports = tagged.get(endpoint.id, (None, []))
            self._write(endpoint, reports if before is endpoint else self._reports(endpoint, self._taggers))

    async def refresh(self) -> None:
        """Tag everyone again, since a tagger has come to know something else: a few at a time, then all at once.

        Others have their turn in between, and see what was known before until all is known anew. Endpoints that join
        or change meanwhile are tagged by what is known then; a refresh that begins meanwhile takes this one's place.
        """
        found = await self._gather(self._taggers)
        now = {endpoint.id: endpoint for endpoint in self._store.endpoints}
        for endpoint, reports in found or ():
            if now.get(endpoint.id) is endpoint:
                self._write(endpoint, reports)

    async def _gather(self, taggers: tuple[Tagger[Any], ...]) -> list[tuple[Endpoint, list[Report]]] | None:
        """Return what the taggers say of everyone, found a few at a time; None where another run took its place."""
        self._refreshes += 1
        this = self._refreshes
        found: list[tuple[Endpoint, list[Report]]] = []
        for endpoint in self._store.endpoints:
            found.append((endpoint, self._reports(endpoint, taggers)))
            if len(found) % _AT_A_TIME == 0:
                await asyncio.sleep(0)
                if this != self._refreshes:
                    return None
        return found

    def _take(self, taggers: Sequence[Tagger[Any]]) -> None:
        self._refreshes += 1  # what is being found by those before does not count any more
        before, self._taggers = self._taggers, tuple(taggers)
        self._troubled.intersection_update(self._taggers)
        kept = {datum for tagger in self._taggers for datum in tagger.writes}
        self._store.forget({datum for tagger in before for datum in tagger.writes} - kept)

    def _pool_changed(self, change: Change) -> None:
        self._tag(endpoint for _, endpoint in (*change.added, *change.updated))

    def _tag(self, endpoints: Iterable[Endpoint]) -> None:
        for endpoint in endpoints:
            self._write(endpoint, self._reports(endpoint, self._taggers))

    def _write(self, endpoint: Endpoint, reports: Iterable[Report]) -> None:
        for report in reports:
            self._store.tag(endpoint, report)

    def _reports(self, endpoint: Endpoint, taggers: Iterable[Tagger[Any]]) -> list[Report]:
        """Return what each tagger says, but for those that fail."""
        reports: list[Report] = []
        for tagger in taggers:
            try:
                reports.append(tagger.tag(endpoint))
            except Exception as error:  # noqa: BLE001 - a tagger is anybody's code, and the others go on
                self._observer.extract_error(EndpointNotificationSource.plugin_type, tagger.plugin_type)
                self._trouble(tagger, endpoint, error)
        return reports

    def _trouble(self, tagger: Tagger[Any], endpoint: Endpoint, error: Exception) -> None:
        """Say so once for each tagger: what it cannot do for one endpoint it can rarely do for the next."""
        if tagger not in self._troubled:
            self._troubled.add(tagger)
            _log.warning("endpoint not tagged", endpoint=endpoint.id, tagger=tagger.name, exc_info=error)
