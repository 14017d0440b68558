"""Polls of one feed of one endpoint."""

from typing import Any

import structlog

from epp.collectors.polling.reachability import Reachability
from epp.datastore import Datastore
from epp.framework.clock import Clock
from epp.framework.datalayer import Extractor, Feed, NotAskedError, PageError, UnreachableError
from epp.framework.endpoint import Endpoint
from epp.framework.snapshot import Column
from epp.supervisor import TaskObserver

_LONGEST_BACKOFF_SECONDS = 1.0
_PAGE = "page"
_STALE_SECONDS, _STALE_POLLS = 2.0, 3
"""Age of numbers, and polls in vain, after which an endpoint's load is unknown."""

_log = structlog.get_logger()


class CollectorObserver(TaskObserver):
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def poll_error(self, source_type: str) -> None:
        """Record a page that could not be fetched."""

    def extract_error(self, source_type: str, extractor_type: str) -> None:
        """Record a failure of an extractor or a tagger."""


class Poll:
    """Fetches pages and reports their data; logs each kind of problem once until it is resolved."""

    def __init__(
        self,
        store: Datastore,
        feed: Feed,
        reachability: Reachability,
        *,
        clock: Clock,
        interval_seconds: float,
        observer: CollectorObserver,
    ) -> None:
        self._store = store
        self._feed = feed
        self._reachability = reachability
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._observer = observer
        self._problems: set[str] = set()
        self._backoff_seconds = interval_seconds
        self._stale_seconds = max(_STALE_SECONDS, _STALE_POLLS * interval_seconds)
        self._reported_at: dict[Extractor[Any], float] = {}

    async def collect_once(self, endpoint: Endpoint) -> float:
        """Fetch and report once; return the seconds until the next poll.

        A failed page changes no data; numbers that could not be read for a while become unknown.
        """
        page = await self._fetch(endpoint)
        if page is not None:
            self._extract(page, endpoint)
        self._forget_stale(endpoint)
        return self._backoff_seconds

    async def _fetch(self, endpoint: Endpoint) -> bytes | None:
        source = self._feed.source
        try:
            page = await source.fetch(endpoint)
        except UnreachableError as error:
            self._fetch_failed(endpoint, error)
            self._missed(endpoint, refused=error.refused)
            return None
        except PageError as error:
            self._fetch_failed(endpoint, error)
            self._answered(endpoint)
            return None
        except NotAskedError as error:
            self._fetch_failed(endpoint, error)
            self._back_off()
            return None
        except Exception as error:  # noqa: BLE001  a plugin may raise anything; other feeds continue
            self._fetch_failed(endpoint, error)
            return None
        self._answered(endpoint)
        self._recovered(_PAGE, endpoint)
        return page

    def _extract(self, page: bytes, endpoint: Endpoint) -> None:
        for extractor in self._feed.extractors:
            try:
                self._store.report(endpoint, extractor.extract(page, endpoint))
            except Exception as error:  # noqa: BLE001  a plugin may raise anything; other extractors continue
                self._observer.extract_error(self._feed.source.plugin_type, extractor.plugin_type)
                self._log_problem(extractor.name, endpoint, error)
            else:
                self._reported_at[extractor] = self._clock.now()
                self._recovered(extractor.name, endpoint)

    def _forget_stale(self, endpoint: Endpoint) -> None:
        limit = self._clock.now() - self._stale_seconds
        stale = [extractor for extractor, at in self._reported_at.items() if at <= limit]
        for extractor in stale:
            del self._reported_at[extractor]
            numbers = (datum for datum in extractor.writes if isinstance(datum, Column) and not datum.lasting)
            self._store.forget(numbers, endpoint)

    def _answered(self, endpoint: Endpoint) -> None:
        self._backoff_seconds = self._interval_seconds
        if self._feed.asks(endpoint):
            self._reachability.answered()

    def _missed(self, endpoint: Endpoint, *, refused: bool) -> None:
        if self._feed.asks(endpoint):
            self._reachability.missed(refused=refused)
            backs_off = self._reachability.lost
        else:
            backs_off = refused
        if backs_off:
            self._back_off()

    def _back_off(self) -> None:
        longest = max(_LONGEST_BACKOFF_SECONDS, self._interval_seconds)
        self._backoff_seconds = min(2 * self._backoff_seconds, longest)

    def _fetch_failed(self, endpoint: Endpoint, error: Exception) -> None:
        self._observer.poll_error(self._feed.source.plugin_type)
        self._log_problem(_PAGE, endpoint, error)

    def _log_problem(self, kind: str, endpoint: Endpoint, error: Exception) -> None:
        if kind in self._problems:
            return
        self._problems.add(kind)
        expected = isinstance(error, NotAskedError | PageError | UnreachableError)
        _log.warning(
            "endpoint not read",
            endpoint=endpoint.id,
            source=self._feed.source.name,
            extractor=None if kind == _PAGE else kind,
            reason=str(error) if expected else repr(error),
            exc_info=None if expected else error,
        )

    def _recovered(self, kind: str, endpoint: Endpoint) -> None:
        if kind in self._problems:
            self._problems.discard(kind)
            _log.info("endpoint read again", endpoint=endpoint.id, source=self._feed.source.name)
