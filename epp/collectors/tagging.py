# SPDX-License-Identifier: Apache-2.0
"""Tags of endpoints in the datastore, kept up to date with the pool and the taggers."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import structlog

from epp.collectors.polling.poll import CollectorObserver
from epp.datastore import Change, Datastore
from epp.framework.datalayer import Report, Tagger
from epp.framework.endpoint import Endpoint
from epp.framework.faults import described
from epp.plugins.taggers import EndpointNotificationSource

_BATCH = 4
"""Endpoints that are tagged before the event loop runs other tasks; one can take half a millisecond."""

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
        self._refreshes = 0
        store.subscribe(self._pool_changed)
        self.replace(taggers)

    def replace(self, taggers: Sequence[Tagger[Any]]) -> None:
        """Replace the taggers and tag all endpoints; data that only removed taggers wrote becomes unknown."""
        if tuple(taggers) != self._taggers:
            self._apply(taggers)
            self._tag(self._store.endpoints)

    async def change_over(self, taggers: Sequence[Tagger[Any]]) -> None:
        """Replace the taggers without blocking the event loop; readers see the old tags until all are new."""
        if tuple(taggers) == self._taggers:
            return
        found = await self._gather(tuple(taggers))
        self._apply(taggers)
        tagged = {endpoint.id: (endpoint, reports) for endpoint, reports in found or ()}
        for endpoint in self._store.endpoints:
            before, reports = tagged.get(endpoint.id, (None, []))
            self._write(endpoint, reports if before is endpoint else self._reports(endpoint, self._taggers))

    async def refresh(self) -> None:
        """Tag all endpoints again after a change of a tagger, without blocking the event loop.

        Readers see the old tags until all are new. Endpoints that are added or changed meanwhile are tagged at once; a
        later refresh replaces one in progress.
        """
        found = await self._gather(self._taggers)
        now = {endpoint.id: endpoint for endpoint in self._store.endpoints}
        for endpoint, reports in found or ():
            if now.get(endpoint.id) is endpoint:
                self._write(endpoint, reports)

    async def _gather(self, taggers: tuple[Tagger[Any], ...]) -> list[tuple[Endpoint, list[Report]]] | None:
        """Return the reports on all endpoints, computed in batches; None if replaced by a later run."""
        self._refreshes += 1
        this = self._refreshes
        found: list[tuple[Endpoint, list[Report]]] = []
        for endpoint in self._store.endpoints:
            found.append((endpoint, self._reports(endpoint, taggers)))
            if len(found) % _BATCH == 0:
                await asyncio.sleep(0)
                if this != self._refreshes:
                    return None
        return found

    def _apply(self, taggers: Sequence[Tagger[Any]]) -> None:
        self._refreshes += 1  # replaces a run in progress
        before, self._taggers = self._taggers, tuple(taggers)
        self._failed.intersection_update(self._taggers)
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
