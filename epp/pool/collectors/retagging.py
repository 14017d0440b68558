# SPDX-License-Identifier: Apache-2.0
"""Endpoints that wait to be tagged again, a few at a time."""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias

from epp.framework.datalayer import AffectedEndpoints, EveryEndpoint, Report, Tagger
from epp.framework.endpoint import Endpoint
from epp.pool.collectors.turns import in_turns
from epp.routing.datastore import Datastore

_SHARE = 0.2
"""Share of the event loop's time: 5,000 endpoints, at 0.3 ms each, take 8 seconds."""

_Taggers: TypeAlias = dict[Tagger[Any], None]
_Reports: TypeAlias = Callable[[Endpoint, Iterable[Tagger[Any]]], Iterable[Report]]


@dataclass(slots=True)
class _Round:
    """One round through all endpoints."""

    taggers: _Taggers
    left: list[Endpoint]
    """Endpoints to be tagged, the next one last."""
    done: dict[str, tuple[Endpoint, Iterable[Report]]] = field(default_factory=dict)
    """Reports to be written, by id of the endpoint, once all are there."""


class Retagging:
    """Some endpoints by name, and rounds through all; neither waits for the other, and no round is begun again."""

    def __init__(self, store: Datastore, reports: _Reports, *, batch: int) -> None:
        """Prepare; `reports` returns what taggers say beyond what is known; `batch` endpoints are tagged at once."""
        self._store = store
        self._reports = reports
        self._batch = batch
        self._used: frozenset[Tagger[Any]] = frozenset()
        self._some: dict[str, _Taggers] = {}
        """Ids of endpoints, and the taggers for each, in the order in which they were wanted."""
        self._next: _Taggers = {}
        """Taggers of the next round."""
        self._round: _Round | None = None
        self._wanted = asyncio.Event()

    def want(self, tagger: Tagger[Any], concerns: AffectedEndpoints) -> None:
        """Have the endpoints concerned tagged again; all of them in a round."""
        if isinstance(concerns, EveryEndpoint):
            if self._store.endpoints:  # those that join are tagged as they do
                self._next[tagger] = None
                self._wanted.set()
            concerns = concerns.first
        self.want_these(tagger, filter(concerns, self._store.endpoints))

    def want_these(self, tagger: Tagger[Any], endpoints: Iterable[Endpoint]) -> None:
        """Have these endpoints tagged again."""
        for endpoint in endpoints:
            self._some.setdefault(endpoint.id, {})[tagger] = None
        if self._some:
            self._wanted.set()

    def use(self, taggers: Iterable[Tagger[Any]]) -> None:
        """Use these taggers; a round starts again with those of its taggers that are among them."""
        if self._round is not None:
            self._next.update(self._round.taggers)
            self._round = None
        self._used = frozenset(taggers)

    async def wanted(self) -> None:
        """Wait until there is something to do."""
        await self._wanted.wait()

    async def step(self) -> None:
        """Do some of it, then pause for as long as the share requires."""
        started = time.perf_counter()
        self._tag_some()
        await self._go_round()
        if not (self._some or self._next or self._round):
            self._wanted.clear()
        await asyncio.sleep((time.perf_counter() - started) * (1 / _SHARE - 1))

    def _tag_some(self) -> None:
        this = self._round
        for name in tuple(islice(self._some, self._batch)):
            taggers = self._in_use(self._some.pop(name))
            endpoint = self._store.endpoint(name)
            if endpoint is None or not taggers:
                continue
            self._write(endpoint, self._reports(endpoint, taggers))
            if this is not None and name in this.done and not taggers.keys().isdisjoint(this.taggers):
                this.done[name] = endpoint, self._reports(endpoint, this.taggers)

    async def _go_round(self) -> None:
        if self._round is None and self._next:
            taggers, self._next = self._in_use(self._next), {}
            self._round = _Round(taggers, list(reversed(self._store.endpoints))) if taggers else None
        this = self._round
        if this is None:
            return
        for _ in range(min(self._batch, len(this.left))):
            endpoint = this.left.pop()
            this.done[endpoint.id] = endpoint, self._reports(endpoint, this.taggers)
        if not this.left:
            staging = self._store.stage(this.done)
            await in_turns(staging.steps())
            if self._round is this:  # no other taggers meanwhile
                self._round = None
                self._store.put_tags(staging)

    def _write(self, endpoint: Endpoint, reports: Iterable[Report]) -> None:
        for report in reports:
            self._store.tag(endpoint, report)

    def _in_use(self, taggers: _Taggers) -> _Taggers:
        return {tagger: None for tagger in taggers if tagger in self._used}
