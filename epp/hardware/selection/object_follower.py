# SPDX-License-Identifier: Apache-2.0
"""The base of plugins that go by bounds in objects: reads them from files and from the cluster, and keeps them up."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import structlog
from typing_extensions import TypeVar

from epp.framework import Parameters
from epp.framework.cluster import ObjectKind, ObjectReader, ObjectsOfKind
from epp.framework.datalayer import AffectedEndpoints, Follower, no_endpoint
from epp.framework.plugin_status import InputState
from epp.hardware.selection.objectives import KINDS, Objectives, objectives_of
from epp.kube.objects.decode import decode_object
from epp.kube.objects.followed import Change, FollowedObjects
from epp.kube.objects.ome_services import selection_faults

_GRACE_PERIOD = "5m"
"""Time for which a file that is missing keeps its objects: as for accelerator objects, by default."""

_log = structlog.get_logger()


class ObjectParameters(Parameters, frozen=True):
    """Sources of objects."""

    paths: tuple[str, ...] = ()
    """Files, or directories of files (.yaml, .yml, .json), with objects that bound accelerators: InferenceService,
    ServingRuntime and ClusterServingRuntime of ome.io, InferenceObjective and InferencePool; new versions apply at
    once. AcceleratorClass objects among them tell which classes there are."""
    read_cluster: bool = True
    """Read these objects from the Kubernetes cluster of the pool as well, where there is one. Of two objects with one
    name, the one in a file counts."""
    pool_name: str = ""
    """The InferencePool in the files whose threshold counts; empty for all of them, and the strictest."""


OP = TypeVar("OP", bound=ObjectParameters, default=ObjectParameters)


class _Next(NamedTuple):
    change: Change
    objectives: Objectives


class ObjectFollower(ObjectReader[OP], Follower[OP]):
    """Keeps `objectives` up to date; a version of an object with an invalid value replaces no sound one."""

    decode = staticmethod(decode_object)

    def setup(self) -> None:
        """Read the files for the first time; raises ConfigurationError or ValueError for an invalid path."""
        self.objectives = Objectives()
        self._objects = FollowedObjects(
            self.parameters.paths, owner=self.name, grace_period=_GRACE_PERIOD, kinds=KINDS, judge=selection_faults
        )
        self._changing = asyncio.Lock()
        """Files and cluster change the objects one after the other."""
        self._read_first()

    def read_files(self, paths: Sequence[str]) -> None:
        """Read these files after those of the parameters."""
        if paths:
            self._objects.read_also(paths, "--objects")
            self._read_first()

    def _read_first(self) -> None:
        if (following := self._read()) is not None:
            self._apply(following)

    @property
    def inputs(self) -> InputState:
        """Files and objects that are not in effect, and values of objects that are ignored."""
        return replace(self._objects.inputs, ignored=self.objectives.ignored)

    @property
    def kinds(self) -> Sequence[ObjectKind]:
        """All kinds that bound accelerators."""
        return tuple(ObjectKind(*kind) for kind in sorted(KINDS)) if self.parameters.read_cluster else ()

    def can_read(self, kind: ObjectKind) -> bool:
        """Return whether it is one of these kinds."""
        return (kind.group, kind.kind) in KINDS

    async def follow_files(self) -> None:
        """Apply new versions of the files until cancelled."""
        if not self._objects.paths:
            return
        async for _ in self._objects.changes():
            await self.look()

    async def look(self) -> bool:
        """Read the files; return whether any of them, or its objects in effect, changed."""
        async with self._changing:
            following = await asyncio.to_thread(self._read)
            if following is not None:
                self._apply(following)
        return following is not None

    async def objects_changed(self, kinds: Sequence[ObjectsOfKind]) -> AffectedEndpoints:
        """Take objects of the cluster; they bear on requests, not on tags."""
        async with self._changing:
            self._apply(await asyncio.to_thread(self._with_cluster, kinds))
        return no_endpoint

    def _read(self) -> _Next | None:
        """Return what follows; None if nothing changed. Runs in a thread, so it changes no state."""
        change = self._objects.read(self.clock.now())
        return None if change is None else self._built(change)

    def _with_cluster(self, kinds: Sequence[ObjectsOfKind]) -> _Next:
        return self._built(self._objects.take(kinds))

    def _built(self, change: Change) -> _Next:
        return _Next(change, objectives_of(change.files, self.parameters.pool_name))

    def _apply(self, following: _Next) -> None:
        change, self.objectives = following
        self._objects.apply(change)
        inputs = self.inputs
        self._objects.tell(map(str, (*inputs.problems, *inputs.ignored)))
        _log.info(
            "objects that bound accelerators updated",
            plugin=self.name,
            services=len(self.objectives.services),
            objectives=len(self.objectives.by_objective),
            problems=len(inputs.problems) + len(inputs.ignored),
        )
