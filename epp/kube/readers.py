# SPDX-License-Identifier: Apache-2.0
"""The plugins that read objects of a cluster, connected to watches of the kinds that they read."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from epp.framework.cluster import ObjectKind, ObjectReader, Reading
from epp.kube.cluster import Cluster
from epp.kube.object_set import Decode
from epp.kube.reading import SETTLING_SECONDS, ObjectStream, ReadingTask, Retag
from epp.kube.resources import Resource, resource_of
from epp.runtime.supervisor import Supervisor


class SharedObjects(NamedTuple):
    """Objects that are kept up to date for something else; plugins that decode them alike read these."""

    resource: Resource
    decode: Decode[Any]
    stream: ObjectStream


class ClusterReaders:
    """One task for each plugin that reads objects, and the watches that they need, each of them optional."""

    def __init__(
        self, cluster: Cluster, namespace: str, *, supervisor: Supervisor, shared: Iterable[SharedObjects] = ()
    ) -> None:
        """Prepare; `namespace` is that of the pool."""
        self._cluster = cluster
        self._namespace = namespace
        self._supervisor = supervisor
        self._shared = tuple(shared)
        self._running: dict[ObjectReader[Any], tuple[ReadingTask, asyncio.Task[None]]] = {}

    async def connect(self, readings: Iterable[Reading], retag: Retag) -> None:
        """Read for these plugins, besides those that are connected; return once each has its first objects.

        Does not wait for long: all kinds are optional.
        """
        new: list[ReadingTask] = []
        for reading in readings:
            if (known := self._running.get(reading.reader)) is not None:
                known[0].read((*known[0].kinds, *reading.kinds))
                continue
            if not reading.kinds:
                continue
            work = ReadingTask(reading.reader, partial(self._open, reading.reader), retag)
            work.read(reading.kinds)
            task = self._supervisor.start("reader", work.run, name=f"reader {reading.reader.name}")
            self._running[reading.reader] = work, task
            new.append(work)
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * SETTLING_SECONDS):
                for work in new:
                    await work.told()

    def keep(self, readings: Iterable[Reading]) -> None:
        """Read what these say, and nothing else."""
        kinds = {reading.reader: reading.kinds for reading in readings}
        for reader, (work, task) in tuple(self._running.items()):
            if reader in kinds:
                work.read(kinds[reader])
            else:
                del self._running[reader]
                task.cancel()
                work.read(())

    def _open(self, reader: ObjectReader[Any], kind: ObjectKind) -> tuple[ObjectStream, Callable[[], None]]:
        resource = resource_of(kind)
        for shared in self._shared:
            if (shared.resource, shared.decode) == (resource, reader.decode):
                return shared.stream, lambda: None
        watched = self._cluster.watch(
            resource,
            reader.decode,
            namespace="" if resource.everywhere or not resource.namespaced else self._namespace,
            fallback=self._namespace if resource.everywhere and not kind.everywhere else "",
            optional=True,
        )
        return watched, partial(self._cluster.release, watched)
