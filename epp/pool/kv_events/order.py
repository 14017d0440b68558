# SPDX-License-Identifier: Apache-2.0
"""The order of one engine's messages: gaps and restarts, and their repair by replays."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import structlog

from epp.pool.kv_events.events import Event, decode_events

SEQUENCE_BYTES = 8
_MOST_TOPIC_BYTES = 2048
_SETTLING_SECONDS = 0.1
"""Time that an engine needs to process a subscription, and pause between two attempts of a replay."""
_REPLAY_SECONDS = 120.0
_MOST_FRUITLESS_ATTEMPTS = 3
_MOST_QUEUED = 500
"""Messages of a reply that certainly fit in the queue of an engine: half of ZeroMQ's default."""
_REST_SECONDS = 30.0
"""Pause after a failed replay, in which gaps are not repaired."""
_log = structlog.get_logger()


class EventMessage(NamedTuple):
    topic: bytes
    number: int
    payload: bytes


def message_of(parts: Sequence[bytes]) -> EventMessage | None:
    """Return the message with these three parts; None if the parts are invalid, or the topic is too long."""
    match parts:
        case [topic, sequence, payload] if len(topic) <= _MOST_TOPIC_BYTES and len(sequence) >= SEQUENCE_BYTES:
            return EventMessage(topic, int.from_bytes(sequence[:SEQUENCE_BYTES], "big"), payload)
    return None


class Received(NamedTuple):
    """A change of the known contents of one engine's caches."""

    engine: int
    model: str = ""
    events: Sequence[Event] = ()
    is_known: bool = True
    """Whether the contents before it are known; if not, they are dropped first."""
    is_current: bool = True
    """Whether the contents are current; if not, they must not be used, since later messages are missing."""
    is_first: bool = False
    """Whether it is the first message of an engine, whose caches were empty before."""
    has_gap: bool = False
    """Whether messages before it were lost: the known contents may be wrong in part."""


class EngineCounts:
    """Counters of one engine, written by one thread and read by any."""

    def __init__(self) -> None:
        self.messages = self.connections = 0
        self.is_connected = False
        """Whether the picker is subscribed to it now."""
        self.errors = Counter[str]()
        """Number of errors by operation."""


class EventCounts:
    """Counters of all engines, written by one thread and read by any."""

    def __init__(self) -> None:
        self.resets = Counter({"gap": 0, "restart": 0, "malformed": 0, "disconnection": 0})
        """Number of times that the known contents of a cache were dropped, by cause; after a gap, they may be kept."""
        self.replays = Counter({"complete": 0, "failed": 0})
        self.unknown_senders = 0


class _Replay:
    """A pending or running replay."""

    def __init__(self, now: float) -> None:
        self.due = now + _SETTLING_SECONDS
        self.until = math.inf
        """Time limit, set by the first attempt."""
        self.fruitless = 0
        """Number of consecutive attempts without a new message."""
        self.is_joined = False
        """Whether the reply has the last message that was applied, so that it continues the same history."""
        self.is_broken = False
        """Whether the reply skipped a message or is invalid, so that the rest of it is ignored."""
        self.news = 0
        """Number of new messages in the reply."""


class EventOrder:
    """Applies each message of an engine once and in order, and requests a replay if messages are missing.

    Only the number of the last message and a digest of its payload are kept. A replay begins with this message, which
    reveals a restart of the engine. If messages remain missing, later messages are applied as a change with a gap.
    """

    def __init__(
        self, engine: int, source: str, counts: EventCounts, own: EngineCounts, *, can_replay: bool = False
    ) -> None:
        """Prepare; `source` names the engine in log lines."""
        self.engine = engine
        self._source = source
        self.own = own
        self.replay: _Replay | None = None
        """The replay until whose end live messages are not read; None for no replay."""
        self._counts = counts
        self._can_replay = can_replay
        self._model = ""
        self._last: tuple[int, int] | None = None
        """Number and digest of the last message that was applied."""
        self._live: tuple[int, int] | None = None
        """Number and digest of the last applied message that was not a repetition."""
        self._rests_until = -math.inf

    def connected(self, now: float) -> None:
        """Request a replay of all messages that a newly connected engine remembers."""
        self.own.connections += 1
        if self._may_replay(now):
            self.replay = _Replay(now)

    def disconnected(self) -> Received:
        """Drop the contents: messages may be lost, and the engine may have ended."""
        self.replay = self._live = self._last = None
        return self._reset("disconnection")

    def malformed(self, reason: str) -> Received:
        """Drop the contents, since a change of them cannot be read."""
        if not self._counts.resets["malformed"]:
            _log.warning("malformed KV events", source=self._source, reason=reason)
        return self._reset("malformed")

    def published(self, parts: Sequence[bytes], now: float) -> list[Received]:
        """Return the changes by the parts of a message that was just published."""
        self.own.messages += 1
        message = message_of(parts)
        if message is None:
            return [self.malformed("a message must have a topic of at most 2,048 bytes, a number and a payload")]
        return self.live(message, now)

    def live(self, message: EventMessage, now: float) -> list[Received]:
        """Return the changes by a message that was just published."""
        number, digest = message.number, hash(message.payload)
        if self._live is not None and number <= self._live[0]:
            if (number, digest) == self._live:
                return []
            self._live, self._last = (number, digest), None
            self.replay = _Replay(now) if self._may_replay(now) else None
            return [self._reset("restart")]  # or the message is late, and may be out of date
        self._live = number, digest
        last = -1 if self._last is None else self._last[0]
        if number <= last:
            return []  # replayed before
        if number == last + 1 or not self._may_replay(now):
            has_gap = self._last is not None and number > last + 1
            self._counts.resets["gap"] += has_gap
            return [self._applied(message, has_gap=has_gap)]
        self.replay = _Replay(now)  # this message is replayed, too
        return [Received(self.engine, is_current=False)]

    def attempt(self, now: float) -> int:
        """Begin an attempt; return the number of the first message to request."""
        replay = self.replay
        assert replay is not None  # noqa: S101  checked by the caller
        replay.until = min(replay.until, now + _REPLAY_SECONDS)
        replay.is_joined, replay.is_broken, replay.news = False, False, 0
        return 0 if self._last is None else self._last[0]

    def replayed(self, message: EventMessage) -> list[Received]:
        replay, last = self.replay, self._last
        if replay is None or replay.is_broken or (last is not None and message.number < last[0]):
            return []
        if last is None:  # the engine may have forgotten its first messages
            replay.is_joined, replay.news = True, 1
            return [self._applied(message, is_current=False)]  # there are no contents that could be wrong
        if message.number == last[0]:
            if hash(message.payload) != last[1]:
                return [self._restarted(replay)]
            replay.is_joined = True
            return []
        if message.number > last[0] + 1 and replay.is_joined:
            replay.is_broken = True
            return []
        self._counts.resets["gap"] += not replay.is_joined  # the engine has forgotten the missing messages
        is_joined, replay.is_joined = replay.is_joined, True
        replay.news += 1
        return [self._applied(message, has_gap=not is_joined, is_current=False)]

    def reply_ended(self, now: float) -> list[Received]:
        """Return the changes after an engine has repeated all messages that it remembers."""
        replay = self.replay
        if replay is None or replay.is_broken:
            return self.attempt_ended(now)
        if self._last is not None and not replay.is_joined:
            return [self._restarted(replay), *self.attempt_ended(now)]
        if replay.news > _MOST_QUEUED:
            return self.attempt_ended(now)  # the last messages may be missing
        if self._live is not None and (self._last is None or self._live[0] > self._last[0]):
            return self.attempt_ended(now)  # the message that caused the replay is missing
        self.replay = None
        self._counts.replays["complete"] += 1
        return [Received(self.engine)]

    def attempt_ended(self, now: float) -> list[Received]:
        """Return the changes after an attempt ended early; another attempt follows if there is progress."""
        replay = self.replay
        if replay is None:
            return []
        replay.fruitless = 0 if replay.news else replay.fruitless + 1
        if replay.fruitless < _MOST_FRUITLESS_ATTEMPTS and now < replay.until:
            replay.due = now + _SETTLING_SECONDS
            return []
        self.own.errors["replay-no-progress" if replay.fruitless else "replay-incomplete"] += 1
        self._counts.replays["failed"] += 1
        self._counts.resets["gap"] += 1
        self._rests_until = now + _REST_SECONDS
        self.replay = self._last = None
        return [Received(self.engine, has_gap=True)]  # live messages follow

    def _may_replay(self, now: float) -> bool:
        return self._can_replay and now >= self._rests_until

    def _restarted(self, replay: _Replay) -> Received:
        """Drop the contents: the engine that repeats messages is another process."""
        self._last = None
        replay.is_broken = True
        return self._reset("restart", is_current=False)

    def _applied(self, message: EventMessage, *, has_gap: bool = False, is_current: bool = True) -> Received:
        is_first = self._last is None and message.number == 0
        self._last = message.number, hash(message.payload)
        if message.topic:
            model = message.topic.decode(errors="replace").partition("@")[2].partition("@")[2]
            self._model = "" if "@" in model else model
        try:
            events = decode_events(message.payload)
        except msgspec.DecodeError as error:
            return self.malformed(str(error))._replace(is_current=is_current)
        return Received(self.engine, self._model, events, is_current=is_current, is_first=is_first, has_gap=has_gap)

    def _reset(self, cause: str, *, is_current: bool = True) -> Received:
        self._counts.resets[cause] += 1
        return Received(self.engine, is_known=False, is_current=is_current)
