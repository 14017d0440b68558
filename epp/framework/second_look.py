# SPDX-License-Identifier: Apache-2.0
"""New versions of a file that may be half-written: when to look at them once more before they take effect.

A file that is written in place is empty at first, and then grows; its beginning may be valid by itself. So a version
that takes something away waits until it has stayed the same for a while.
"""

from collections.abc import Set as AbstractSet
from typing import NamedTuple

UNCHANGED_SECONDS = 1.5
"""Longer than a pause between two writes of one program, and than the second between two looks at a file."""


class Extent(NamedTuple):
    """What there is in a version."""

    size_bytes: int
    entries: AbstractSet[object] = frozenset()
    """Names of what it lists, such as endpoints."""


class Waiting(NamedTuple):
    """A version that waits for the second look."""

    digest: bytes
    since: float
    """Time of the first look."""

    def is_over(self, now: float) -> bool:
        """Return whether it has stayed the same for long enough."""
        return now - self.since >= UNCHANGED_SECONDS


def doubt(before: Extent, after: Extent, *, in_place: bool) -> str:
    """Return why the version `after` may be half of one, in words; empty where nothing says so.

    `in_place` says that the file is the one of the last look. Another file, renamed over it, is whole as a rule: then
    only the loss of more than half of the entries counts.
    """
    if 2 * len(after.entries) < len(before.entries):
        return _sentence(f"it has {len(after.entries)} entries in place of {len(before.entries)}")
    if not in_place:
        return ""
    lost = before.entries - after.entries
    if lost:
        return _sentence(f"it was written in place without {len(lost)} of the {len(before.entries)} entries")
    if after.size_bytes < before.size_bytes:
        return _sentence("it was written in place, and is shorter than before")
    return ""


def _sentence(reason: str) -> str:
    return f"{reason}: it takes effect once it has not changed for {UNCHANGED_SECONDS:g} s"
