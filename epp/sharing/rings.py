# SPDX-License-Identifier: Apache-2.0
"""Batches in memory that the processes of one picker share: each process writes its own ring and reads the others.

There are no locks. A writer publishes a batch by writing one word after its bytes, so that a killed writer leaves only
whole batches. A reader that the writer overtakes continues with the oldest batch that is left.
"""

import mmap
import os
import tempfile
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

import xxhash

RING_BYTES: Final = 4 * 1024 * 1024
"""Size of the ring of one process. The kernel allocates only written parts."""
_WORD_BYTES: Final = 8
_HEAD_BYTES: Final = 2 * _WORD_BYTES
"""Number of bytes ever written, and number of bytes before the oldest batch that is left."""
_BATCH_HEAD: Final = Struct("=IQd")
"""Length, checksum and time of a batch."""


class TimedBatch(NamedTuple):
    """A batch of another process."""

    data: bytes
    at: float
    """Time at which its picker sent it, by the common clock of all processes."""


def shared_memory(processes: int, ring_bytes: int = RING_BYTES) -> int:
    """Return a descriptor of memory for rings; it is freed when the last process that has it ends."""
    size = processes * (_HEAD_BYTES + ring_bytes)
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("epp-rings")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


class Rings:
    """The rings of all processes, by number: 0 is the main process."""

    def __init__(self, descriptor: int, own: int, ring_bytes: int = RING_BYTES) -> None:
        """Map the memory; raises OSError or ValueError for a wrong descriptor. `own` is the ring of this process."""
        self._own = own
        self._size = ring_bytes
        self._stride = _HEAD_BYTES + ring_bytes
        self._map = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        self._memory = memoryview(self._map)
        self._words = self._memory.cast("Q")
        """Words, which are written and read atomically."""
        self._read = [0] * (len(self._memory) // self._stride)
        """Bytes that this process has read, by ring."""
        self._inherited: int = self._words[own * self._stride // _WORD_BYTES]
        """Bytes that a former process wrote to the ring of this process."""

    def write(self, batch: bytes, at: float) -> None:
        """Append a batch to the ring of this process; the oldest batches are overwritten."""
        record = _BATCH_HEAD.pack(len(batch), xxhash.xxh3_64_intdigest(batch), at) + batch
        word = self._own * self._stride // _WORD_BYTES
        written, oldest = self._words[word], self._words[word + 1]
        if len(record) > self._size:
            raise ValueError(f"a batch of {len(batch)} bytes does not fit in a ring of {self._size}")
        while written + len(record) - oldest > self._size:
            oldest += _BATCH_HEAD.size + _BATCH_HEAD.unpack(self._bytes(self._own, oldest, _BATCH_HEAD.size))[0]
        self._words[word + 1] = oldest  # before its bytes are overwritten
        start = written % self._size
        base = self._own * self._stride + _HEAD_BYTES
        before_end = record[: self._size - start]
        self._memory[base + start : base + start + len(before_end)] = before_end
        self._memory[base : base + len(record) - len(before_end)] = record[len(before_end) :]
        self._words[word] = written + len(record)

    @property
    def has_news(self) -> bool:
        """Whether other processes wrote since the last `read`."""
        stride = self._stride // _WORD_BYTES
        return any(self._words[ring * stride] != read and ring != self._own for ring, read in enumerate(self._read))

    def read(self) -> Iterator[TimedBatch]:
        """Yield the batches that other processes, and the process that this one replaces, wrote since the last call.

        The last batch of a worker that ended, which the main process writes, comes after all batches of the worker.
        """
        return self._read_from(self._read, self._own)

    @property
    def oldest(self) -> list[int]:
        """Positions for `read_all` before the oldest batches in the rings."""
        return [0] * len(self._read)

    def read_all(self, positions: list[int]) -> Iterator[TimedBatch]:
        """Yield the batches of all processes, this one included, after `positions`, which are updated."""
        return self._read_from(positions, None)

    def _read_from(self, positions: list[int], own: int | None) -> Iterator[TimedBatch]:
        of_main = self._words[0]
        for ring in (*range(1, len(positions)), 0):
            word = ring * self._stride // _WORD_BYTES
            end = self._inherited if ring == own else self._words[word] if ring else of_main
            while (at := max(positions[ring], self._words[word + 1])) < end:
                timed = self._batch(ring, at)
                if at < self._words[word + 1]:
                    continue  # overwritten meanwhile
                if timed is None:
                    break  # not all of its bytes are visible to this processor yet
                positions[ring] = at + _BATCH_HEAD.size + len(timed.data)
                yield timed

    def close(self) -> None:
        self._words.release()
        self._memory.release()
        self._map.close()

    def _batch(self, ring: int, at: int) -> TimedBatch | None:
        """Return the batch at a position; None if the bytes are not a batch."""
        length, checksum, sent_at = _BATCH_HEAD.unpack(self._bytes(ring, at, _BATCH_HEAD.size))
        if length > self._size:
            return None
        data = self._bytes(ring, at + _BATCH_HEAD.size, length)
        return TimedBatch(data, sent_at) if xxhash.xxh3_64_intdigest(data) == checksum else None

    def _bytes(self, ring: int, at: int, count: int) -> bytes:
        base, start = ring * self._stride + _HEAD_BYTES, at % self._size
        found = bytes(self._memory[base + start : base + min(start + count, self._size)])
        return found if len(found) == count else found + bytes(self._memory[base : base + count - len(found)])
