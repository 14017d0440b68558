# SPDX-License-Identifier: Apache-2.0
"""Watches for plugins that read objects of a cluster or a hub, and the tasks that report changes to the plugins."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from epp.framework.clock import Clock, SystemClock
from epp.framework.cluster_objects import HubAccess, ObjectKind, ObjectReader, ObjectsOfKind, Reading
from epp.framework.datalayer import AffectedEndpoints
from epp.framework.errors import ConfigurationError
from epp.framework.plugin_status import InputProblem
from epp.kube.access import KubeApi
from epp.kube.cluster import Cluster
from epp.kube.collection import Decode, Delta
from epp.kube.configuration import read_secret
from epp.kube.resources import SECRETS, Resource, resource_of
from epp.kube.watched import Watched, WatchState
from epp.runtime.supervisor import Supervisor

if TYPE_CHECKING:
    from lightkube.config.kubeconfig import SingleConfig

SETTLING_SECONDS = 5.0
"""Longest wait for the first objects of all kinds; later ones are reported as a change."""
_GATHERING_SECONDS = 0.1
_PAUSE = 4.0
"""Pause after a call as a multiple of its duration, so that a plugin uses at most a fifth of the time."""
_LONGEST_PAUSE_SECONDS = 0.5
"""Maximum of this pause, which delays changes."""

Retag: TypeAlias = Callable[[ObjectReader[Any], AffectedEndpoints], None]
"""Tags the affected endpoints again if the plugin is a tagger."""


class ObjectStream(Protocol):
    """Current objects of a kind, such as those of `Watched`."""

    @property
    def objects(self) -> Mapping[str, Any]:
        """Objects by `namespace/name`, or by name for kinds of cluster scope."""

    @property
    def problems(self) -> tuple[InputProblem, ...]:
        """Objects whose newest version is not in effect."""

    def subscribe(self, listener: Callable[[Delta[Any]], None], /) -> Callable[[], None]:
        """Call `listener` after each change; return a function to unsubscribe."""

    async def settled(self) -> None:
        """Wait until the objects are listed or known to be unreadable."""


class _Open(NamedTuple):
    stream: ObjectStream
    close: Callable[[], None]
    unsubscribe: Callable[[], None]


class ReadingTask:
    """The streams of one plugin, and the task that reports their objects to it."""

    def __init__(
        self,
        reader: ObjectReader[Any],
        open_stream: Callable[[ObjectKind], tuple[ObjectStream, Callable[[], None]]],
        retag: Retag,
    ) -> None:
        """`open_stream` returns the objects of a kind and a function that releases them."""
        self._reader = reader
        self._open_stream = open_stream
        self._retag = retag
        self.streams: dict[ObjectKind, _Open] = {}
        self._changed: dict[ObjectKind, set[str]] = {}
        """Changed ids by kind that are not reported yet."""
        self._wake = asyncio.Event()
        self.reported = asyncio.Event()
        """Set when the plugin has processed the first objects."""

    def read(self, kinds: Iterable[ObjectKind]) -> None:
        """Read exactly these kinds; objects of other kinds are reported as removed."""
        wanted = dict.fromkeys(kinds)
        for kind in self.streams.keys() - wanted.keys():
            opened = self.streams.pop(kind)
            self._mark_changed(kind, opened.stream.objects)
            opened.unsubscribe()
            opened.close()
        for kind in wanted:
            if kind not in self.streams:
                self._open(kind)

    def unread(self, kinds: Collection[str]) -> str:
        """Return the reason that objects of these kinds may be out of date; empty if they are current. Thread-safe."""
        for kind, opened in tuple(self.streams.items()):
            watch = opened.stream
            if not isinstance(watch, Watched) or kind.kind not in kinds or not watch.reason:
                continue
            if watch.lists or watch.state is WatchState.STALE:
                return f"{kind.place}: {watch.collection.title}: {watch.state}: {watch.reason}"
        return ""

    async def run(self, settling_seconds: float | None) -> None:
        """Report all objects, then changes, until cancelled; errors of the plugin propagate.

        The first objects are reported once those of all kinds are known, or after `settling_seconds`; None for no
        limit.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(settling_seconds):
                for opened in tuple(self.streams.values()):
                    await opened.stream.settled()
        while True:
            await self._wake.wait()
            started = time.perf_counter()
            await self._report()
            elapsed = time.perf_counter() - started
            await asyncio.sleep(max(_GATHERING_SECONDS, min(elapsed * _PAUSE, _LONGEST_PAUSE_SECONDS)))

    def _open(self, kind: ObjectKind) -> None:
        stream, close = self._open_stream(kind)

        def on_change(delta: Delta[Any]) -> None:
            self._mark_changed(kind, (*delta.changed, *delta.removed))

        self.streams[kind] = _Open(stream, close, stream.subscribe(on_change))
        self._mark_changed(kind, stream.objects)

    def _mark_changed(self, kind: ObjectKind, ids: Iterable[str]) -> None:
        self._changed.setdefault(kind, set()).update(ids)
        self._wake.set()

    async def _report(self) -> None:
        changed, self._changed = self._changed, {}
        self._wake.clear()
        try:
            affected = await self._reader.objects_changed([self._objects(*each) for each in changed.items()])
            self._retag(self._reader, affected)
        except BaseException:
            for kind, ids in changed.items():  # the restarted task reports them again
                self._mark_changed(kind, ids)
            raise
        self.reported.set()
        known = {(kind.group, kind.kind, kind.hub) for kind in self.streams}
        hubs = {hub for *_, hub in known}
        for kind in self._reader.kinds:  # these may depend on objects
            if kind.hub in hubs and (kind.group, kind.kind, kind.hub) not in known:
                self._open(kind)

    def _objects(self, kind: ObjectKind, changed: Iterable[str]) -> ObjectsOfKind:
        opened = self.streams.get(kind)
        if opened is None:
            return ObjectsOfKind(kind, {}, frozenset(changed))
        return ObjectsOfKind(kind, dict(opened.stream.objects), frozenset(changed), opened.stream.problems)


class SharedObjects(NamedTuple):
    """Objects of an existing watch, shared with plugins that use the same decoder."""

    resource: Resource
    decode: Decode[Any]
    stream: ObjectStream


class Hubs:
    """Watches of API servers other than that of the pool, which the pools of a process share."""

    def __init__(self, clock: Clock, supervisor: Supervisor, pool: Cluster | None = None) -> None:
        """`pool` is the cluster with the Secrets for hubs, if any."""
        self._clock = clock
        self._supervisor = supervisor
        self._pool = pool
        self._clusters: dict[HubAccess, Cluster] = {}
        self._secrets: dict[HubAccess, Watched[Mapping[str, str]]] = {}

    @property
    def clusters(self) -> Mapping[HubAccess, Cluster]:
        """Clusters in use; thread-safe."""
        return self._clusters.copy()

    def cluster(self, hub: HubAccess) -> Cluster:
        """Return the watches of a hub; raises ConfigurationError for unusable credentials."""
        if hub not in self._clusters:
            if hub.secret:
                api = self._api_of_secret(hub)
            else:
                api = KubeApi(Path(hub.kubeconfig), context=hub.context, setting="kubeconfig")
            self._clusters[hub] = Cluster(api, clock=self._clock, supervisor=self._supervisor, place="hub")
        return self._clusters[hub]

    def _api_of_secret(self, hub: HubAccess) -> KubeApi:
        """Return a client with the kubeconfig in a Secret; it follows changes of the Secret."""
        if self._pool is None:
            raise ConfigurationError(
                f"{hub}: the picker has no cluster to read the Secret from: set --pool-name, or use `kubeconfig`"
            )
        namespace, _, name = hub.secret.partition("/")
        only = {"fieldSelector": f"metadata.name={name}"}
        watched = self._pool.watch(SECRETS, secret_data, namespace=namespace, selector=only, optional=True)

        async def read() -> "SingleConfig":
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLING_SECONDS):
                    await watched.settled()
            data = watched.objects.get(hub.secret)
            if data is None:
                reason = watched.reason or "it does not exist"
                raise ConfigurationError(f"{hub}: {reason}; create it, and allow get, list and watch of this Secret")
            return await asyncio.to_thread(read_secret, data, str(hub), hub.key, hub.context)

        api = KubeApi(setting=str(hub), read=read)
        watched.subscribe(lambda _: api.renew())
        self._secrets[hub] = watched
        return api

    async def close_unused(self) -> None:
        """Close the connections to hubs that no plugin reads."""
        for hub in [hub for hub, cluster in self._clusters.items() if not cluster.watches]:
            await self._clusters.pop(hub).close()
            if self._pool is not None and (secret := self._secrets.pop(hub, None)) is not None:
                self._pool.release(secret)


def secret_data(document: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the values of a Secret by key, in base64."""
    data = document.get("data")
    return {key: value for key, value in data.items() if isinstance(value, str)} if isinstance(data, Mapping) else {}


class ClusterReaders:
    """Runs one task for each plugin that reads objects; its watches are optional."""

    def __init__(
        self,
        cluster: Cluster | None,
        namespace: str,
        *,
        supervisor: Supervisor,
        shared: Iterable[SharedObjects] = (),
        hubs: Hubs | None = None,
    ) -> None:
        """`cluster` and `namespace` belong to the pool; without a cluster, only objects of hubs are read."""
        self.cluster = cluster
        self.hubs = hubs or Hubs(SystemClock(), supervisor, cluster)
        self._namespace = namespace
        self._supervisor = supervisor
        self._shared = tuple(shared)
        self._running: dict[ObjectReader[Any], tuple[ReadingTask, asyncio.Task[None]]] = {}

    async def connect(self, readings: Iterable[Reading], retag: Retag) -> None:
        """Start reading for new plugins; return when each has its first objects, or after ten seconds."""
        new: list[ReadingTask] = []
        for reading in readings:
            if (known := self._running.get(reading.reader)) is not None:
                known[0].read((*known[0].streams, *self._readable(reading)))
                continue
            if not (kinds := self._readable(reading)):
                continue
            reading_task = ReadingTask(reading.reader, partial(self._open, reading.reader), retag)
            reading_task.read(kinds)
            task = self._supervisor.start(
                "reader", partial(reading_task.run, SETTLING_SECONDS), name=f"reader {reading.reader.name}"
            )
            self._running[reading.reader] = reading_task, task
            reading.reader.unread = reading_task.unread
            new.append(reading_task)
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * SETTLING_SECONDS):
                for reading_task in new:
                    await reading_task.reported.wait()

    def keep(self, readings: Iterable[Reading]) -> None:
        """Read exactly the kinds of these plugins; stop the tasks of other plugins."""
        kinds = {reading.reader: self._readable(reading) for reading in readings}
        for reader, (reading_task, task) in tuple(self._running.items()):
            if reader in kinds:
                reading_task.read(kinds[reader])
            else:
                del self._running[reader]
                task.cancel()
                reading_task.read(())

    def _readable(self, reading: Reading) -> tuple[ObjectKind, ...]:
        return tuple(kind for kind in reading.kinds if kind.hub is not None or self.cluster is not None)

    def _open(self, reader: ObjectReader[Any], kind: ObjectKind) -> tuple[ObjectStream, Callable[[], None]]:
        resource = resource_of(kind)
        if kind.hub is not None:
            own = kind.hub.secret
            access = kind.hub._replace(secret=f"{self._namespace}/{own}" if own and "/" not in own else own)
            hub = self.hubs.cluster(access)
            own = hub.api.namespace or self._namespace
            watched = hub.watch(resource, reader.decode, fallback=own if resource.namespaced else "", optional=True)
            return watched, partial(hub.release, watched)
        assert self.cluster is not None  # noqa: S101  see _readable
        for shared in self._shared:
            if (shared.resource, shared.decode) == (resource, reader.decode):
                return shared.stream, lambda: None
        watched = self.cluster.watch(
            resource,
            reader.decode,
            namespace="" if resource.everywhere or not resource.namespaced else self._namespace,
            fallback=self._namespace if resource.everywhere and not kind.everywhere else "",
            optional=True,
        )
        return watched, partial(self.cluster.release, watched)
