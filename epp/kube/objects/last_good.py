# SPDX-License-Identifier: Apache-2.0
"""Last valid versions of the objects in files, from one reading of the files to the next."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TypeVar, cast

import msgspec

from epp.framework.files import FileId, UnsettledVersion
from epp.framework.plugin_status import IgnoredValue, InputProblem
from epp.kube.objects.base import Object
from epp.kube.objects.decode import ALL_KINDS, Kinds, kinds_without_use, versions_in
from epp.kube.objects.ome_services import SERVICE_KINDS

_O = TypeVar("_O", bound=Object)


class FileObjects(msgspec.Struct, frozen=True, kw_only=True):
    """Objects of one file, each in its last valid version."""

    file: str
    held: tuple[Object, ...] = ()
    notes: tuple[str, ...] = ()
    unused: Mapping[tuple[str, str], int] = {}
    """Number of objects of unsupported kinds of known groups, by group and kind."""
    problems: tuple[InputProblem, ...] = ()
    rejected: int = 0
    """Number of rejected versions; repeated rejections of an object for the same reason count once."""
    missing_since: float | None = None
    """Time at which the file was first missing, by the clock of the caller."""

    def take(self, documents: Iterable[object], kinds: Kinds = ALL_KINDS) -> "FileObjects":
        """Return the state after a version of the file that could be parsed.

        Objects of other kinds are ignored. An object that is missing from the documents is removed, unless one of them
        has no readable identity, and so may be a version of it. An invalid version does not replace a sound one.
        """
        documents = tuple(documents)
        versions = tuple(versions_in(documents, kinds))
        present = {version.key for version in versions}
        sound = {version.key for version in versions if version.object is not None and not version.object.invalid}
        before = {each.key: each for each in self.held if each.key not in sound}
        held: list[Object] = []
        problems: list[InputProblem] = []
        for version in versions:
            found = version.object
            if found is not None and found.replaces(before.get(found.key)):
                held.append(found)
                continue
            may_be = [key for key in before if key == version.key or (version.key is None and key not in present)]
            kept = [before.pop(key) for key in may_be]
            held.extend(kept)
            reason = version.reason if found is None else found.invalid
            problems.append(InputProblem(self.file, version.title, reason, len(kept)))
        known = {(each.object, each.reason) for each in self.problems}
        return FileObjects(
            file=self.file,
            held=tuple(held),
            notes=tuple(f"{self.file}: {each.title} {each.note}" for each in versions if each.note),
            unused=kinds_without_use(documents),
            problems=tuple(problems),
            rejected=self.rejected + sum((each.object, each.reason) not in known for each in problems),
        )

    def reject(self, reason: str) -> "FileObjects":
        """Return the state after an unreadable version of the file: all objects are kept."""
        return msgspec.structs.replace(self.postpone(reason), rejected=self.rejected + 1)

    def postpone(self, reason: str) -> "FileObjects":
        """Return the state while a version of the file waits for a second read: all objects are kept."""
        problem = InputProblem(self.file, reason=reason, kept=len(self.held))
        return msgspec.structs.replace(self, problems=(problem,), missing_since=None)

    def miss(self, reason: str, now: float, grace_seconds: float) -> "FileObjects":
        """Return the state while the file is missing: its objects are kept for the grace period."""
        since = now if self.missing_since is None else self.missing_since
        if not self.held or now - since >= grace_seconds:
            return FileObjects(file=self.file, rejected=self.rejected)
        problem = InputProblem(self.file, reason=reason, kept=len(self.held))
        return msgspec.structs.replace(self, problems=(problem,), missing_since=since)


class FileVersion(msgspec.Struct, frozen=True):
    """A file as of its last read."""

    objects: FileObjects
    seen: bytes = b""
    """Digest of the content, or the read error; empty for a missing file."""
    file: FileId | None = None
    waiting: UnsettledVersion | None = None
    """Newest content while it waits for a second read."""
    effective: bytes = b""
    """Digest of the content in effect."""


_MOST_UNKNOWN = 100


def unknown_in(files: Iterable[FileObjects], *, without: Kinds = frozenset()) -> tuple[IgnoredValue, ...]:
    """Return at most 100 unknown fields by kind, except `without`, each with the first object that has it."""
    found: dict[tuple[str, str], list[IgnoredValue]] = defaultdict(list)
    for file in files:
        for held in file.held:
            if held.unknown_fields and (held.key.group, held.key.kind) not in without:
                kind = held.key.kind
                for sentence in held.unknown_fields:
                    found[kind, sentence].append(IgnoredValue(file.file, kind, held.id, sentence))
    return tuple(_first(same) for same in islice(found.values(), _MOST_UNKNOWN))


def _first(values: list[IgnoredValue]) -> IgnoredValue:
    others = len(values) - 1
    return replace(values[0], object=f"{values[0].object} and {others} more") if others else values[0]


class ObjectsByKind:
    """Objects of all files by kind and id, and their problems."""

    def __init__(self, files: Iterable[FileObjects]) -> None:
        self._files = tuple(files)
        self._found: defaultdict[type[Object], dict[str, Object]] = defaultdict(dict)
        self._places: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        """Files of each object, by kind and id."""
        for file in self._files:
            for held in file.held:
                self._found[type(held)][held.id] = held
                self._places[held.key.kind, held.id].append(file.file)
        self.problems = tuple(_repeated(*key, files) for key, files in self._places.items() if len(files) > 1)
        impossible = (
            IgnoredValue(file.file, held.key.kind, held.id, issue)
            for file in self._files
            for held in file.held
            if held.issues and self._found[type(held)][held.id] is held
            for issue in held.issues
        )
        self.ignored = (*impossible, *unknown_in(self._files, without=SERVICE_KINDS))

    def unused(self, groups: Collection[str]) -> Iterator[str]:
        """Yield a message for each unsupported kind of these groups."""
        counts: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        for file in self._files:
            for kind, count in file.unused.items():
                if kind[0] in groups:
                    counts[kind][file.file] = count
        for (group, name), by_file in sorted(counts.items()):
            counted = ", ".join(f"{count} in {file}" for file, count in by_file.items())
            yield f"objects of kind {name} ({group}) have no effect: {counted}"

    def file_of(self, kind: str, name: str) -> str:
        """Return the file of the object in effect; empty for an unknown object."""
        return next(reversed(self._places.get((kind, name), [])), "")

    def of(self, kind: type[_O]) -> dict[str, _O]:
        return cast("dict[str, _O]", self._found[kind])


def _repeated(kind: str, name: str, files: Iterable[str]) -> str:
    places = list(dict.fromkeys(files))
    if len(places) == 1:
        return f"{kind} {name} is repeated in {places[0]}: the last one is used; delete the others"
    return f"{kind} {name} is in {' and in '.join(places)}: the one in {places[-1]} is used; delete the others"
