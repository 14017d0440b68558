"""Keeps what taggers say of endpoints in the datastore, in step with the pool."""

from collections.abc import Iterable, Sequence
from typing import Any

import structlog

from epp.collectors.observer import CollectorObserver
from epp.datastore import Change, Datastore
from epp.framework.datalayer import Report, Tagger
from epp.framework.endpoint import Endpoint
from epp.framework.snapshot import Attribute, Column
from epp.plugins.taggers.notifications import EndpointNotificationSource

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
        store.subscribe(self._pool_changed)
        self.replace(taggers)

    def replace(self, taggers: Sequence[Tagger[Any]]) -> None:
        """Take these taggers and tag everyone; what only those before said is unknown again."""
        before, self._taggers = self._taggers, tuple(taggers)
        self._troubled.intersection_update(self._taggers)
        kept = {datum for tagger in self._taggers for datum in tagger.writes}
        forgotten = {datum for tagger in before for datum in tagger.writes if datum not in kept}
        if forgotten:
            blank = Report(
                {datum: datum.unknown for datum in forgotten if isinstance(datum, Column)},
                {datum: datum.unknown for datum in forgotten if isinstance(datum, Attribute)},
            )
            for endpoint in self._store.endpoints:
                self._store.tag(endpoint, blank)
        self.refresh()

    def refresh(self) -> None:
        """Tag everyone again: a tagger has come to know something else."""
        self._tag(self._store.endpoints)

    def _pool_changed(self, change: Change) -> None:
        self._tag(endpoint for _, endpoint in (*change.added, *change.updated))

    def _tag(self, endpoints: Iterable[Endpoint]) -> None:
        for endpoint in endpoints:
            for tagger in self._taggers:
                try:
                    self._store.tag(endpoint, tagger.tag(endpoint))
                except Exception as error:  # noqa: BLE001 - a tagger is anybody's code, and the others go on
                    self._observer.extract_error(EndpointNotificationSource.plugin_type, tagger.plugin_type)
                    self._trouble(tagger, endpoint, error)

    def _trouble(self, tagger: Tagger[Any], endpoint: Endpoint, error: Exception) -> None:
        """Say so once for each tagger: what it cannot do for one endpoint it can rarely do for the next."""
        if tagger not in self._troubled:
            self._troubled.add(tagger)
            _log.warning("endpoint not tagged", endpoint=endpoint.id, tagger=tagger.name, exc_info=error)
