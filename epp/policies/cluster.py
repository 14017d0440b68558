# SPDX-License-Identifier: Apache-2.0
"""The policies of one pool, from the objects of a cluster, kept up to date."""

import asyncio
from collections.abc import Callable

import structlog

from epp.director.policies import PoolPolicies
from epp.kube.cluster import Cluster
from epp.kube.resources import LEGACY_OBJECTIVES, LEGACY_REWRITES, OBJECTIVES, REWRITES
from epp.kube.watched import Watched, WatchState
from epp.objects.base import Object
from epp.objects.decode import decode_object
from epp.policies.build import PoolIdentity, build_policies

_log = structlog.get_logger()


class ClusterPolicies:
    """Objectives and rewrites; those of the former API group count where the current one is not installed."""

    def __init__(
        self, cluster: Cluster, pool: PoolIdentity, namespace: str, apply: Callable[[PoolPolicies], None]
    ) -> None:
        self._cluster = cluster
        self._pool = pool
        self._namespace = namespace
        self._apply = apply
        self._watches: list[tuple[Watched[Object], Watched[Object]]] = []
        self._changed = asyncio.Event()
        self.warnings: tuple[str, ...] = ()
        """Objects that are not in effect as they are written: one sentence each."""

    async def start(self) -> None:
        """Put the policies into effect, as soon as the API server has told whether there are any."""
        kinds = ((OBJECTIVES, LEGACY_OBJECTIVES), (REWRITES, LEGACY_REWRITES))
        for current, former in kinds:
            pair = [self._cluster.watch(each, decode_object, namespace=self._namespace) for each in (current, former)]
            self._watches.append((pair[0], pair[1]))
        for watch in self._all():
            watch.subscribe(lambda _: self._changed.set())
        await asyncio.gather(*(watch.settled() for watch in self._all()))
        self._refresh()

    async def follow(self) -> None:
        """Apply changes until cancelled; those that arrive together are one."""
        while True:
            await self._changed.wait()
            self._refresh()

    def _all(self) -> list[Watched[Object]]:
        return [watch for pair in self._watches for watch in pair]

    def _refresh(self) -> None:
        self._changed.clear()
        chosen = [former if current.state is WatchState.ABSENT else current for current, former in self._watches]
        built = build_policies([each for watch in chosen for each in watch.objects.values()], self._pool)
        self._apply(built.policies)
        for warning in built.warnings:
            if warning not in self.warnings:
                _log.warning("policy not as written", reason=warning)
        self.warnings = built.warnings
        _log.info("policies applied", objectives=built.objectives, rewrites=built.rewrites)
