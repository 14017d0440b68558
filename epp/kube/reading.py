# SPDX-License-Identifier: Apache-2.0
"""One plugin that reads objects: told of changes that are gathered, one call after the other."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeAlias

from epp.framework.cluster import ObjectKind, ObjectReader, ObjectsOfKind
from epp.framework.datalayer import AffectedEndpoints
from epp.framework.plugin_status import InputProblem
from epp.kube.object_set import Delta

SETTLING_SECONDS = 5.0
"""Longest wait for the first objects of all kinds; those of a kind that is late are a change."""
_GATHERING_SECONDS = 0.1
_PAUSE = 4.0
"""Pause after a call, in times of its duration: a plugin takes a fifth of the time at most ..."""
_LONGEST_PAUSE_SECONDS = 0.5
"""... as long as this pause is enough for that: what changes should not wait for longer."""

Retag: TypeAlias = Callable[[ObjectReader[Any], AffectedEndpoints], None]
"""Has the endpoints concerned tagged again, if the plugin is a tagger."""


class ObjectStream(Protocol):
    """Objects of a kind that are kept up to date, such as `Watched`."""

    @property
    def objects(self) -> Mapping[str, Any]:
        """By `namespace/name`, or by name for kinds of cluster scope."""

    @property
    def problems(self) -> tuple[InputProblem, ...]:
        """Objects whose newest version is not in effect."""

    def subscribe(self, listener: Callable[[Delta[Any]], None], /) -> Callable[[], None]:
        """Call `listener` after each change; return a function that ends that."""

    async def settled(self) -> None:
        """Wait until it is known which objects there are, or that they cannot be read."""


class _Open(NamedTuple):
    stream: ObjectStream
    close: Callable[[], None]
    unsubscribe: Callable[[], None]


class ReadingTask:
    """Keeps the streams of one plugin, and tells it of their objects."""

    def __init__(
        self,
        reader: ObjectReader[Any],
        open_stream: Callable[[ObjectKind], tuple[ObjectStream, Callable[[], None]]],
        retag: Retag,
    ) -> None:
        """Prepare; `open_stream` returns the objects of a kind, and a function that gives them back."""
        self._reader = reader
        self._open_stream = open_stream
        self._retag = retag
        self._streams: dict[ObjectKind, _Open] = {}
        self._changed: dict[ObjectKind, set[str]] = {}
        """Kinds of which the plugin is to be told, and the ids of what changed."""
        self._wake = asyncio.Event()
        self._told = asyncio.Event()

    @property
    def kinds(self) -> tuple[ObjectKind, ...]:
        """Kinds that are read."""
        return tuple(self._streams)

    def read(self, kinds: Iterable[ObjectKind]) -> None:
        """Read these kinds and no others: the plugin is told that there are no objects of the others any more."""
        wanted = dict.fromkeys(kinds)
        for kind in self._streams.keys() - wanted.keys():
            opened = self._streams.pop(kind)
            self._note(kind, opened.stream.objects)
            opened.unsubscribe()
            opened.close()
        for kind in wanted:
            if kind not in self._streams:
                self._open(kind)

    async def told(self) -> None:
        """Wait until the plugin has taken the first objects."""
        await self._told.wait()

    async def run(self) -> None:
        """Tell the plugin of all objects, then of changes, until cancelled; raises what it raises."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLING_SECONDS):
                for opened in tuple(self._streams.values()):
                    await opened.stream.settled()
        while True:
            await self._wake.wait()
            started = time.perf_counter()
            await self._tell()
            elapsed = time.perf_counter() - started
            await asyncio.sleep(max(_GATHERING_SECONDS, min(elapsed * _PAUSE, _LONGEST_PAUSE_SECONDS)))

    def _open(self, kind: ObjectKind) -> None:
        stream, close = self._open_stream(kind)

        def noted(delta: Delta[Any]) -> None:
            self._note(kind, (*delta.changed, *delta.removed))

        self._streams[kind] = _Open(stream, close, stream.subscribe(noted))
        self._note(kind, stream.objects)

    def _note(self, kind: ObjectKind, ids: Iterable[str]) -> None:
        self._changed.setdefault(kind, set()).update(ids)
        self._wake.set()

    async def _tell(self) -> None:
        changed, self._changed = self._changed, {}
        self._wake.clear()
        try:
            concerns = await self._reader.objects_changed([self._objects(*each) for each in changed.items()])
            self._retag(self._reader, concerns)
        except BaseException:
            for kind, ids in changed.items():  # the plugin is told again when this task is restarted
                self._note(kind, ids)
            raise
        self._told.set()

    def _objects(self, kind: ObjectKind, changed: Iterable[str]) -> ObjectsOfKind:
        opened = self._streams.get(kind)
        if opened is None:
            return ObjectsOfKind(kind, {}, frozenset(changed))
        return ObjectsOfKind(kind, dict(opened.stream.objects), frozenset(changed), opened.stream.problems)
