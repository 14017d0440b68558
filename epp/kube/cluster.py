# SPDX-License-Identifier: Apache-2.0
"""Watches of one process, shared by all readers of the same objects."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog

from epp.framework.clock import Clock
from epp.kube.access import KubeApi
from epp.kube.collection import Decode, T
from epp.kube.resources import Resource
from epp.kube.watched import Watched, WatchState
from epp.runtime.supervisor import Supervisor

_SETTLING_SECONDS = 10.0
"""Longest wait for the first response for all kinds."""
_GATHERING_SECONDS = 1.0
"""Changes within this time share one log line."""

_log = structlog.get_logger()
_UNREADABLE = frozenset({WatchState.ABSENT, WatchState.FORBIDDEN})
_REMEDY = "to use them, allow list and watch, at cluster scope in a ClusterRole; no restart is needed"


class _OptionalKinds:
    """Logs absent and forbidden optional kinds, and their changes, in one line for many kinds.

    With the URL of a hub, also logs when the hub becomes unreachable and reachable.
    """

    def __init__(self, hub: str = "") -> None:
        self.logged: dict[Watched[Any], WatchState] = {}
        """Last logged state of each watch."""
        self.noticed = asyncio.Event()
        """Set when a watch begins or changes its state."""
        self._hub_fields: dict[str, str] = {"hub": hub} if hub else {}
        self._is_unreachable = False

    async def follow(self) -> None:
        while True:
            await self.noticed.wait()
            self.noticed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_SETTLING_SECONDS):
                    for watch in tuple(self.logged):
                        await watch.settled()
            await asyncio.sleep(_GATHERING_SECONDS)
            self._log_changes()

    def _log_changes(self) -> None:
        # An unreachable API server of the pool is logged by the watch of the pods.
        stale = [watch.reason for watch in self.logged if self._hub_fields and watch.state is WatchState.STALE]
        if stale and not self._is_unreachable:
            _log.warning("hub cannot be read, its last objects stay in effect", **self._hub_fields, reason=stale[0])
        elif self._is_unreachable and not stale:
            _log.info("hub readable again", **self._hub_fields)
        self._is_unreachable = bool(stale)
        changed = {
            watch: logged for watch, logged in self.logged.items() if watch.state not in {logged, WatchState.STALE}
        }
        self.logged.update({watch: watch.state for watch in changed})
        now = {state: [watch for watch in changed if watch.state is state] for state in WatchState}
        readable, forbidden = now[WatchState.CURRENT], now[WatchState.FORBIDDEN]
        if back := sorted(watch.collection.title for watch in readable if changed[watch] in _UNREADABLE):
            _log.info("optional objects readable now", resources=back, **self._hub_fields)
        narrowed = sorted(watch.collection.title for watch in readable if watch.collection.is_narrowed)
        found = {
            "forbidden": sorted(map(_missing_right, forbidden)),
            "only_in_own_namespace": narrowed,
            "remedy": _REMEDY if forbidden or narrowed else "",
            "not_installed": sorted(
                watch.collection.resource.title for watch in now[WatchState.ABSENT] if changed[watch] not in _UNREADABLE
            ),
        }
        if fields := {name: value for name, value in found.items() if value}:
            log = _log.warning if any(changed[watch] is WatchState.CURRENT for watch in forbidden) else _log.info
            log("optional objects not read", **fields, **self._hub_fields)


def _missing_right(watch: Watched[Any]) -> str:
    verb = "watch" if watch.lists else "list"
    resource, namespace = watch.collection.resource, watch.collection.namespace
    scope = f"in namespace {namespace}" if namespace else "at cluster scope"
    return f"{verb} {resource.plural or resource.kind} of group {resource.group or 'core'} {scope}"


class _Key(NamedTuple):
    resource: Resource
    namespace: str
    selector: tuple[tuple[str, str], ...]
    decode: Decode[Any]


@dataclass(slots=True)
class _Watch:
    watched: Watched[Any]
    task: asyncio.Task[None]
    users: int = 0


class Cluster:
    """Watches of a cluster: each starts with its first user and ends with its last."""

    def __init__(self, api: KubeApi, *, clock: Clock, supervisor: Supervisor, place: str = "cluster") -> None:
        """`place` is the source of the objects: `cluster` for the API server of the pool, or `hub`."""
        self.api = api
        self._place = place
        self._prefix = "" if place == "cluster" else f"{place} {api.server}: "
        self._clock = clock
        self._supervisor = supervisor
        self._watches: dict[_Key, _Watch] = {}
        self._optional = _OptionalKinds("" if place == "cluster" else api.server)
        self._logging: asyncio.Task[None] | None = None

    @property
    def watches(self) -> Sequence[Watched[Any]]:
        """All watches; thread-safe."""
        return tuple(watch.watched for watch in tuple(self._watches.values()))

    def watch(
        self,
        resource: Resource,
        decode: Decode[T],
        *,
        namespace: str = "",
        fallback: str = "",
        selector: Mapping[str, str] | None = None,
        optional: bool = False,
    ) -> Watched[T]:
        """Return the objects, kept up to date until `release`; requires a running event loop.

        `fallback` is the namespace to read if access to all namespaces is forbidden. Unreadable `optional` kinds share
        one log line.
        """
        key = _Key(resource, namespace, tuple(sorted((selector or {}).items())), decode)
        known = self._watches.get(key)
        if known is None:
            watched = Watched(
                self.api,
                resource,
                decode,
                clock=self._clock,
                namespace=namespace,
                fallback=fallback,
                selector=dict(key.selector),
                observer=self._optional.noticed.set if optional else None,
                place=self._place,
            )
            if optional:
                self._optional.logged[watched] = WatchState.STARTING
                self._optional.noticed.set()
                if self._logging is None:
                    self._logging = self._supervisor.start(
                        "watch", self._optional.follow, name=f"{self._prefix}optional objects"
                    )
            task = self._supervisor.start(
                "watch", watched.run, name=f"{self._prefix}watch {watched.collection.title} {dict(key.selector)}"
            )
            known = self._watches[key] = _Watch(watched, task)
        known.users += 1
        return known.watched

    def release(self, watched: Watched[Any]) -> None:
        """End one use of a watch; no effect after `close`."""
        key = next((key for key, watch in self._watches.items() if watch.watched is watched), None)
        if key is None:
            return
        watch = self._watches[key]
        watch.users -= 1
        if not watch.users:
            del self._watches[key]
            self._optional.logged.pop(watched, None)
            watch.task.cancel()

    def part(self) -> "Cluster":
        """Return a view for one of several users; closing it releases only its own watches."""
        return _Part(self)

    async def close(self) -> None:
        tasks = [watch.task for watch in self._watches.values()]
        if self._logging is not None:
            tasks.append(self._logging)
        self._watches.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.api.close()


class _Part(Cluster):
    def __init__(self, whole: Cluster) -> None:
        self.api = whole.api
        self._whole = whole
        self._used: list[Watched[Any]] = []

    @property
    def watches(self) -> Sequence[Watched[Any]]:
        return tuple(dict.fromkeys(self._used))

    def watch(self, resource: Resource, decode: Decode[T], **choice: Any) -> Watched[T]:
        watched = self._whole.watch(resource, decode, **choice)
        self._used.append(watched)
        return watched

    def release(self, watched: Watched[Any]) -> None:
        if watched in self._used:
            self._used.remove(watched)
            self._whole.release(watched)

    async def close(self) -> None:
        for watched in tuple(self._used):
            self.release(watched)
