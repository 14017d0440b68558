# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes side of a picker: pool, watches, leadership, events, and pods on nodes without an endpoint."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from epp.framework.clock import Clock
from epp.framework.cluster_objects import HubAccess, ObjectKind
from epp.framework.plugin import Plugin
from epp.framework.plugin_status import InputState
from epp.hardware.resources import resource_requests
from epp.hardware.tagger import AcceleratorTagger
from epp.kube.access import ApiError, ApiUnreachableError, KubeApi
from epp.kube.cluster import Cluster
from epp.kube.collection import list_objects
from epp.kube.events import CONFIGURATION, ENDPOINTS, OBJECTS, POOL, EventWriter, Subject, Topic, message_of
from epp.kube.leader_election import LeaderElection, LeaseSettings
from epp.kube.objects.core import Pod
from epp.kube.objects.decode import decode_object
from epp.kube.objects.inference import POOL_GROUP
from epp.kube.readers import ClusterReaders, Hubs, ObjectStream, ReadingTask, SharedObjects
from epp.kube.resources import ACCELERATORS, CLUSTERS, MEMORY_QUOTAS, OME_SERVICES, PODS, POLICIES, pools, resource_of
from epp.kube.watched import WatchState
from epp.pool.discovery import PodDiscovery, PodTarget, PoolName
from epp.routing.director import Director
from epp.routing.policies import Policies, PoolIdentity
from epp.runtime.supervisor import Supervisor, TaskObserver

_INDISPENSABLE = frozenset({PODS.kind, "InferencePool"})
"""Kinds without which the picker does not start; other kinds may be forbidden or absent."""
_UNKNOWN = frozenset({WatchState.STARTING, WatchState.STALE})
"""States in which the objects of a kind are unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    namespace: str
    source: PoolName | PodTarget
    """The InferencePool, or the pods themselves."""
    replica: str
    """Unique name of this replica."""
    kubeconfig: Path | None = None
    """None for KUBECONFIG, the service account of the pod, or `~/.kube/config`."""
    lease: LeaseSettings | None = None
    """Lease for leader election, in which only the leader is ready; None without election."""


class Kubernetes:
    """Access of a picker to its cluster: endpoints, policies, leader election and events."""

    name = "kubernetes"
    """Name of this source of objects, in the same reports as the names of plugins."""

    def __init__(
        self,
        settings: KubernetesSettings,
        clock: Clock,
        *,
        observer: TaskObserver,
        shared: Cluster | None = None,
        hubs: Hubs | None = None,
    ) -> None:
        """Read the configuration of the API server; raises ConfigurationError if there is none.

        `shared` and `hubs` have the watches that all pools of the process share.
        """
        self._settings = settings
        self._clock = clock
        self._supervisor = Supervisor(observer=observer)
        if shared is None:
            self.cluster = Cluster(KubeApi(settings.kubeconfig), clock=clock, supervisor=self._supervisor)
        else:
            self.cluster = shared.part()
        self.election: LeaderElection | None = None
        if settings.lease is not None:
            self.election = LeaderElection(self.cluster.api, settings.lease, settings.replica, clock=clock)
        self._electing: asyncio.Task[None] | None = None
        pool = PoolIdentity(namespace=settings.namespace)
        if isinstance(settings.source, PoolName):
            pool = PoolIdentity(settings.source.name, settings.source.group, settings.namespace)
        self._policies = Policies(pool, name=self.name, clock=clock)
        self._reading: ReadingTask | None = None
        """Reads the policies."""
        self.discovery = PodDiscovery(self.cluster, settings.namespace, settings.source)
        self.readers = ClusterReaders(
            self.cluster,
            settings.namespace,
            supervisor=self._supervisor,
            hubs=hubs,
            shared=[
                SharedObjects(PODS, decode_object, self.discovery.pods),
                SharedObjects(pools(POOL_GROUP), decode_object, self.discovery.pool),  # only the pool of this picker
            ],
        )
        """Plugins that read objects of the cluster."""

    @property
    def awaited(self) -> str:
        """Kinds of objects that the start waits for, with the reasons; empty if all are read."""
        titles: dict[str, list[str]] = {}
        for watch in self.cluster.watches:
            awaited = watch.collection.resource.kind in _INDISPENSABLE and not watch.collection.resource.everywhere
            if not watch.lists and (awaited or watch.state in _UNKNOWN):
                reason = f"{watch.state}{': ' if watch.reason else ''}{watch.reason}"
                titles.setdefault(reason, []).append(watch.collection.title)
        return "; ".join(f"{', '.join(each)}: {reason}" for reason, each in titles.items())

    @property
    def inputs(self) -> InputState:
        """Objects whose newest version is not in effect, without objects that plugins report themselves."""
        of_others = (*POLICIES, *ACCELERATORS, *OME_SERVICES, *MEMORY_QUOTAS, *CLUSTERS)
        own = (watch for watch in self.cluster.watches if watch.collection.resource not in of_others)
        return InputState((*(problem for watch in own for problem in watch.problems), *self._policies.inputs.problems))

    @property
    def health(self) -> dict[str, object]:
        """State of leader election, of the API server and of its watches, for `/healthz`."""
        election = self.election
        return {
            **({} if election is None else {"leader": election.is_leader}),
            "kubernetes": {
                **cluster_health(self.cluster),
                **({} if election is None else {"election": _election_health(election)}),
                "failing_tasks": dict(self._supervisor.failing),
            },
        }

    async def start(self, director: Director, most_seconds: float | None = None) -> None:
        """Apply the policies of the pool, and each change; wait for the first ones for at most `most_seconds`."""
        policies = self._policies
        self._reading = ReadingTask(policies, self._watch, lambda *_: director.use_policies(policies.policies))
        self._reading.read(ObjectKind(*each.key) for each in POLICIES)
        self._supervisor.start("policies", partial(self._reading.run, most_seconds))
        with suppress(TimeoutError):
            async with asyncio.timeout(most_seconds):
                await self._reading.reported.wait()

    def _watch(self, kind: ObjectKind) -> tuple[ObjectStream, Callable[[], None]]:
        watched = self.cluster.watch(resource_of(kind), decode_object, namespace=self._settings.namespace)
        return watched, partial(self.cluster.release, watched)

    def write_events(self, config_problem: Callable[[], str]) -> None:
        """Start writing events for the InferencePool; no effect without one.

        `config_problem` returns the reason that the configuration file is not in effect. With leader election only the
        leader writes events; without it, all replicas update the same events.
        """
        source = self._settings.source
        if not isinstance(source, PoolName):
            return
        writer = EventWriter(
            self.cluster.api,
            self._settings.replica,
            clock=self._clock,
            subject=lambda: self._subject(source),
            problems=lambda: self._problems(config_problem()),
            may_write=lambda: self.election is None or self.election.is_leader,
        )
        self._supervisor.start("events", writer.run)

    def contend(self, on_change: Callable[[bool], None]) -> None:
        """Start leader election, if configured; `on_change` is called with whether this replica leads."""
        if self.election is not None:
            self._electing = self._supervisor.start("leader election", partial(self.election.run, on_change))

    def resign(self) -> asyncio.Task[None] | None:
        """Stop leading; return the task that releases the lease, None without an election."""
        if self.election is None or self._electing is None:
            return None
        self.election.step_down()
        electing, self._electing = self._electing, None
        electing.cancel()
        return asyncio.create_task(_release_after(electing, self.election))

    async def stop(self) -> None:
        await self._supervisor.stop()
        self.discovery.close()
        self.readers.keep(())
        if self._reading is not None:
            self._reading.read(())
        await self.cluster.close()

    def _subject(self, source: PoolName) -> Subject:
        resource, found = pools(source.group), self.discovery.found_pool
        uid = "" if found is None else found.metadata.uid
        version = resource.api_version(resource.versions[0])
        return Subject(version, resource.kind, source.name, source.namespace, uid)

    def _problems(self, config_problem: str) -> Mapping[Topic, str]:
        lost = self.discovery.found_pool is None
        problems = [problem for watch in self.cluster.watches for problem in watch.problems]
        refused = [f"{problem.object}: {problem.reason}" for problem in problems]
        return {
            CONFIGURATION: message_of(config_problem.splitlines()),
            POOL: "there is no such pool, so it has no endpoints" if lost else "",
            ENDPOINTS: message_of([self.discovery.shortage]),
            OBJECTS: message_of([*refused, *self._policies.inputs.remarks]),
        }


def cluster_health(cluster: Cluster) -> dict[str, object]:
    """Return the state of the API server and its watches, for `/healthz`."""
    return {
        "server": cluster.api.server,
        **({"credentials": cluster.api.trouble} if cluster.api.trouble else {}),
        "watches": [
            {
                "resource": watch.collection.title,
                "state": str(watch.state),
                "objects": len(watch.objects),
                "stale_seconds": round(watch.stale_seconds, 1),
                **({"reason": watch.reason} if watch.reason else {}),
            }
            for watch in cluster.watches
        ],
    }


def hubs_health(hubs: Mapping[HubAccess, Cluster]) -> dict[str, object]:
    """Return the state of the hubs that plugins read, for `/healthz`; empty without hubs."""
    found = [{**hub._asdict(), **cluster_health(cluster)} for hub, cluster in hubs.items()]
    return {"hubs": found} if found else {}


async def _release_after(electing: asyncio.Task[None], election: LeaderElection) -> None:
    await asyncio.gather(electing, return_exceptions=True)
    await election.release()


def _election_health(election: LeaderElection) -> dict[str, object]:
    return {
        "lease": election.settings.name,
        "identity": election.lease.identity,
        "holder": election.lease.holder or None,
        "since": election.lease.since or None,
        **({"reason": election.problem} if election.problem else {}),
    }


_MOST_NODES = 100
"""Maximum number of nodes in one round; the pods of further nodes are listed in the next rounds."""
_ROUND_SECONDS = 60.0

_log = structlog.get_logger()


class IdleNodePods:
    """Lists the pods on nodes without endpoints, from the cache of the API server, for taggers with podsOnIdleNodes."""

    def __init__(self, api: KubeApi, plugins: Callable[[], Iterable[Plugin[Any]]]) -> None:
        """`plugins` returns the plugins of the configuration in effect."""
        self._api = api
        self._plugins = plugins

    async def follow(self) -> None:
        while True:
            for plugin in tuple(self._plugins()):
                if isinstance(plugin, AcceleratorTagger) and plugin.parameters.pods_on_idle_nodes:
                    await self.update(plugin)
            await asyncio.sleep(_ROUND_SECONDS)

    async def update(self, tagger: AcceleratorTagger) -> None:
        """List the pods on idle nodes of a tagger: first on nodes never listed, then on those listed longest ago."""
        names = dict.fromkeys(each.node for each in await asyncio.to_thread(tagger.idle_nodes))
        known = {name: pods for name, pods in tagger.pods_on_nodes.items() if name in names}  # the oldest first
        problem = ""
        try:
            for name in (*(each for each in names if each not in known), *known)[:_MOST_NODES]:
                found = await self._pods_on(name)
                known.pop(name, None)
                known[name] = found
        except (ApiError, ApiUnreachableError) as error:
            problem = f"{error}: allow list of pods in all namespaces, or set podsOnIdleNodes to false"
            if problem != tagger.pods_problem:
                _log.warning("pods of other namespaces not read, their devices count as idle", reason=problem)
        tagger.pods_on_nodes, tagger.pods_problem = known, problem

    async def _pods_on(self, node: str) -> tuple[Pod, ...]:
        fields = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
        selector = {"fieldSelector": fields, "resourceVersion": "0"}
        items = await list_objects(self._api, PODS, decode_object, selector=selector)
        pods = (item.object for item in items if isinstance(item.object, Pod))
        return tuple(pod for pod in pods if any(each.known for each in resource_requests(pod)))
