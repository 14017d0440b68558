# SPDX-License-Identifier: Apache-2.0
"""What one process watches in a cluster; watches are shared by those who want the same objects."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from epp.framework.clock import Clock
from epp.kube.access import KubeApi
from epp.kube.object_set import Decode, T
from epp.kube.optional import OptionalKinds
from epp.kube.resources import Resource
from epp.kube.watched import Watched
from epp.runtime.supervisor import Supervisor


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
    """Starts a watch with its first user and ends it with the last."""

    def __init__(self, api: KubeApi, *, clock: Clock, supervisor: Supervisor) -> None:
        self.api = api
        self._clock = clock
        self._supervisor = supervisor
        self._watches: dict[_Key, _Watch] = {}
        self._optional = OptionalKinds()
        self._saying: asyncio.Task[None] | None = None

    @property
    def watches(self) -> Sequence[Watched[Any]]:
        """All watches; may be read in any thread."""
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
        """Return the objects, kept up to date until `release`; may be called in a running event loop only.

        `fallback` is the namespace to read where all of them are forbidden. Of kinds that are `optional`, one log line
        says together which cannot be read.
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
                observer=self._optional.notice if optional else None,
            )
            if optional:
                self._optional.add(watched)
                if self._saying is None:
                    self._saying = self._supervisor.start("watch", self._optional.follow, name="optional objects")
            task = self._supervisor.start("watch", watched.run, name=f"watch {watched.title} {dict(key.selector)}")
            known = self._watches[key] = _Watch(watched, task)
        known.users += 1
        return known.watched

    def release(self, watched: Watched[Any]) -> None:
        """End one use of a watch; after `close` there is none."""
        key = next((key for key, watch in self._watches.items() if watch.watched is watched), None)
        if key is None:
            return
        watch = self._watches[key]
        watch.users -= 1
        if not watch.users:
            del self._watches[key]
            self._optional.discard(watched)
            watch.task.cancel()

    async def close(self) -> None:
        """End all watches and close all connections."""
        tasks = [watch.task for watch in self._watches.values()]
        if self._saying is not None:
            tasks.append(self._saying)
        self._watches.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.api.close()
