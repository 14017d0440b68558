# SPDX-License-Identifier: Apache-2.0
"""Tags of endpoints in the datastore, kept up to date with the pool and the taggers."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, TypeAlias

import structlog

from epp.framework.datalayer import AffectedEndpoints, Report, Tagger
from epp.framework.endpoint import Endpoint
from epp.framework.messages import described
from epp.plugins.request_control import EndpointNotificationSource
from epp.pool.collectors.polling.poll import CollectorObserver
from epp.routing.datastore import Change, Datastore
from epp.runtime.supervisor import SWEEPS

_SHARE = 0.2
"""Largest share of the event loop's time for tagging again: 5,000 endpoints at 0.3 ms each take 8 seconds."""
_MOST_AT_ONCE = 64
"""Changed endpoints that are tagged immediately; if there are more, all are tagged in the background."""

_Tagged: TypeAlias = tuple[Endpoint, Sequence[Report]]
"""An endpoint and the reports of its taggers."""
_Queue: TypeAlias = dict[str, dict[Tagger[Any], None]]
"""Taggers by endpoint id, in order of the requests."""
_log = structlog.get_logger()


class Tagging:
    """Tags all endpoints of the pool, including new ones and those whose labels change.

    Computing the tags of many endpoints is divided into steps; writing them is fast and done at once, so that readers
    see the old tags or the new ones.
    """

    def __init__(
        self, store: Datastore, taggers: Sequence[Tagger[Any]], *, observer: CollectorObserver | None = None
    ) -> None:
        self._store = store
        self._observer = observer or CollectorObserver()
        self._taggers = tuple(taggers)
        self._failed: set[Tagger[Any]] = set()
        self._queue: _Queue = {}
        self._is_due = asyncio.Event()
        """Set while an endpoint is queued."""
        self._computing = asyncio.Lock()
        """Held from the first computed tag until all are written, so that no older tag replaces a newer one."""
        self._joining: Callable[[], Collection[Endpoint]] = tuple
        """Returns the pool that is being prepared; no endpoints if there is none."""
        self._is_tagged = False
        """Whether the endpoints that are joining have their tags already."""
        store.subscribe(self._pool_changed)
        self._tag(store.endpoints)

    async def change_over(
        self, taggers: Sequence[Tagger[Any]], pool: Callable[[], Collection[Endpoint]] | None = None
    ) -> None:
        """Replace the taggers and, with `pool`, all endpoints; readers see the old tags until all are new.

        `pool` returns the next endpoints, which may change until then. Data that only removed taggers wrote becomes
        unknown. The change takes effect in the event-loop iteration in which this returns.
        """
        if pool is None and tuple(taggers) == self._taggers:
            return
        async with self._computing:
            members = pool or (lambda: self._store.endpoints)
            tagged: dict[str, _Tagged] = {}
            self._joining = members
            try:
                while missing := [one for one in members() if tagged.get(one.id, (None,))[0] is not one]:
                    await run_in_steps(self._tag_each(((one, taggers) for one in missing), tagged))
            finally:
                self._joining = tuple
            if pool is not None:
                self._is_tagged = True
                try:
                    self._store.replace(pool())
                finally:
                    self._is_tagged = False
            before, self._taggers = self._taggers, tuple(taggers)
            self._failed.intersection_update(self._taggers)
            kept = {datum for tagger in self._taggers for datum in tagger.writes}
            self._store.forget({datum for tagger in before for datum in tagger.writes} - kept)
            self._write(tagged.values())

    def retag(self, tagger: Tagger[Any], affected: AffectedEndpoints) -> None:
        """Tag endpoints again in the background: see `follow`."""
        self._enqueue([tagger], filter(affected, (*self._store.endpoints, *self._joining())))

    async def follow(self) -> None:
        """Tag the queued endpoints in rounds until cancelled, in at most a fifth of the event loop's time.

        The tags of a round are written together. An endpoint that is added or changed during a round keeps its newer
        tags, and one that is queued during a round is tagged in the next one.
        """
        while True:
            await self._is_due.wait()
            async with self._computing:
                queue, self._queue = self._queue, {}
                self._is_due.clear()
                tagged: dict[str, _Tagged] = {}
                await run_in_steps(self._tag_each(self._in_use(queue), tagged), share=_SHARE)
                self._write(each for name, each in tagged.items() if self._store.endpoint(name) is each[0])
            await asyncio.sleep(STRETCH_SECONDS * (1 / _SHARE - 1))  # a short round has had no pause

    def _enqueue(self, taggers: Iterable[Tagger[Any]], endpoints: Iterable[Endpoint]) -> None:
        for endpoint in endpoints:
            self._queue.setdefault(endpoint.id, {}).update(dict.fromkeys(taggers))
            self._is_due.set()

    def _in_use(self, queue: Mapping[str, Iterable[Tagger[Any]]]) -> Iterator[tuple[Endpoint, list[Tagger[Any]]]]:
        """Yield the queued endpoints that are in the pool, and those of their taggers that are in use."""
        for name, taggers in queue.items():
            endpoint = self._store.endpoint(name)
            if endpoint is not None:
                yield endpoint, [tagger for tagger in taggers if tagger in self._taggers]

    def _tag_each(
        self, wanted: Iterable[tuple[Endpoint, Iterable[Tagger[Any]]]], tagged: dict[str, _Tagged]
    ) -> Iterator[None]:
        """Add the reports on one endpoint to `tagged`, by id, in each step."""
        for endpoint, taggers in wanted:
            tagged[endpoint.id] = endpoint, self._reports(endpoint, taggers)
            yield

    def _write(self, tagged: Iterable[_Tagged]) -> None:
        for endpoint, reports in tagged:
            for report in reports:
                self._store.tag(endpoint, report)

    def _pool_changed(self, change: Change) -> None:
        for _, endpoint in change.removed:
            for tagger in self._taggers:
                tagger.untag(endpoint)
        if self._is_tagged:
            return
        updated = [endpoint for _, endpoint in change.updated]
        if len(updated) > _MOST_AT_ONCE:
            self._enqueue(self._taggers, updated)
            updated = []
        self._tag((*(endpoint for _, endpoint in change.added), *updated))

    def _tag(self, endpoints: Iterable[Endpoint]) -> None:
        self._write((endpoint, self._reports(endpoint, self._taggers)) for endpoint in endpoints)

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


STRETCH_SECONDS = 0.001
"""Time after which the event loop runs other tasks."""


async def run_in_steps(steps: Iterable[None], *, share: float = 1.0) -> None:
    """Run all steps, at most a millisecond (or one longer step) in each event-loop iteration.

    With a `share` below 1, pauses keep them to that share of the event loop's time.
    """
    started = perf_counter()
    for _ in steps:
        worked = perf_counter() - started
        if worked >= STRETCH_SECONDS:
            await pause(worked)
            if share < 1:
                await asyncio.sleep(worked * (1 / share - 1))
            started = perf_counter()


async def pause(worked_seconds: float) -> None:
    """Let the event loop run other tasks after work that created long-lived objects."""
    await asyncio.sleep(0)
    if SWEEPS.is_due(worked_seconds):
        SWEEPS.sweep()
        await asyncio.sleep(0)
