# SPDX-License-Identifier: Apache-2.0
"""Objects in files and in a cluster, kept up to date in their last good versions."""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from epp.framework.cluster import ObjectKind, ObjectsOfKind
from epp.framework.inputs import InputProblem, InputState
from epp.kube.objects.base import Object
from epp.kube.objects.decode import Kinds, ObjectKey
from epp.kube.objects.files import ObjectFiles
from epp.kube.objects.last_good import FileObjects, ObjectInEffect, ObjectVersions, Validator, no_faults, replaces
from epp.kube.objects.limits import vetted
from epp.runtime.watch import changes

_MOST_WARNINGS = 100

_log = structlog.get_logger()
SOURCE = "cluster"
"""Stands for the cluster where problems name a file."""
_MOST_PROBLEMS = 100


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
        validate: Validator = no_faults,
        previous: "ObjectSource | None" = None,
    ) -> None:
        """Read nothing yet; raises ConfigurationError for a path that does not exist.

        `owner` is in log lines, and `setting`, where the paths are written, in messages. Problems that the `previous`
        source of the owner has logged are not logged again.
        """
        self._files = ObjectFiles(paths, setting)
        self._versions = ObjectVersions(grace_period, validate, kinds, setting)
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


class _Kind(msgspec.Struct, frozen=True):
    """Objects of one kind."""

    held: Mapping[str, ObjectInEffect] = {}
    faulty: Mapping[str, InputProblem] = {}
    """Objects of which an earlier version is in effect, as the newest has invalid values."""
    undecodable: tuple[InputProblem, ...] = ()

    @property
    def problems(self) -> tuple[InputProblem, ...]:
        return (*self.undecodable, *self.faulty.values())


class ClusterObjects(msgspec.Struct, frozen=True):
    """The objects of all kinds that are read; `take` returns the next state."""

    kinds: Mapping[ObjectKind, _Kind] = {}
    rejected: int = 0
    """Rejected versions of objects; one rejected again for the same reason counts once."""

    def __bool__(self) -> bool:
        """Whether any kind was read."""
        return bool(self.kinds)

    @property
    def inputs(self) -> InputState:
        """Versions that are not in effect, and the number of rejected versions."""
        problems = [problem for kind in self.kinds.values() for problem in kind.problems]
        return InputState(tuple(problems[:_MOST_PROBLEMS]), {SOURCE: self.rejected} if self else {})

    def find(self, kind: ObjectKind, name: str) -> Object | None:
        """Return the version in effect of an object."""
        held = self.kinds.get(kind, _Kind()).held.get(name)
        return None if held is None else held.object

    def take(self, kinds: Iterable[ObjectsOfKind], validate: Validator = no_faults) -> "ClusterObjects":
        """Return the state after changes; an object with an invalid value only replaces one that has one too."""
        found = dict(self.kinds)
        rejected = self.rejected
        for each in kinds:
            before = found.get(each.kind, _Kind())
            now = found[each.kind] = _taken(each, before, validate)
            known = {(problem.object, problem.reason) for problem in before.problems}
            rejected += sum((problem.object, problem.reason) not in known for problem in now.problems)
        return ClusterObjects(found, rejected)

    def as_file(self, *, without: Collection[ObjectKey] = ()) -> FileObjects:
        """Return the objects as those of a file, without some."""
        kinds = {kind[:2]: objects for kind, objects in self.kinds.items()}.values()  # one that is read twice, once
        inputs = self.inputs
        return FileObjects(
            file=SOURCE,
            held=tuple(each for kind in kinds for each in kind.held.values() if not without or each.key not in without),
            problems=inputs.problems,
            rejected=self.rejected,
        )


def _taken(each: ObjectsOfKind, before: _Kind, validate: Validator) -> _Kind:
    held: dict[str, ObjectInEffect] = {}
    faulty: dict[str, InputProblem] = {}
    for name, found in each.objects.items():
        earlier = before.held.get(name)
        if earlier is not None and name not in each.changed:
            held[name] = earlier
            if name in before.faulty:
                faulty[name] = before.faulty[name]
            continue
        if not isinstance(found, Object):
            continue
        kept, issues = vetted(found)
        reason = "; ".join(validate(kept))
        if replaces(reason, earlier):
            key = ObjectKey(each.kind.group, each.kind.kind, found.metadata.namespace, found.name)
            held[name] = ObjectInEffect(key, kept, sound=not reason, issues=issues)
        elif earlier is not None:
            held[name] = earlier
            faulty[name] = InputProblem(SOURCE, f"{each.kind.kind} {name}", reason, 1)
    return _Kind(held, faulty, each.problems)


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
        validate: Validator = no_faults,
    ) -> None:
        """Read nothing yet; raises ConfigurationError for a path that does not exist."""
        self._validate = validate
        self._cluster = ClusterObjects()

        def source(paths: Sequence[str], setting: str = "paths", previous: ObjectSource | None = None) -> ObjectSource:
            return ObjectSource(
                paths,
                owner=owner,
                setting=setting,
                grace_period=grace_period,
                kinds=kinds,
                validate=validate,
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
        return self._change(None, self._cluster.take(kinds, self._validate))

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
