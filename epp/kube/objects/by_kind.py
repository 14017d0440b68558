# SPDX-License-Identifier: Apache-2.0
"""Objects of all files by kind, and what is said of those that occur more than once or have no use."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeVar, cast

from epp.framework.plugin_status import IgnoredValue
from epp.kube.objects.base import Object
from epp.kube.objects.files.last_good import FileObjects

_O = TypeVar("_O", bound=Object)


class ObjectsByKind:
    """Objects of all files by kind and id, with what is said of them."""

    def __init__(self, files: Iterable[FileObjects]) -> None:
        self._found: defaultdict[type[Object], dict[str, Object]] = defaultdict(dict)
        self._files = tuple(files)
        self._places: Mapping[tuple[str, str], list[str]] | None = None
        twice: dict[tuple[str, str], None] = {}
        for file in self._files:
            for held in file.held:
                each, name = held.object, held.object.id
                of_kind = self._found[type(each)]
                if name in of_kind:
                    twice[held.key.kind or "", name] = None
                of_kind[name] = each
        self.problems = tuple(self._sentence(kind, name) for kind, name in twice)
        """Sentences on objects that occur more than once."""
        self.ignored = tuple(
            IgnoredValue(file.file, held.key.kind or "", held.object.id, doubt)
            for file in self._files
            for held in file.held
            if held.doubts and self._found[type(held.object)][held.object.id] is held.object
            for doubt in held.doubts
        )
        """Values that objects are used without."""

    def unused(self, groups: Collection[str]) -> Iterator[str]:
        """Yield a sentence on each kind of these groups that has no effect."""
        counts: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        for file in self._files:
            for kind, count in file.unused.items():
                if kind[0] in groups:
                    counts[kind][file.file] = count
        for (group, name), by_file in sorted(counts.items()):
            where = ", ".join(f"{count} in {file}" for file, count in by_file.items())
            yield f"objects of kind {name} ({group}) are not used: {where}; nothing in them has an effect"

    def file_of(self, kind: str, name: str) -> str:
        """Return the file with the object that counts; empty for an unknown one."""
        return next(reversed(self._files_with(kind, name)), "")

    def of(self, kind: type[_O]) -> dict[str, _O]:
        """Return the objects of a kind by id."""
        return cast("dict[str, _O]", self._found[kind])

    def _sentence(self, kind: str, name: str) -> str:
        places = list(dict.fromkeys(self._files_with(kind, name)))
        if len(places) == 1:
            return f"{kind} {name} occurs more than once in {places[0]}: the last one counts; delete the others"
        return f"{kind} {name} is in {' and in '.join(places)}: the one in {places[-1]} counts; delete the others"

    def _files_with(self, kind: str, name: str) -> list[str]:
        if self._places is None:
            found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
            for file in self._files:
                for held in file.held:
                    found[held.key.kind or "", held.object.id].append(file.file)
            self._places = found
        return self._places.get((kind, name), [])
