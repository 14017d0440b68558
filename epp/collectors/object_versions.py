"""Objects of files in their last good versions, from one reading of the files to the next."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from epp.accelerators.decode import Decoded
from epp.accelerators.last_good import FileObjects
from epp.collectors.object_files import Reading, parse
from epp.framework.durations import parse_duration
from epp.framework.inputs import InputProblem, InputState


class FileVersion(msgspec.Struct, frozen=True):
    """A file as it was last read."""

    objects: FileObjects
    seen: bytes = b""
    """Digest of its content, or why it could not be read; empty while it is missing."""


class ObjectVersions(msgspec.Struct, frozen=True):
    """All files at one moment; `after` returns the next state."""

    grace_period: str
    """Time for which a file that is missing keeps its objects."""
    files: Mapping[Path, FileVersion] = {}

    @property
    def inputs(self) -> InputState:
        """Return what is not in effect, and how many versions were rejected."""
        states = [each.objects for each in self.files.values()]
        return InputState(
            tuple(problem for each in states for problem in each.problems),
            {each.file: each.rejected for each in states},
        )

    def after(self, reading: Reading, now: float) -> "ObjectVersions":
        """Return the state after the files were read; equal to this one where nothing changed."""
        files: dict[Path, FileVersion] = {}
        for file in sorted({*self.files, *reading.contents, *reading.unreadable, *reading.lost}):
            before = self.files.get(file) or FileVersion(FileObjects(file=str(file)))
            if file in reading.contents:
                files[file] = self._with_content(file, before, reading.contents[file], now)
            elif file in reading.unreadable:
                files[file] = _unreadable(before, reading.unreadable[file])
            elif (missed := self._missed(before, reading.reason_missing(file), now)).held:
                files[file] = FileVersion(missed)
            elif file in reading.lost:
                files[file] = FileVersion(_lost(missed, reading.lost[file]))
        return msgspec.structs.replace(self, files=files)

    def decoded(self, order: Callable[[Path], tuple[int, Path]]) -> Decoded:
        """Return all objects in effect and all problems, those of the files that sort last at the end."""
        states = [self.files[file].objects for file in sorted(self.files, key=order)]
        return Decoded(
            tuple(held.object for each in states for held in each.held),
            tuple(problem for each in states for problem in (*map(str, each.problems), *each.notes)),
            sum(len(each.problems) for each in states),
        )

    def has_objects(self, file: Path) -> bool:
        """Return whether any object of the file is in effect."""
        return file in self.files and bool(self.files[file].objects.held)

    def _with_content(self, file: Path, before: FileVersion, content: bytes, now: float) -> FileVersion:
        if not content.strip() and before.objects.held:  # as it is while another process begins to write it
            missed = self._missed(before, "it is empty", now)
            return FileVersion(missed) if missed.held else FileVersion(missed.take(()), _digest(content))
        seen = _digest(content)
        if seen == before.seen:
            return before
        try:
            return FileVersion(before.objects.take(parse(file, content)), seen)
        except ValueError as error:
            return FileVersion(before.objects.reject(str(error)), seen)

    def _missed(self, before: FileVersion, reason: str, now: float) -> FileObjects:
        reason = f"{reason}: restore it; its objects are removed once it has been missing for {self.grace_period}"
        return before.objects.miss(reason, now, parse_duration(self.grace_period))


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content).digest()


def _unreadable(before: FileVersion, reason: str) -> FileVersion:
    seen = reason.encode()
    return before if seen == before.seen else FileVersion(before.objects.reject(reason), seen)


def _lost(objects: FileObjects, reason: str) -> FileObjects:
    """Return the state of a configured path, or a directory, that has no objects of its own."""
    problem = InputProblem(objects.file, reason=f"{reason}: restore it, or take it out of `paths`")
    return msgspec.structs.replace(objects, problems=(problem,))
