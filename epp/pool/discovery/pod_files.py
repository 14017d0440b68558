# SPDX-License-Identifier: Apache-2.0
"""Endpoints of the pods in files of Kubernetes objects."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated

import msgspec
import structlog

from epp.framework.clock import Clock
from epp.framework.datalayer import Discovery, Pool
from epp.framework.endpoint import LabelSelector
from epp.framework.errors import ConfigurationError
from epp.framework.plugin import Parameters
from epp.framework.plugin_status import InputState
from epp.framework.quantities import duration_setting
from epp.kube.objects.base import Object
from epp.kube.objects.core import Pod
from epp.kube.objects.followed import FollowedObjects
from epp.kube.objects.inference import POOL_GROUP, InferencePool
from epp.pool.discovery.pods import Chosen, PodChoice, choose
from epp.runtime.followed_files import changes

_KINDS = frozenset({("", "Pod"), ("", "Node"), (POOL_GROUP, "InferencePool")})

_log = structlog.get_logger()

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class PodFileParameters(Parameters, frozen=True):
    """The files, and the selection of their pods."""

    paths: tuple[str, ...]
    """Files, or directories of files (.yaml, .yml, .json), with Pods and optionally Nodes and InferencePools, in the
    format of `kubectl get nodes,pods,inferencepools -o yaml`."""
    pool: str = ""
    """Name, or `namespace/name`, of the InferencePool with the labels and ports of the pods; by default the only
    InferencePool in the files."""
    namespace: str = ""
    """Namespace of the pods and of the InferencePool; by default any."""
    selector: Mapping[str, str] | str = msgspec.field(default_factory=dict)
    """Labels of the pods, or a label selector such as `app in (a, b), !old`, which replace an InferencePool. Without
    selector and InferencePool, the pods that request accelerators are selected, except for pods of Jobs."""
    target_ports: tuple[Port, ...] = ()
    """Ports of the pods that the selector selects; by default, for each pod, its containerPort, or its argument
    `--port`, or 8000."""
    cluster: str = ""
    """Name of the cluster of the files; empty for the local cluster."""
    watch_files: bool = True
    """Apply new versions of the files within a second."""
    missing_file_grace_period: str = "5m"
    """Time for which the pods of a missing or empty file are kept; `0s` removes them immediately."""

    def __post_init__(self) -> None:
        if not self.paths:
            raise ValueError("paths is empty: write the files or directories with the pods")
        if self.pool and (self.selector or self.target_ports):
            raise ValueError("pool has its own selector and targetPorts: leave out pool, or the other two")
        self.labels  # noqa: B018  raises ValueError
        duration_setting("missingFileGracePeriod", self.missing_file_grace_period, positive=False)

    @property
    def labels(self) -> LabelSelector:
        """The selector; raises ValueError for malformed text."""
        return LabelSelector.parse(self.selector) if isinstance(self.selector, str) else LabelSelector.of(self.selector)


class PodFileDiscovery(Discovery[PodFileParameters]):
    """The ready pods in files of Kubernetes objects.

    An invalid new version of a file or an object has no effect, and neither has the removal of the InferencePool.
    """

    plugin_type = "pod-file-discovery"

    def __init__(
        self,
        parameters: PodFileParameters,
        *,
        name: str = "",
        clock: Clock | None = None,
        setting: str = "paths",
        every_pool: bool = False,
    ) -> None:
        """Prepare, without reading files; messages refer to the paths by the name `setting`."""
        super().__init__(parameters, name=name, clock=clock)
        self._choice = PodChoice(
            pool=parameters.pool,
            namespace=parameters.namespace,
            labels=parameters.labels,
            ports=parameters.target_ports,
            every_pool=every_pool,
            cluster=parameters.cluster,
        )
        self._source = FollowedObjects(
            parameters.paths,
            owner=self.name,
            setting=setting,
            grace_period=parameters.missing_file_grace_period,
            kinds=_KINDS,
        )
        self.chosen = Chosen()
        """The pods in effect."""

    @property
    def inputs(self) -> InputState:
        return self._source.inputs

    async def start(self, pool: Pool) -> None:
        """Fill the pool; raises ConfigurationError for a missing or ambiguous selection."""
        if (change := await asyncio.to_thread(self._source.read, self.clock.now())) is not None:
            self._source.apply(change)
        if not any(isinstance(each, Pod | InferencePool) for each in self._objects()):
            files = ", ".join(self.parameters.paths)
            raise ConfigurationError(
                f"no endpoints to pick from: there is neither a Pod nor an InferencePool in {files}: write the output "
                "of kubectl get nodes,pods -o yaml there, or name the endpoints in another way"
            )
        self.chosen = await asyncio.to_thread(self._choose)
        self._put(pool)

    async def follow(self, pool: Pool) -> None:
        if not self.parameters.watch_files:
            await asyncio.Event().wait()
        async for _ in changes():
            await self.check(pool)

    async def check(self, pool: Pool) -> None:
        """Apply the files if any of them changed."""
        change = await asyncio.to_thread(self._source.read, self.clock.now())
        if change is None:
            return
        self._source.apply(change)
        before = self.chosen
        try:
            self.chosen = await asyncio.to_thread(self._choose)
        except ConfigurationError as error:
            self._log_problems(f"pool unchanged: {error}")
            return
        if self.chosen.endpoints == before.endpoints:
            self._log_problems()
        else:
            self._put(pool)

    def _choose(self) -> Chosen:
        """Return the selected pods; raises ConfigurationError. Runs in a thread, so it has no side effects."""
        return choose(self._objects(), self._choice)

    def _objects(self) -> Iterator[Object]:
        return (held for file in self._source.present.files for held in file.held)

    def _put(self, pool: Pool) -> None:
        pool.replace(self.chosen.endpoints)
        if len(self.chosen.pools) == 1 and not self._choice.every_pool:
            self._choice = replace(self._choice, pool=self.chosen.pools[0])  # for the life of the process
        self._log_problems()
        log = _log.info if self.chosen.endpoints else _log.warning
        log("pods in files selected", pods=self.chosen.title, endpoints=len(self.chosen.endpoints))

    def _log_problems(self, *more: str) -> None:
        self._source.report((*self.inputs.sentences, *self.chosen.remarks, *more))
