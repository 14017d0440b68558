# SPDX-License-Identifier: Apache-2.0
"""Followed files of objects: the objects in effect, and log lines for objects that are not."""

from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import structlog

from epp.framework.plugin_status import InputState
from epp.kube.objects.decode import Kinds
from epp.kube.objects.files.last_good import FileObjects, ObjectVersions
from epp.kube.objects.files.reading import ObjectFiles
from epp.kube.objects.object_in_effect import Judge, no_faults
from epp.runtime.followed_files import changes

_MOST_WARNINGS = 100

_log = structlog.get_logger()


class ObjectSource:
    """Objects of some kinds in files, each in its last good version.

    `read` may run in a thread and changes nothing; `apply` puts what it returned into effect, and `tell` logs problems.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        owner: str,
        setting: str,
        grace_period: str,
        kinds: Kinds | None = None,
        judge: Judge = no_faults,
        previous: "ObjectSource | None" = None,
    ) -> None:
        """Read nothing yet; raises ConfigurationError for a path that does not exist.

        `owner` is in log lines, and `setting`, where the paths are written, in messages. Problems that the `previous`
        source of the owner has logged are not logged again.
        """
        self._files = ObjectFiles(paths, setting)
        self._versions = ObjectVersions(grace_period, judge, kinds, setting)
        self._owner = owner
        self._problems: frozenset[str] = frozenset() if previous is None else previous.told

    @property
    def inputs(self) -> InputState:
        """Versions that are not in effect."""
        return self._versions.inputs

    @property
    def told(self) -> frozenset[str]:
        """Problems that are logged already."""
        return self._problems

    @property
    def paths(self) -> Sequence[Path]:
        """Files and directories that are read."""
        return self._files.paths

    @property
    def objects(self) -> list[FileObjects]:
        """Objects in effect."""
        return self.in_order(self._versions)

    def read(self, now: float) -> ObjectVersions | None:
        """Read the files; return the versions that follow, None if nothing changed."""
        versions = self._versions.after(self._files.read(self._versions.files), now)
        return None if versions == self._versions else versions

    def in_order(self, versions: ObjectVersions) -> list[FileObjects]:
        """Return the objects by file: of two with one name, the one in the later file counts."""
        return versions.in_order(self._files.order)

    def apply(self, versions: ObjectVersions) -> None:
        """Put versions into effect; log what was removed."""
        before, self._versions = self._versions.files, versions
        for file, version in before.items():
            if version.objects.missing_since is not None and not versions.has_objects(file):
                count = len(version.objects.held)
                _log.warning("objects of a missing file removed", plugin=self._owner, file=str(file), objects=count)

    def tell(self, problems: Iterable[str]) -> None:
        """Log the problems that were not there before; at most 100."""
        found = list(dict.fromkeys(problems))
        new = [problem for problem in found if problem not in self._problems]
        self._problems = frozenset(found)
        for problem in new[:_MOST_WARNINGS]:
            _log.warning("object problem", plugin=self._owner, problem=problem)

    async def changes(self) -> AsyncIterator[None]:
        """Yield whenever the files may have changed, endlessly."""
        async for _ in changes(*self._files.paths):
            yield
