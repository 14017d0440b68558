# SPDX-License-Identifier: Apache-2.0
"""The latest records, in memory: bounded in number and in bytes."""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple


class Kept(NamedTuple):
    """A record as it is kept."""

    id: str
    request_id: str
    at: float
    """Seconds since 1970."""
    data: bytes
    """JSON."""


class Ring:
    """Ring buffer of records in the order of their decisions."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._kept: dict[str, Kept] = {}
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all records."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, kept: Kept) -> None:
        """Keep a record; a single one that is larger than all may be is not kept."""
        if self._most < 1 or len(kept.data) > self._most_bytes:
            return
        self._kept[kept.id] = kept
        self._bytes += len(kept.data)
        self._make_room()

    def update(self, record_id: str, data: bytes) -> None:
        """Replace a record, where it is still there."""
        before = self._kept.get(record_id)
        if before is None:
            return
        self._kept[record_id] = before._replace(data=data)
        self._bytes += len(data) - len(before.data)
        self._make_room()

    def get(self, record_id: str) -> bytes | None:
        """Return the record with this id."""
        found = self._kept.get(record_id)
        return None if found is None else found.data

    def latest(
        self,
        limit: int,
        *,
        since: float | None = None,
        after: str = "",
        request_id: str = "",
        most_bytes: int | None = None,
    ) -> list[bytes]:
        """Return the latest records, newest first; of `most_bytes` together, or a single one that is larger.

        Only those decided after `since`, seconds since 1970, and after the one with the id `after`, as far as that is
        still known; of one request alone if `request_id` names it.
        """
        newest: Iterator[Kept] = reversed(self._kept.values())
        found: list[bytes] = []
        left = self._most_bytes if most_bytes is None else most_bytes
        for kept in newest:
            if len(found) >= limit or kept.id == after or (since is not None and kept.at <= since):
                break
            if request_id and kept.request_id != request_id:
                continue
            left -= len(kept.data)
            if found and left < 0:
                break
            found.append(kept.data)
        return found

    def _make_room(self) -> None:
        while self._bytes > self._most_bytes or len(self._kept) > self._most:
            oldest = next(islice(self._kept, 1))
            self._bytes -= len(self._kept.pop(oldest).data)
