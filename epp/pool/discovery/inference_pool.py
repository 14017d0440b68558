# SPDX-License-Identifier: Apache-2.0
"""Endpoints of the pods that an InferencePool or given labels select in a Kubernetes cluster."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple

import structlog

from epp.framework.datalayer import Discovery, Pool
from epp.framework.endpoint import Endpoint, LabelSelector
from epp.framework.errors import ConfigurationError
from epp.framework.plugin import Parameters
from epp.framework.plugin_status import InputProblem
from epp.kube.cluster import Cluster
from epp.kube.collection import Delta, T
from epp.kube.objects.base import Object
from epp.kube.objects.core import Node, Pod
from epp.kube.objects.decode import decode_object
from epp.kube.objects.inference import POOL_GROUP, InferencePool
from epp.kube.resources import NODES, PODS, pools
from epp.kube.watched import Watched
from epp.pool.discovery.pods import PodTarget, endpoints_of
from epp.runtime.supervisor import first_of

_NODES_SECONDS = 5.0
_log = structlog.get_logger()


class Relay(Generic[T]):
    """The objects of a watch, which may be replaced by another watch."""

    def __init__(self, *, reports_problems: bool) -> None:
        self.objects: dict[str, T] = {}
        self._reports_problems = reports_problems
        self._watched: Watched[T] | None = None
        self._settled = asyncio.Event()
        self._listeners: list[Callable[[Delta[T]], None]] = []

    @property
    def problems(self) -> tuple[InputProblem, ...]:
        """Objects whose newest version is not in effect."""
        return self._watched.problems if self._watched is not None and self._reports_problems else ()

    def subscribe(self, listener: Callable[[Delta[T]], None]) -> Callable[[], None]:
        """Call `listener` after each change; return a function that unsubscribes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def settled(self) -> None:
        """Wait until `replace` is called for the first time."""
        await self._settled.wait()

    def replace(self, watched: Watched[T] | None) -> None:
        """Take the objects from another watch; None for no objects."""
        self._watched = watched
        now: Mapping[str, T] = {} if watched is None else watched.objects
        changed = {name: one for name, one in now.items() if self.objects.get(name) != one}
        self._settled.set()
        self.apply(Delta(changed, tuple(name for name in self.objects if name not in now)))

    def apply(self, delta: Delta[T]) -> None:
        """Apply a change of the watch and notify listeners."""
        self.objects.update(delta.changed)
        for name in delta.removed:
            self.objects.pop(name, None)
        for listener in tuple(self._listeners):
            listener(delta)


class PoolName(NamedTuple):
    name: str
    namespace: str
    group: str = POOL_GROUP


@dataclass(slots=True)
class _Selection:
    target: PodTarget
    pods: Watched[Pod]
    unsubscribe: Callable[[], None]
    ids: dict[str, tuple[str, ...]]
    """Ids of the endpoints of each pod."""


class PodDiscovery(Discovery[Parameters]):
    """The ready pods of an InferencePool, or those with given labels, in one namespace.

    Each change of a pod is applied as it arrives. When the pool selects other pods, these replace all endpoints as soon
    as they are listed; without a pool there are no endpoints. Boot IDs are read from nodes, if that is permitted.
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
        self._nodes: Watched[Object] | None = None
        self._boot_ids: dict[str, str] = {}
        self._unsubscribe: list[Callable[[], None]] = []
        self.pods: Relay[Pod] = Relay(reports_problems=True)
        """The selected pods, ready or not."""
        self.pool: Relay[InferencePool] = Relay(reports_problems=False)  # its watch reports them
        """The InferencePool in effect, at most one."""

    @property
    def target(self) -> PodTarget | None:
        """The pods and ports to select; None while there is no pool."""
        if isinstance(self._source, PodTarget):
            return self._source
        found = self.found_pool
        return None if found is None else PodTarget(LabelSelector.of(found.match_labels), found.ports)

    @property
    def _title(self) -> str:
        if isinstance(self._source, PodTarget):
            return str(self._source.labels)
        return f"{self._source.namespace}/{self._source.name}"

    @property
    def found_pool(self) -> InferencePool | None:
        return next(iter(self.pool.objects.values()), None)

    @property
    def trouble(self) -> str:
        """Reason that the endpoints may be out of date: the API server does not report pods or the pool."""
        selection = self._selection
        watches = (self._pools, None if selection is None else selection.pods)
        lost = (watch for watch in watches if watch is not None and watch.reason)
        found = next((f"{watch.collection.title}: {watch.state}: {watch.reason}" for watch in lost), "")
        missing = self._pools is not None and self._pools.lists and self.found_pool is None
        return found or (f"there is no InferencePool {self._title}: create it" if missing else "")

    @property
    def shortage(self) -> str:
        """Reason that the pool has no endpoints; empty if it has some, or there is no pool."""
        selection = self._selection
        if selection is None or any(selection.ids.values()):
            return ""
        labels = selection.target.labels
        if not selection.pods.objects:
            return f"no pod in {self._namespace} has the labels {labels}"
        return f"no pod in {self._namespace} with the labels {labels} is ready on a port of the pool"

    async def start(self, pool: Pool) -> None:
        """Fill the pool as soon as the API server has listed all objects."""
        if isinstance(self._source, PoolName) and self._pools is None:
            name = self._source
            self._pools = self._cluster.watch(
                pools(name.group),
                _decode_pool,
                namespace=name.namespace,
                selector={"fieldSelector": f"metadata.name={name.name}"},
            )
            self._unsubscribe.append(self._pools.subscribe(lambda _: self._pool_changed.set()))
            self._unsubscribe.append(self._pools.subscribe(self.pool.apply))
        if self._nodes is None:
            self._nodes = self._cluster.watch(NODES, decode_object, optional=True)
            self._unsubscribe.append(self._nodes.subscribe(lambda delta: self._nodes_changed(delta, pool)))
        if self._pools is not None:
            await self._pools.first_list()
        self.pool.replace(self._pools)
        await first_of(self._nodes.settled(), most_seconds=_NODES_SECONDS)
        while not await self._select(pool):
            pass

    async def follow(self, pool: Pool) -> None:
        """Select other pods whenever the InferencePool changes, until cancelled."""
        while True:
            await self._pool_changed.wait()
            await self._select(pool)

    def close(self) -> None:
        """Unsubscribe from the watches, which other pools may share."""
        if self._selection is not None:
            self._unsubscribe.append(self._selection.unsubscribe)
        while self._unsubscribe:
            self._unsubscribe.pop()()

    async def _select(self, pool: Pool) -> bool:
        """Select the pods and ports of `target`; return False if it changed meanwhile."""
        self._pool_changed.clear()
        target, before = self.target, self._selection
        if target is None:
            _log.info("no endpoints, since there is no InferencePool", pool=self._title)
            self._replace(None, pool)
            return True
        if before is not None and before.target == target:
            return True
        pods = self._cluster.watch(PODS, _decode_pod, namespace=self._namespace, selector=target.selector)
        known = False
        try:
            known = await first_of(pods.first_list(), self._pool_changed.wait())
        finally:
            if not known:
                self._cluster.release(pods)
        if known:
            selection = _Selection(target, pods, lambda: None, {})
            selection.unsubscribe = pods.subscribe(lambda delta: self._apply(delta, selection, pool))
            self._replace(selection, pool)
        return known

    def _replace(self, selection: _Selection | None, pool: Pool) -> None:
        before, self._selection = self._selection, selection
        endpoints: list[Endpoint] = []
        if selection is not None:
            for identity, pod in selection.pods.objects.items():
                found = self._endpoints_of(pod, selection)
                selection.ids[identity] = tuple(endpoint.id for endpoint in found)
                endpoints += found
            _log.info("pods selected", labels=str(selection.target.labels), endpoints=len(endpoints))
        pool.replace(endpoints)
        self.pods.replace(None if selection is None else selection.pods)
        if before is not None:
            before.unsubscribe()
            self._cluster.release(before.pods)

    def _apply(self, delta: Delta[Pod], selection: _Selection, pool: Pool) -> None:
        changed: list[Endpoint] = []
        removed = [each for pod in delta.removed for each in selection.ids.pop(pod, ())]
        for identity, pod in delta.changed.items():
            found = self._endpoints_of(pod, selection)
            before = selection.ids.get(identity, ())
            selection.ids[identity] = tuple(endpoint.id for endpoint in found)
            removed += set(before) - set(selection.ids[identity])
            changed += found
        pool.update(changed, removed)
        self.pods.apply(delta)

    def _nodes_changed(self, delta: Delta[Object], pool: Pool) -> None:
        found = {name: node.boot_id for name, node in delta.changed.items() if isinstance(node, Node)}
        changed = {name: boot_id for name, boot_id in found.items() if boot_id != self._boot_ids.get(name, "")}
        self._boot_ids.update(changed)
        for name in delta.removed:
            self._boot_ids.pop(name, None)
        if changed and (selection := self._selection) is not None:
            pods = [pod for pod in selection.pods.objects.values() if pod.spec.node_name in changed]
            pool.update([endpoint for pod in pods for endpoint in self._endpoints_of(pod, selection)])

    def _endpoints_of(self, pod: Pod, selection: _Selection) -> tuple[Endpoint, ...]:
        return endpoints_of(pod, selection.target.ports, boot_id=self._boot_ids.get(pod.spec.node_name, ""))


class PoolDiscovery(Discovery[Parameters]):
    """The endpoints of the flag `--pool-name`, `--endpoint-selector`, `--objects` or `--endpoints`, as one source.

    Without such a flag, the configuration is refused.
    """

    plugin_type = "pool-discovery"

    async def start(self, pool: Pool) -> None:  # noqa: ARG002  of no use here
        """Raise ConfigurationError: a running picker replaces this plugin by the source of the flags."""
        raise ConfigurationError(f"{self.plugin_type}: only a running picker with --pool-name has its endpoints")

    follow = start


def _decode_pool(document: Mapping[str, object]) -> InferencePool | None:
    """Return the pool, also one of another group, which has the same fields; raises ValueError."""
    found = decode_object({**document, "apiVersion": f"{POOL_GROUP}/v1"})
    return found if isinstance(found, InferencePool) else None


def _decode_pod(document: Mapping[str, object]) -> Pod | None:
    found = decode_object(document)
    return found if isinstance(found, Pod) else None
