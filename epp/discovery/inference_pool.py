# SPDX-License-Identifier: Apache-2.0
"""Endpoints of the pods that an InferencePool selects, or that have labels given by hand."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from epp.discovery.pods import PodTarget, endpoints_of
from epp.framework.datalayer import Discovery, Pool
from epp.framework.endpoint import Endpoint
from epp.framework.plugin import Parameters
from epp.kube.cluster import Cluster
from epp.kube.object_set import Delta
from epp.kube.resources import PODS, pools
from epp.kube.watched import Watched
from epp.objects.core import Pod
from epp.objects.decode import decode_object
from epp.objects.inference import POOL_GROUP, InferencePool, read_inference_pool

_log = structlog.get_logger()


class PoolName(NamedTuple):
    """An InferencePool."""

    name: str
    namespace: str
    group: str = POOL_GROUP


@dataclass(slots=True)
class _Selection:
    """The pods in effect."""

    target: PodTarget
    pods: Watched[Pod]
    unsubscribe: Callable[[], None]
    ids: dict[str, tuple[str, ...]]
    """Ids of the endpoints of each pod."""


class PodDiscovery(Discovery[Parameters]):
    """The ready pods of an InferencePool, or those with given labels, in one namespace.

    Each change of a pod is applied as it arrives. When the pool selects others, these replace all endpoints as soon as
    they are known; without a pool there are no endpoints.
    """

    plugin_type = "pod-discovery"

    def __init__(self, cluster: Cluster, namespace: str, source: PoolName | PodTarget) -> None:
        super().__init__()
        self._cluster = cluster
        self._namespace = namespace
        self._source = source
        self._pools: Watched[InferencePool] | None = None
        self._pool_changed = asyncio.Event()
        self._selection: _Selection | None = None

    @property
    def target(self) -> PodTarget | None:
        """The pods and ports that are wanted now; None while there is no pool."""
        if isinstance(self._source, PodTarget):
            return self._source
        found = None if self._pools is None else next(iter(self._pools.objects.values()), None)
        if found is None:
            return None
        return PodTarget(found.spec.selector.match_labels, tuple(port.number for port in found.spec.target_ports))

    @property
    def _title(self) -> str:
        """The pool, or the labels, for messages."""
        if isinstance(self._source, PodTarget):
            return self._source.selector["labelSelector"]
        return f"{self._source.namespace}/{self._source.name}"

    async def start(self, pool: Pool) -> None:
        """Fill the pool, as soon as the API server has told all."""
        if isinstance(self._source, PoolName) and self._pools is None:
            name = self._source
            self._pools = self._cluster.watch(
                pools(name.group),
                read_inference_pool,
                namespace=name.namespace,
                selector={"fieldSelector": f"metadata.name={name.name}"},
            )
            self._pools.subscribe(lambda _: self._pool_changed.set())
        if self._pools is not None:
            await self._pools.first_list()
        while not await self._select(pool):
            pass

    async def follow(self, pool: Pool) -> None:
        """Select other pods whenever the InferencePool wants them, until cancelled."""
        while True:
            await self._pool_changed.wait()
            await self._select(pool)

    async def _select(self, pool: Pool) -> bool:
        """Put the pods and ports that are wanted into effect; return whether they are still the ones."""
        self._pool_changed.clear()
        target, before = self.target, self._selection
        if target is None:
            _log.info("no InferencePool, so no endpoints", pool=self._title)
            self._replace(None, pool)
            return True
        if before is not None and before.target == target:
            return True
        pods = self._cluster.watch(PODS, _decode_pod, namespace=self._namespace, selector=target.selector)
        listed = asyncio.create_task(pods.first_list())
        changed = asyncio.create_task(self._pool_changed.wait())
        known = False
        try:
            await asyncio.wait({listed, changed}, return_when=asyncio.FIRST_COMPLETED)
            known = listed.done()
        finally:
            listed.cancel()
            changed.cancel()
            if not known:
                self._cluster.release(pods)
        if known:
            selection = _Selection(target, pods, lambda: None, {})
            selection.unsubscribe = pods.subscribe(lambda delta: self._apply(delta, selection, pool))
            self._replace(selection, pool)
        return known

    def _replace(self, selection: _Selection | None, pool: Pool) -> None:
        """Make these pods the pool, at once."""
        before, self._selection = self._selection, selection
        endpoints: list[Endpoint] = []
        if selection is not None:
            for identity, pod in selection.pods.objects.items():
                found = endpoints_of(pod, selection.target.ports)
                selection.ids[identity] = tuple(endpoint.id for endpoint in found)
                endpoints += found
            _log.info("pods selected", labels=dict(selection.target.labels), endpoints=len(endpoints))
        pool.replace(endpoints)
        if before is not None:
            before.unsubscribe()
            self._cluster.release(before.pods)

    def _apply(self, delta: Delta[Pod], selection: _Selection, pool: Pool) -> None:
        changed: list[Endpoint] = []
        removed = [each for pod in delta.removed for each in selection.ids.pop(pod, ())]
        for identity, pod in delta.changed.items():
            found = endpoints_of(pod, selection.target.ports)
            before = selection.ids.get(identity, ())
            selection.ids[identity] = tuple(endpoint.id for endpoint in found)
            removed += set(before) - set(selection.ids[identity])
            changed += found
        pool.update(changed, removed)


def _decode_pod(document: Mapping[str, object]) -> Pod | None:
    found = decode_object(document)
    return found if isinstance(found, Pod) else None
