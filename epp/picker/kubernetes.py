# SPDX-License-Identifier: Apache-2.0
"""What a picker needs of a Kubernetes cluster: its pool, and the state of the watches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from epp.director import Director
from epp.discovery import PodDiscovery, PodTarget, PoolName
from epp.framework.clock import Clock
from epp.framework.datalayer import Discovery
from epp.framework.inputs import InputProblem
from epp.framework.plugin import Parameters
from epp.kube.access import KubeApi
from epp.kube.cluster import Cluster
from epp.kube.watched import Watched
from epp.policies import PoolIdentity
from epp.policies.cluster import ClusterPolicies
from epp.supervisor import Supervisor, TaskObserver

_PROBLEMS_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """A pool in a Kubernetes cluster."""

    namespace: str
    source: PoolName | PodTarget
    """The InferencePool, or the pods themselves."""
    kubeconfig: Path | None = None
    """None for KUBECONFIG, the service account of the pod, or `~/.kube/config`."""


class Kubernetes:
    """The part of a picker that reads a cluster."""

    def __init__(self, settings: KubernetesSettings, clock: Clock, *, observer: TaskObserver) -> None:
        """Find the API server; raises ConfigurationError where there is no access."""
        self._supervisor = Supervisor(observer=observer)
        self.cluster = Cluster(KubeApi(settings.kubeconfig), clock=clock, supervisor=self._supervisor)
        self._pool = PoolIdentity(namespace=settings.namespace)
        if isinstance(settings.source, PoolName):
            self._pool = PoolIdentity(settings.source.name, settings.source.group, settings.namespace)
        self.discovery: Discovery[Parameters] = PodDiscovery(self.cluster, settings.namespace, settings.source)

    @property
    def watches(self) -> Sequence[Watched[Any]]:
        """All watches; may be read in any thread."""
        return self.cluster.watches

    @property
    def health(self) -> dict[str, object]:
        """The API server and the watches, for `/healthz`."""
        return {
            "server": self.cluster.api.server,
            "watches": [
                {
                    "resource": watch.title,
                    "state": str(watch.state),
                    "objects": len(watch.objects),
                    "stale_seconds": round(watch.stale_seconds, 1),
                    **({"reason": watch.reason} if watch.reason else {}),
                }
                for watch in self.watches
            ],
            "not_in_effect": list(islice(map(str, self._problems), _PROBLEMS_SHOWN)),
            "failing_tasks": dict(self._supervisor.failing),
        }

    @property
    def _problems(self) -> Iterator[InputProblem]:
        """Objects whose newest version cannot be used."""
        return chain.from_iterable(watch.problems for watch in self.watches)

    async def start(self, director: Director) -> None:
        """Apply the policies of the pool, now and whenever they change."""
        policies = ClusterPolicies(self.cluster, self._pool, self._pool.namespace, director.use_policies)
        await policies.start()
        self._supervisor.start("policies", policies.follow)

    async def stop(self) -> None:
        """End all watches and close all connections."""
        await self.cluster.close()
        await self._supervisor.stop()
