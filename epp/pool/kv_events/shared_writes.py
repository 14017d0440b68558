# SPDX-License-Identifier: Apache-2.0
"""Queue of changes for the shared index, which forgets those of endpoints whose blocks are all removed at once."""

from collections import Counter, deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

from epp.pool.kv_events.shared_layout import MOST_KEYS

_MOST_WAITING = 200_000
"""Blocks to be written: 100 bytes each."""


class Write(NamedTuple):
    """Blocks to store in one cache, or to remove from it."""

    endpoint: str
    fields: Sequence[bytes]
    keys: Sequence[int]
    hashes: Sequence[int]
    is_removal: bool = False
    epoch: int = 0
    """Times that the endpoint was cleared before."""

    @property
    def size(self) -> int:
        """Changes of fields."""
        return len(self.keys) * len(self.fields)


class WriteQueue:
    """Changes in order, and endpoints to clear before them. If it is full, it drops all, and clears their endpoints."""

    def __init__(self) -> None:
        self.clearing: set[str] = set()
        """Endpoints to clear before anything is written."""
        self.overflowed: set[str] = set()
        """Endpoints whose changes were dropped as the queue was full."""
        self.waiting = self.dropped = 0
        self._waiting_of: Counter[str] = Counter()
        """Waiting changes by endpoint, without those of writes that are not current."""
        self._epochs: Counter[str] = Counter()
        self._writes: deque[Write] = deque()

    def __bool__(self) -> bool:
        return bool(self.clearing or self._writes)

    def add(self, write: Write) -> None:
        """Add changes; if there are too many, drop all."""
        step = max(1, MOST_KEYS // len(write.fields))
        for start in range(0, len(write.keys), step):
            keys, hashes = write.keys[start : start + step], write.hashes[start : start + step]
            epoch = self._epochs[write.endpoint]
            self._writes.append(write._replace(keys=keys, hashes=hashes, epoch=epoch))
        self.waiting += write.size
        self._waiting_of[write.endpoint] += write.size
        if self.waiting > _MOST_WAITING:
            full = {endpoint for endpoint, number in self._waiting_of.items() if number}
            self.clear(full)
            self._writes.clear()
            self.overflowed |= full
        elif len(self._writes) > _MOST_WAITING:
            self._writes = deque(filter(self._is_current, self._writes))

    def clear(self, endpoints: Collection[str]) -> None:
        """Drop the changes of endpoints, and clear them before the next change."""
        for endpoint in endpoints:
            dropped = self._waiting_of.pop(endpoint, 0)
            self.dropped += dropped
            self.waiting -= dropped
        self._epochs.update(endpoints)
        self.clearing.update(endpoints)

    def next(self) -> Sequence[Write]:
        """Return changes for one command, which stay in the queue."""
        while self._writes and not self._is_current(self._writes[0]):
            self._writes.popleft()
        taken: list[Write] = []
        size = 0
        for write in self._writes:
            size += write.size
            if not self._is_current(write) or (taken and size > MOST_KEYS):
                break
            taken.append(write)
        return taken

    def done(self, taken: Sequence[Write]) -> None:
        """Remove changes that `next` returned."""
        for write in taken:
            if not self._writes or self._writes[0] is not write:
                break  # an endpoint was cleared meanwhile
            self._writes.popleft()
            if self._is_current(write):
                self.waiting -= write.size
                self._waiting_of[write.endpoint] -= write.size

    def _is_current(self, write: Write) -> bool:
        """Return whether the endpoint was not cleared later."""
        return write.epoch == self._epochs[write.endpoint]
