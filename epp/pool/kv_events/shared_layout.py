# SPDX-License-Identifier: Apache-2.0
"""Layout of an index that pickers share in Redis or Valkey, the same as in llm-d-router: scripts, queue of changes.

The hash at `<key>`, in decimal, has a field for each cache that holds the block, an `Entry` as JSON, with empty values.
The sorted set at `engine:<hash>` has the keys of the block with this hash in an engine. Nothing expires.

Scripts count values of other types at these names as failures, and continue. They read and write many keys in one
command, and return one string, so that the event loop spends little time on the protocol.
"""

from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import msgspec

from epp.pool.kv_events.holders import SPECULATIVE

MOST_KEYS = 512
"""Most keys that one script reads or writes: it blocks the server for a millisecond."""
_MOST_FIELDS = 1024
"""Most caches of one block that are read; a block with more caches ends the match."""
_MOST_WORK = 4096
"""Most fields that one script reads: it blocks the server for some milliseconds."""


class Entry(msgspec.Struct, frozen=True, rename="pascal"):
    """A cache that holds a block."""

    pod_identifier: str
    """Address and port of the endpoint."""
    device_tier: str = ""
    speculative: bool = False
    """Whether the cache is only expected to hold the block."""
    has_group: bool = False
    group_idx: int = 0
    """Group of layers, if `has_group`."""


@lru_cache(8192)
def field_of(endpoint: str, tier: str, group: int | None) -> bytes:
    return msgspec.json.encode(Entry(endpoint, tier, has_group=group is not None, group_idx=group or 0))


@lru_cache(8192)
def cache_of(field: bytes) -> tuple[str, str] | None:
    """Return endpoint and tier of a field; None if it is not an entry."""
    try:
        entry = msgspec.json.decode(field, type=Entry)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return entry.pod_identifier, SPECULATIVE if entry.speculative else entry.device_tier.lower()


def fields_pattern(endpoint: str) -> bytes:
    named = b'{"PodIdentifier":' + msgspec.json.encode(endpoint) + b","
    return named.replace(b"[", b"\\[").replace(b"]", b"\\]") + b"*"


class Found(NamedTuple):
    """An answer of `FIND`."""

    read: int
    has_more: bool
    """Whether the next key was not read for lack of time."""
    runs: list[tuple[str, str, list[int]]]
    """Endpoint, tier, and the first and last number of each run of blocks; numbers start at 1."""


def found_in(answer: bytes) -> Found:
    """Return the content of an answer of `FIND`; raises ValueError if it is malformed."""
    first, *lines = answer.split(b"\n")
    count, has_more = first.split()
    runs = []
    for line in lines:
        numbers, _, field = line.partition(b"\t")
        cache = cache_of(field)
        if cache is not None:
            runs.append((*cache, [int(each) for each in numbers.split()]))
    return Found(int(count), has_more == b"1", runs)


FIND = f"""
local runs, known, work, count, more = {{}}, {{}}, 0, 0, 0
for i, key in ipairs(KEYS) do
  local size = redis.pcall('HLEN', key)
  if type(size) ~= 'number' or size == 0 or size > {_MOST_FIELDS} then break end
  if work > {_MOST_WORK} then
    more = 1
    break
  end
  local held = {{}}
  if known[1] then
    local values = redis.call('HMGET', key, unpack(known))
    for at, field in ipairs(known) do
      if values[at] then held[#held + 1] = field end
    end
  end
  work = work + #known
  if #held < size then
    held = redis.call('HKEYS', key)
    work = work + 4 * size
  end
  known = held
  for _, field in ipairs(held) do
    local run = runs[field]
    if not run then runs[field] = {{i, i}}
    elseif run[#run] == i - 1 then run[#run] = i
    else
      run[#run + 1] = i
      run[#run + 1] = i
    end
  end
  count = i
end
local answer = {{count .. ' ' .. more}}
for field, run in pairs(runs) do answer[#answer + 1] = table.concat(run, ' ') .. '\\t' .. field end
return table.concat(answer, '\\n')
"""
"""Returns, for each cache, the blocks at KEYS that it holds, up to the first block that no cache holds.

A block is usually held by the caches that hold the previous block; looking for these is fast. HKEYS finds the others.
"""

WRITE = """
local failed, reason = 0, ''
local i = 0
for code in string.gmatch(ARGV[1], '%S+') do
  i = i + 1
  local key, engine, field = KEYS[2 * i - 1], KEYS[2 * i], ARGV[1 + math.abs(code)]
  local done
  if tonumber(code) > 0 then
    done = redis.pcall('HSET', key, field, '')
    if type(done) == 'number' then done = redis.pcall('ZADD', engine, 0, key) end
  else
    done = redis.pcall('HDEL', key, field)
    if type(done) == 'number' and redis.call('EXISTS', key) == 0 then done = redis.pcall('ZREM', engine, key) end
  end
  if type(done) ~= 'number' then
    failed = failed + 1
    reason = done.err
  end
end
return failed .. ' ' .. reason
"""
"""Adds or removes fields for pairs of KEYS, a block and its hash in an engine; returns the failures and their reason.

The first argument has a number for each pair: the index of the field among the other arguments, negative to remove it.
"""

CLEAR = """
for _, key in ipairs(KEYS) do
  for _, pattern in ipairs(ARGV) do
    local cursor = '0'
    repeat
      local page = redis.pcall('HSCAN', key, cursor, 'MATCH', pattern, 'COUNT', 10000)
      if page.err then break end
      cursor = page[1]
      for i = 1, #page[2], 2 do redis.call('HDEL', key, page[2][i]) end
    until cursor == '0'
  end
end
return 0
"""
"""Removes the fields that match one of the arguments from the hashes at KEYS."""

RESOLVE = """
local answer = {}
for i, key in ipairs(KEYS) do
  local keys = redis.pcall('ZRANGE', key, 0, 1)
  answer[i] = not keys.err and #keys == 1 and keys[1] or '0'
end
return table.concat(answer, ' ')
"""
"""Returns the key of each block at KEYS, which are hashes of an engine; 0 if there is no key, or several."""


_MOST_WAITING = 100_000
"""Most pending changes: 100 bytes each."""


class Write(NamedTuple):
    """Blocks to store in one cache, or to remove from it."""

    endpoint: str
    fields: Sequence[bytes]
    keys: Sequence[int]
    hashes: Sequence[int]
    is_removal: bool = False

    @property
    def size(self) -> int:
        """Number of changed fields."""
        return len(self.keys) * len(self.fields)


class WriteQueue:
    """Changes of each endpoint in order, and endpoints to clear before them.

    A full queue drops all changes, and clears their endpoints.
    """

    def __init__(self) -> None:
        self.clearing: set[str] = set()
        self.waiting = self.dropped = 0
        self._writes: dict[str, deque[Write]] = {}
        """Changes by endpoint. Endpoints have different fields, so that the order among them does not matter."""
        self._freeing: list[deque[Write]] = []
        """Dropped changes, which are freed one endpoint at a time: all of them would take 60 ms."""

    def __bool__(self) -> bool:
        return bool(self.clearing or self._writes)

    def add(self, write: Write) -> None:
        if self._freeing:
            self._freeing.pop()
        step = max(1, MOST_KEYS // len(write.fields))
        for start in range(0, len(write.keys), step):
            keys, hashes = write.keys[start : start + step], write.hashes[start : start + step]
            self._writes.setdefault(write.endpoint, deque()).append(write._replace(keys=keys, hashes=hashes))
        self.waiting += write.size
        if self.waiting > _MOST_WAITING:
            self.clearing.update(self._writes)
            self._freeing += self._writes.values()
            self._writes.clear()
            self.dropped += self.waiting
            self.waiting = 0

    def clear(self, endpoint: str) -> None:
        """Drop the changes of an endpoint, and clear it before the next change."""
        dropped = sum(write.size for write in self._writes.pop(endpoint, ()))
        self.dropped += dropped
        self.waiting -= dropped
        self.clearing.add(endpoint)

    def next(self) -> Sequence[Write]:
        """Return the changes for one command; they remain in the queue until `done`."""
        taken: list[Write] = []
        size = 0
        for write in chain.from_iterable(self._writes.values()):
            size += write.size
            if taken and size > MOST_KEYS:
                break
            taken.append(write)
        return taken

    def done(self, taken: Sequence[Write]) -> None:
        """Remove changes that `next` returned."""
        for write in taken:
            writes = self._writes.get(write.endpoint)
            if writes is None or writes[0] is not write:
                continue  # the endpoint was cleared meanwhile
            writes.popleft()
            self.waiting -= write.size
            if not writes:
                del self._writes[write.endpoint]
