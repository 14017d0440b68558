# SPDX-License-Identifier: Apache-2.0
"""Last valid versions of the objects in files, from one reading of the files to the next."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

import msgspec

from epp.framework.files import FileContent, FileId, UnsettledVersion, doubt, next_wait
from epp.framework.plugin_status import IgnoredValue, InputProblem, InputState
from epp.framework.quantities import parse_duration
from epp.kube.objects.base import Object
from epp.kube.objects.decode import Kinds, ObjectKey, Version, kinds_without_use, versions_in
from epp.kube.objects.files import Reading, parse
from epp.kube.objects.limits import sanitized
from epp.kube.objects.ome_services import SERVICE_KINDS

Validator = Callable[[Object], Iterable[str]]
"""Returns field, value and remedy of each invalid value of a decoded object."""
_O = TypeVar("_O", bound=Object)


def no_faults(_object: Object) -> Iterable[str]:
    """Accept all values that can be decoded."""
    return ()


class ObjectInEffect(NamedTuple):
    key: ObjectKey
    object: Object
    sound: bool
    issues: tuple[str, ...] = ()
    """Field, value and remedy of each impossible value; the object is used without it."""


def checked(key: ObjectKey, found: Object, validate: Validator) -> tuple[ObjectInEffect, str]:
    """Return a version without its impossible values, and the reason against it, empty for a valid version."""
    kept, issues = sanitized(found)
    reason = "; ".join(validate(kept))
    return ObjectInEffect(key, kept, sound=not reason, issues=issues), reason


def replaces(version: ObjectInEffect, earlier: ObjectInEffect | None) -> bool:
    """Return whether a version takes effect: an invalid one does not replace a valid one."""
    return version.sound or earlier is None or not earlier.sound


class FileObjects(msgspec.Struct, frozen=True, kw_only=True):
    """Objects of one file, each in its last valid version."""

    file: str
    held: tuple[ObjectInEffect, ...] = ()
    notes: tuple[str, ...] = ()
    unused: Mapping[tuple[str, str], int] = {}
    """Number of objects of unsupported kinds of known groups, by group and kind."""
    problems: tuple[InputProblem, ...] = ()
    rejected: int = 0
    """Number of rejected versions; repeated rejections of an object for the same reason count once."""
    missing_since: float | None = None
    """Time at which the file was first missing, by the clock of the caller."""

    def take(
        self, documents: Iterable[object], validate: Validator = no_faults, kinds: Kinds | None = None
    ) -> "FileObjects":
        """Return the state after a version of the file that could be parsed.

        Objects of other kinds are ignored; None stands for all kinds. An object that is missing from the documents is
        removed, unless one of them may be a version of it, for example one without a readable name. An object with an
        invalid value does not replace a valid one.
        """
        documents = tuple(documents)
        validated = [_validated(version, validate) for version in versions_in(documents, kinds)]
        good = {version.key for version, _, reason in validated if not reason}
        before = {each.key: each for each in self.held if each.key not in good}
        absent = before.keys() - {version.key for version, *_ in validated}
        held: list[ObjectInEffect] = []
        problems: list[InputProblem] = []
        for version, found, reason in validated:
            earlier = before.get(version.key)
            if found is not None and replaces(found, earlier):
                held.append(found)
                continue
            keys = [version.key] if earlier is not None else [key for key in before if key in absent]
            kept = [before.pop(key) for key in keys if version.key.fits(key)]
            held.extend(kept)
            problems.append(InputProblem(self.file, version.title, reason, len(kept)))
        known = {(each.object, each.reason) for each in self.problems}
        return FileObjects(
            file=self.file,
            held=tuple(held),
            notes=tuple(f"{self.file}: {each.title} {each.note}" for each, *_ in validated if each.note),
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


class ObjectVersions(msgspec.Struct, frozen=True):
    """State of all files; `after` returns the next state."""

    grace_period: str
    validate: Validator = no_faults
    kinds: Kinds | None = None
    setting: str = "paths"
    files: Mapping[Path, FileVersion] = {}

    @property
    def inputs(self) -> InputState:
        states = [each.objects for each in self.files.values()]
        return InputState(
            tuple(problem for each in states for problem in each.problems),
            {each.file: each.rejected for each in states},
        )

    def after(self, reading: Reading, now: float) -> "ObjectVersions":
        """Return the state after a reading of the files; equal to this one without a change."""
        files: dict[Path, FileVersion] = {}
        for file in sorted({*self.files, *reading.contents, *reading.unreadable, *reading.lost}):
            before = self.files.get(file) or FileVersion(FileObjects(file=str(file)))
            if file in reading.contents:
                files[file] = self._with_content(file, before, reading.contents[file], now)
            elif file in reading.unreadable:
                files[file] = _unreadable(before, reading.unreadable[file])
            elif (missed := self._missed(before, reading.reason_missing(file), now)).held:
                files[file] = FileVersion(missed, b"", before.file, effective=before.effective)
            elif file in reading.lost:
                reason = f"{reading.lost[file]}: restore it, or take it out of `{self.setting}`"
                problem = InputProblem(missed.file, reason=reason)
                files[file] = FileVersion(msgspec.structs.replace(missed, problems=(problem,)))
        return msgspec.structs.replace(self, files=files)

    def _with_content(self, file: Path, before: FileVersion, content: FileContent, now: float) -> FileVersion:
        if not content.data.strip() and before.objects.held:  # another process may be writing it
            missed = self._missed(before, "it is empty", now)
            if missed.held:
                return FileVersion(missed, b"", content.file, effective=before.effective)
            return FileVersion(missed.take(()), _digest(content.data))
        seen = _digest(content.data)
        if seen == before.seen and (before.waiting is None or not before.waiting.is_over(now)):
            return before
        try:
            objects = before.objects.take(parse(file, content.data), self.validate, self.kinds)
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
        reason = f"{reason}: restore it; its objects are removed once it has been missing for {self.grace_period}"
        return before.objects.miss(reason, now, parse_duration(self.grace_period))


def _validated(version: Version, validate: Validator) -> tuple[Version, ObjectInEffect | None, str]:
    if version.object is None:
        return version, None, version.reason
    return version, *checked(version.key, version.object, validate)


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content).digest()


def _unreadable(before: FileVersion, reason: str) -> FileVersion:
    seen = reason.encode()
    if seen == before.seen:
        return before
    return FileVersion(before.objects.reject(reason), seen, before.file, effective=before.effective)


_MOST_UNKNOWN = 100


def unknown_in(files: Iterable[FileObjects], *, without: Kinds = frozenset()) -> tuple[IgnoredValue, ...]:
    """Return the unknown fields of objects, at most 100: each once for a kind, with the first of its objects.

    Objects of the kinds `without` are left out.
    """
    found: dict[tuple[str, str], list[IgnoredValue]] = defaultdict(list)
    for file in files:
        for held in file.held:
            if held.object.unknown_fields and (held.key.group, held.key.kind) not in without:
                kind = held.key.kind or ""
                for sentence in held.object.unknown_fields:
                    found[kind, sentence].append(IgnoredValue(file.file, kind, held.object.id, sentence))
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
                self._found[type(held.object)][held.object.id] = held.object
                self._places[held.key.kind or "", held.object.id].append(file.file)
        self.problems = tuple(_repeated(*key, files) for key, files in self._places.items() if len(files) > 1)
        impossible = (
            IgnoredValue(file.file, held.key.kind or "", held.object.id, doubt)
            for file in self._files
            for held in file.held
            if held.issues and self._found[type(held.object)][held.object.id] is held.object
            for doubt in held.issues
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
            where = ", ".join(f"{count} in {file}" for file, count in by_file.items())
            yield f"objects of kind {name} ({group}) are not used: {where}; nothing in them has an effect"

    def file_of(self, kind: str, name: str) -> str:
        """Return the file of the object in effect; empty for an unknown object."""
        return next(reversed(self._places.get((kind, name), [])), "")

    def of(self, kind: type[_O]) -> dict[str, _O]:
        return cast("dict[str, _O]", self._found[kind])


def _repeated(kind: str, name: str, files: Iterable[str]) -> str:
    places = list(dict.fromkeys(files))
    if len(places) == 1:
        return f"{kind} {name} occurs more than once in {places[0]}: the last one counts; delete the others"
    return f"{kind} {name} is in {' and in '.join(places)}: the one in {places[-1]} counts; delete the others"
