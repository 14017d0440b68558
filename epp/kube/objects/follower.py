# SPDX-License-Identifier: Apache-2.0
"""Base of the plugins that keep a state built from objects in files and in the cluster."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Sequence

from epp.framework.cluster import ObjectReader, ObjectsOfKind
from epp.framework.datalayer import AffectedEndpoints
from epp.framework.plugin import P
from epp.kube.objects.decode import decode_object
from epp.kube.objects.followed import Change, FollowedObjects

Effect = Callable[[], AffectedEndpoints]
"""Puts a new state into effect, in the event loop; returns the affected endpoints."""


class FollowsObjects(ObjectReader[P]):
    """Builds its state in a thread, and puts it into effect in the event loop; one change at a time."""

    decode = staticmethod(decode_object)

    def start_following(self, objects: FollowedObjects) -> None:
        """Read the files for the first time; called by `setup`."""
        self._objects = objects
        self._changing = asyncio.Lock()
        """Serializes changes by files, cluster and time."""
        self._read_first()

    def read_files(self, paths: Sequence[str]) -> None:
        """Read files in addition to those of the parameters."""
        if paths:
            self._objects.read_also(paths, "--objects")
            self._read_first()

    async def look(self) -> AffectedEndpoints | None:
        """Read the files; return the affected endpoints, None without a change."""
        async with self._changing:
            effect = await asyncio.to_thread(self._read)
            return None if effect is None else effect()

    async def objects_changed(self, kinds: Sequence[ObjectsOfKind]) -> AffectedEndpoints:
        """Apply changed objects of the cluster; return the affected endpoints."""
        async with self._changing:
            return (await asyncio.to_thread(self._with_cluster, kinds))()

    @abstractmethod
    def effect_of(self, change: Change, kinds: Sequence[ObjectsOfKind] = ()) -> Effect:
        """Build the state of these objects, in a thread and without side effects, for `Effect` to apply.

        `kinds` are the changes in the cluster; empty for a change of files.
        """

    def _read_first(self) -> None:
        if (effect := self._read()) is not None:
            effect()

    def _read(self) -> Effect | None:
        """Return the effect of the files, None without a change."""
        change = self._objects.read(self.clock.now())
        return None if change is None else self.effect_of(change)

    def _with_cluster(self, kinds: Sequence[ObjectsOfKind]) -> Effect:
        return self.effect_of(self._objects.take(kinds), kinds)
