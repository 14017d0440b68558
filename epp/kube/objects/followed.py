# SPDX-License-Identifier: Apache-2.0
"""Last valid versions of objects in files and in a cluster, and the base of plugins that follow them."""

import asyncio
import hashlib
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from epp.framework.cluster_objects import ObjectKind, ObjectReader, ObjectsOfKind
from epp.framework.datalayer import AffectedEndpoints, Follower
from epp.framework.files import FileContent, doubt, next_wait
from epp.framework.plugin import P
from epp.framework.plugin_status import IgnoredValue, InputProblem, InputState
from epp.framework.quantities import parse_duration
from epp.kube.objects.base import Object, ObjectKey
from epp.kube.objects.decode import Kinds, decode_object
from epp.kube.objects.files import ObjectFiles, parse
from epp.kube.objects.last_good import FileObjects, FileVersion, unknown_in
from epp.runtime.followed_files import changes

_MOST_WARNINGS = 100

_log = structlog.get_logger()
SOURCE = "cluster"
"""File name for the objects of API servers."""
_MOST_PROBLEMS = 100


class ClusterObjects(msgspec.Struct, frozen=True):
    """Objects of a cluster by kind; `take` returns the next state."""

    kinds: Mapping[ObjectKind, ObjectsOfKind] = {}
    rejected: Mapping[str, int] = {}
    """Number of rejected versions by `place` of the kind; repeated rejections for the same reason count once."""

    def __bool__(self) -> bool:
        return bool(self.kinds)

    @property
    def inputs(self) -> InputState:
        problems = [problem for each in self.kinds.values() for problem in each.problems]
        return InputState(tuple(problems[:_MOST_PROBLEMS]), self.rejected)

    def find(self, kind: ObjectKind, name: str) -> Object | None:
        return self.kinds[kind].objects.get(name) if kind in self.kinds else None

    def take(self, kinds: Iterable[ObjectsOfKind]) -> "ClusterObjects":
        """Return the state after changes."""
        found = dict(self.kinds)
        rejected = dict(self.rejected)
        for each in kinds:
            before = found.get(each.kind, ObjectsOfKind(each.kind, {}))
            known = {(problem.object, problem.reason) for problem in before.problems}
            new = sum((problem.object, problem.reason) not in known for problem in each.problems)
            rejected[each.kind.place] = rejected.get(each.kind.place, 0) + new
            found[each.kind] = each
        return ClusterObjects(found, rejected)

    def as_file(self, *, without: Collection[ObjectKey] = ()) -> FileObjects:
        """Return the objects as a file, except some keys; objects of a hub replace those of the cluster."""
        kinds = sorted(self.kinds.values(), key=lambda each: each.kind.hub is not None)
        held = {found.key: found for each in kinds for found in each.objects.values()}
        return FileObjects(
            file=SOURCE,
            held=tuple(each for key, each in held.items() if key not in without),
            problems=self.inputs.problems,
            rejected=sum(self.rejected.values()),
        )


class Change(NamedTuple):
    """A new state of the objects that is not in effect yet."""

    versions: Mapping[Path, FileVersion] | None
    """None if the files are unchanged."""
    cluster: ClusterObjects
    files: tuple[FileObjects, ...]
    """Objects of the cluster, then those of the files."""
    unknown: tuple[IgnoredValue, ...] = ()


class FollowedObjects:
    """Objects in files and in a cluster; an object in a file replaces an object of the cluster with the same name.

    `read` and `take` have no side effects and may run in a thread; `apply` puts their result into effect; `tell` logs
    problems.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        owner: str,
        grace_period: str,
        kinds: Kinds,
        setting: str = "paths",
    ) -> None:
        """Check the paths; raises ConfigurationError with `setting` for a missing one. `owner` is for log lines."""
        self.kinds = kinds
        """Kinds of the objects, by group and name."""
        self._owner = owner
        self._grace_period = grace_period
        self._paths = tuple(paths)
        self._files = ObjectFiles(paths, setting)
        self._setting = setting
        self._versions: Mapping[Path, FileVersion] = {}
        self.cluster = ClusterObjects()
        self._unknown: tuple[IgnoredValue, ...] = ()
        self._logged: frozenset[str] = frozenset()

    @property
    def paths(self) -> Sequence[Path]:
        return self._files.paths

    @property
    def present(self) -> Change:
        return self._change(None, self.cluster)

    @property
    def inputs(self) -> InputState:
        """Rejected versions of files and objects, and unknown fields; the cluster has the file name `cluster`."""
        files, cluster = [each.objects for each in self._versions.values()], self.cluster.inputs
        problems = (*(problem for each in files for problem in each.problems), *cluster.problems)
        rejected = {**{each.file: each.rejected for each in files}, **cluster.rejected}
        return InputState(problems, rejected, self._unknown)

    def read_also(self, paths: Sequence[str], setting: str) -> None:
        """Add files after the configured ones; raises ConfigurationError with the setting that names them."""
        self._files = ObjectFiles((*self._paths, *paths), setting)
        self._setting, self._versions = setting, {}

    def read(self, now: float) -> Change | None:
        """Read the files; return the new state, None without a change."""
        reading = self._files.read(self._versions)
        versions: dict[Path, FileVersion] = {}
        for file in sorted({*self._versions, *reading.contents, *reading.unreadable, *reading.lost}):
            before = self._versions.get(file) or FileVersion(FileObjects(file=str(file)))
            if file in reading.contents:
                versions[file] = self._with_content(file, before, reading.contents[file], now)
            elif file in reading.unreadable:
                seen = reading.unreadable[file].encode()
                rejected = before.objects.reject(reading.unreadable[file])
                new = FileVersion(rejected, seen, before.file, effective=before.effective)
                versions[file] = before if seen == before.seen else new
            elif (missed := self._missed(before, reading.reason_missing(file), now)).held:
                versions[file] = FileVersion(missed, b"", before.file, effective=before.effective)
            elif file in reading.lost:
                reason = f"{reading.lost[file]}: restore it, or remove it from `{self._setting}`"
                problem = InputProblem(missed.file, reason=reason)
                versions[file] = FileVersion(msgspec.structs.replace(missed, problems=(problem,)))
        return None if versions == self._versions else self._change(versions, self.cluster)

    def take(self, kinds: Iterable[ObjectsOfKind]) -> Change:
        return self._change(None, self.cluster.take(kinds))

    def apply(self, change: Change) -> None:
        """Put a state into effect; log removed files."""
        self.cluster, self._unknown = change.cluster, change.unknown
        if change.versions is None:
            return
        before, self._versions = self._versions, change.versions
        for file, version in before.items():
            now = self._versions.get(file)
            if version.objects.missing_since is not None and (now is None or not now.objects.held):
                count = len(version.objects.held)
                _log.warning("objects of a missing file removed", plugin=self._owner, file=str(file), objects=count)

    def report(self, problems: Iterable[str]) -> None:
        """Log new problems, at most 100."""
        found = list(dict.fromkeys(problems))
        new = [problem for problem in found if problem not in self._logged]
        self._logged = frozenset(found)
        for problem in new[:_MOST_WARNINGS]:
            _log.warning("object problem", plugin=self._owner, problem=problem)

    def _with_content(self, file: Path, before: FileVersion, content: FileContent, now: float) -> FileVersion:
        seen = hashlib.blake2b(content.data).digest()
        if not content.data.strip() and before.objects.held:  # another process may be writing it
            missed = self._missed(before, "it is empty", now)
            if missed.held:
                return FileVersion(missed, b"", content.file, effective=before.effective)
            return FileVersion(missed.take(()), seen)
        if seen == before.seen and (before.waiting is None or not before.waiting.is_over(now)):
            return before
        try:
            objects = before.objects.take(parse(file, content.data), self.kinds)
        except ValueError as error:
            return FileVersion(before.objects.reject(str(error)), seen, content.file, effective=before.effective)
        held, held_before = len(objects.held), len(before.objects.held)
        reason = doubt(in_place=content.file == before.file, entries=held, entries_before=held_before)
        if reason and held_before and seen != before.effective:
            waiting = before.waiting if seen == before.seen else next_wait(before.waiting, seen, now)
            if waiting is None or not waiting.is_over(now):
                return FileVersion(before.objects.postpone(reason), seen, content.file, waiting, before.effective)
        return FileVersion(objects, seen, content.file, effective=seen)

    def _missed(self, before: FileVersion, reason: str, now: float) -> FileObjects:
        reason = f"{reason}: restore it; its objects are removed once it has been missing for {self._grace_period}"
        return before.objects.miss(reason, now, parse_duration(self._grace_period))

    def _change(self, versions: Mapping[Path, FileVersion] | None, cluster: ClusterObjects) -> Change:
        of_files = self._versions if versions is None else versions
        files = [of_files[file].objects for file in sorted(of_files, key=self._files.order)]
        own = {held.key for file in files for held in file.held}
        objects = (cluster.as_file(without=own), *files)
        return Change(versions, cluster, objects, unknown_in(objects))


Effect = Callable[[], AffectedEndpoints]
"""Assigns a new state, in the event loop; returns the affected endpoints."""


class FollowsObjects(ObjectReader[P], Follower[P]):
    """A plugin that builds its state in a thread and applies it in the event loop, one change at a time."""

    decode = staticmethod(decode_object)

    def start_following(self, paths: Sequence[str], kinds: Kinds, *, grace_period: str = "5m") -> None:
        """Read the files for the first time; called by `setup`. Raises ConfigurationError for a missing path.

        `grace_period` is the time for which the objects of a missing file stay in effect.
        """
        self._objects = FollowedObjects(paths, owner=self.name, grace_period=grace_period, kinds=kinds)
        self._changing = asyncio.Lock()
        """Serializes changes by files, cluster and time."""
        self._read_first()

    @property
    def inputs(self) -> InputState:
        return self._objects.inputs

    @property
    def sentences(self) -> Sequence[str]:
        """Sentences about `inputs` for the log."""
        return self.inputs.sentences

    @property
    def kinds(self) -> Sequence[ObjectKind]:
        return tuple(ObjectKind(*kind) for kind in sorted(self._objects.kinds))

    def can_read(self, kind: ObjectKind) -> bool:
        return (kind.group, kind.kind) in self._objects.kinds

    async def follow(self, changed: Callable[[AffectedEndpoints], None]) -> None:
        """Apply new versions of the files until cancelled; return at once if there are no files."""
        if self._objects.paths:
            async for _ in changes():
                if (affected := await self.check()) is not None:
                    changed(affected)

    def read_files(self, paths: Sequence[str]) -> None:
        """Read further files, after those of the parameters."""
        if paths:
            self._objects.read_also(paths, "--objects")
            self._read_first()

    async def check(self) -> AffectedEndpoints | None:
        """Read the files; return the affected endpoints, None without a change."""
        async with self._changing:
            effect = await asyncio.to_thread(self._read)
            if effect is None:
                return None
            affected = effect()
            _log.info("objects of files updated", plugin=self.name, problems=len(self.sentences))
            return affected

    async def objects_changed(self, kinds: Sequence[ObjectsOfKind]) -> AffectedEndpoints:
        """Apply changed objects of the cluster; return the affected endpoints."""
        async with self._changing:
            effect = await asyncio.to_thread(lambda: self._whole_effect_of(self._objects.take(kinds), kinds))
            return effect()

    @abstractmethod
    def effect_of(self, change: Change, kinds: Sequence[ObjectsOfKind] = ()) -> Effect:
        """Build the plugin's state from these objects, in a thread and without side effects, for `Effect` to assign.

        `kinds` are the changes in the cluster; empty for a change of files. The objects are in effect before the state.
        """

    def put_into_effect(self, change: Change, effect: Effect) -> AffectedEndpoints:
        """Apply the objects and the state of the plugin, and log new sentences; return the affected endpoints."""
        self._objects.apply(change)
        affected = effect()
        self._objects.report(self.sentences)
        return affected

    def _whole_effect_of(self, change: Change, kinds: Sequence[ObjectsOfKind] = ()) -> Effect:
        return partial(self.put_into_effect, change, self.effect_of(change, kinds))

    def _read_first(self) -> None:
        if (effect := self._read()) is not None:
            effect()

    def _read(self) -> Effect | None:
        """Return the effect of the files, None without a change."""
        change = self._objects.read(self.clock.now())
        return None if change is None else self._whole_effect_of(change)
