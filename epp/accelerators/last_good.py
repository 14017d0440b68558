"""Last good versions of the objects of one file, from one version of the file to the next."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from epp.accelerators.class_facts import faults_of
from epp.accelerators.decode import ObjectKey, Version, versions_in
from epp.accelerators.objects.base import Object
from epp.accelerators.objects.ome import AcceleratorClass
from epp.framework.inputs import InputProblem


class Held(NamedTuple):
    """An object that is in effect."""

    key: ObjectKey
    object: Object
    sound: bool
    """Whether all its values are understood."""


class FileObjects(msgspec.Struct, frozen=True, kw_only=True):
    """Objects of one file that are in effect, each in its last good version."""

    file: str
    held: tuple[Held, ...] = ()
    notes: tuple[str, ...] = ()
    """Remarks on objects that are in effect."""
    problems: tuple[InputProblem, ...] = ()
    """The file, or objects of it, whose newest version is not in effect."""
    rejected: int = 0
    """Versions of the file rejected so far, and of its objects; an object's counts again only for another reason."""
    missing_since: float | None = None
    """Time, by the clock of the caller, at which the file was first found missing."""

    def take(self, documents: Iterable[object]) -> "FileObjects":
        """Return the state after a version of the file that could be parsed.

        An object that is not in the documents is removed, unless one of them could be a version of it: one without a
        readable name, for example. An object with a value that is not understood replaces only one that has such, too.
        """
        judged = [(version, version.reason or "; ".join(_faults(version))) for version in versions_in(documents)]
        good = {version.key for version, reason in judged if not reason}
        before = {each.key: each for each in self.held if each.key not in good}
        absent = before.keys() - {version.key for version, _ in judged}
        held: list[Held] = []
        problems: list[InputProblem] = []
        for version, reason in judged:
            earlier = before.get(version.key)
            if version.object is not None and not (reason and earlier is not None and earlier.sound):
                held.append(Held(version.key, version.object, sound=not reason))
                continue
            keys = [version.key] if earlier is not None else [key for key in before if key in absent]
            kept = [before.pop(key) for key in keys if version.key.fits(key)]
            held.extend(kept)
            problems.append(InputProblem(self.file, version.title, reason, len(kept)))
        known = {(each.object, each.reason) for each in self.problems}
        return FileObjects(
            file=self.file,
            held=tuple(held),
            notes=tuple(f"{self.file}: {each.title} {each.note}" for each, _ in judged if each.note),
            problems=tuple(problems),
            rejected=self.rejected + sum((each.object, each.reason) not in known for each in problems),
        )

    def reject(self, reason: str) -> "FileObjects":
        """Return the state after a version of the file that cannot be read or parsed: all objects stay."""
        problem = InputProblem(self.file, reason=reason, kept=len(self.held))
        return msgspec.structs.replace(self, problems=(problem,), rejected=self.rejected + 1, missing_since=None)

    def miss(self, reason: str, now: float, grace_seconds: float) -> "FileObjects":
        """Return the state without the file: its objects stay until it has been missing for the grace period."""
        since = now if self.missing_since is None else self.missing_since
        if not self.held or now - since >= grace_seconds:
            return FileObjects(file=self.file, rejected=self.rejected)
        problem = InputProblem(self.file, reason=reason, kept=len(self.held))
        return msgspec.structs.replace(self, problems=(problem,), missing_since=since)


def _faults(version: Version) -> Iterable[str]:
    return faults_of(version.object) if isinstance(version.object, AcceleratorClass) else ()
