# SPDX-License-Identifier: Apache-2.0
"""Objects of some kinds in files and in a cluster, as one: of two with one name, the one in a file counts."""

from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from epp.framework.cluster import ObjectsOfKind
from epp.framework.plugin_status import InputState
from epp.kube.objects.cluster_objects import ClusterObjects
from epp.kube.objects.decode import Kinds
from epp.kube.objects.files.last_good import FileObjects, ObjectVersions
from epp.kube.objects.files.source import ObjectSource
from epp.kube.objects.object_in_effect import Judge, no_faults


class Change(NamedTuple):
    """A new state of the objects, not in effect yet."""

    versions: ObjectVersions | None
    """None where the files are as before."""
    cluster: ClusterObjects
    files: tuple[FileObjects, ...]
    """All objects: those of the cluster, then those of the files."""


class FollowedObjects:
    """Objects in files and in a cluster.

    `read` and `take` may run in a thread and change nothing; `apply` puts what they returned into effect, and `tell`
    logs problems.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        owner: str,
        grace_period: str,
        kinds: Kinds,
        judge: Judge = no_faults,
    ) -> None:
        """Read nothing yet; raises ConfigurationError for a path that does not exist."""
        self._judge = judge
        self._cluster = ClusterObjects()

        def source(paths: Sequence[str], setting: str = "paths", previous: ObjectSource | None = None) -> ObjectSource:
            return ObjectSource(
                paths,
                owner=owner,
                setting=setting,
                grace_period=grace_period,
                kinds=kinds,
                judge=judge,
                previous=previous,
            )

        self._new_source = source
        self._given = tuple(paths)
        self._source = source(paths)

    @property
    def paths(self) -> Sequence[Path]:
        """Files and directories that are read."""
        return self._source.paths

    @property
    def cluster(self) -> ClusterObjects:
        """Objects of the cluster."""
        return self._cluster

    @property
    def present(self) -> Change:
        """The state in effect."""
        return self._change(None, self._cluster)

    def read_also(self, paths: Sequence[str], setting: str) -> None:
        """Read these files after the others from now on, and all of them again; raises ConfigurationError.

        `setting` is where the paths are written, for messages.
        """
        self._source = self._new_source((*self._given, *paths), setting, self._source)

    @property
    def inputs(self) -> InputState:
        """Files and objects whose newest versions are not in effect; those of the cluster under its name."""
        files, cluster = self._source.inputs, self._cluster.inputs
        return InputState((*files.problems, *cluster.problems), {**files.rejected, **cluster.rejected})

    def read(self, now: float) -> Change | None:
        """Read the files; return what follows, None if nothing changed."""
        versions = self._source.read(now)
        return None if versions is None else self._change(versions, self._cluster)

    def take(self, kinds: Iterable[ObjectsOfKind]) -> Change:
        """Return what follows from a change in the cluster."""
        return self._change(None, self._cluster.take(kinds, self._judge))

    def apply(self, change: Change) -> None:
        """Put a state into effect."""
        self._cluster = change.cluster
        if change.versions is not None:
            self._source.apply(change.versions)

    def tell(self, problems: Iterable[str]) -> None:
        """Log the problems that were not there before; at most 100."""
        self._source.tell(problems)

    async def changes(self) -> AsyncIterator[None]:
        """Yield whenever the files may have changed, endlessly."""
        async for _ in self._source.changes():
            yield

    def _change(self, versions: ObjectVersions | None, cluster: ClusterObjects) -> Change:
        files = self._source.objects if versions is None else self._source.in_order(versions)
        own = {held.key for file in files for held in file.held}
        return Change(versions, cluster, (cluster.as_file(without=own), *files))
