# SPDX-License-Identifier: Apache-2.0
"""New versions of a file that may be half-written: when to look at them once more before they take effect.

A file that is written in place is empty at first, and then grows; its beginning may be valid by itself. So a version
that is written in place, or that has much less than the one before, waits until it has stayed the same for a while.
"""

from typing import NamedTuple

UNCHANGED_SECONDS = 1.5
"""Longer than a pause between two writes of one program, and than the second between two looks at a file."""
LONGEST_SECONDS = 10.0
"""A file that is written in place again and again takes effect all the same."""


class UnsettledVersion(NamedTuple):
    """A version that waits for the second look."""

    digest: bytes
    since: float
    """Time of the first look at this version."""
    began: float
    """Time of the first look at the first of the versions that had to wait."""

    def is_over(self, now: float) -> bool:
        """Return whether it has stayed the same for long enough, or others before it have waited in vain."""
        return now - self.since >= UNCHANGED_SECONDS or now - self.began >= LONGEST_SECONDS


def next_wait(before: UnsettledVersion | None, digest: bytes, now: float) -> UnsettledVersion:
    """Return the wait of another version than the one that waited before, if one did."""
    return UnsettledVersion(digest, now, now if before is None else before.began)


def doubt(*, in_place: bool, entries: int = 0, entries_before: int = 0) -> str:
    """Return why a version may be half of one, in words; empty where nothing says so.

    `in_place` says that the file is the one of the last look. Another file, renamed over it, is whole as a rule: then
    only the loss of more than half of the entries counts.
    """
    if in_place:
        return f"it was written in place: {_WHEN}"
    if 2 * entries < entries_before:
        return f"it has {entries} entries in place of {entries_before}: {_WHEN}"
    return ""


_WHEN = f"it takes effect once it has not changed for {UNCHANGED_SECONDS:g} s"
