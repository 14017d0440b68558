# SPDX-License-Identifier: Apache-2.0
"""Decode documents of cluster objects as if they were in a file."""

from collections.abc import Iterable

from epp.kube.objects.last_good import FileObjects


class Decoded:
    """Objects of one file, and its problems."""

    def __init__(self, documents: Iterable[object], name: str) -> None:
        self.file = FileObjects(file=name).take(documents)
        self.objects = self.file.held
        self.problems = (*map(str, self.file.problems), *self.file.notes)
        self.skipped = len(self.file.problems)

    def of(self, kind: type) -> tuple:
        """Objects of one kind."""
        return tuple(each for each in self.objects if isinstance(each, kind))


def decode(documents: Iterable[object], name: str = "file") -> Decoded:
    """Decode the first version of a file of this name."""
    return Decoded(documents, name)
