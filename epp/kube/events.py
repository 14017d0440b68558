# SPDX-License-Identifier: Apache-2.0
"""Events on the pool for operators: which is due when, without I/O."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from epp.framework.messages import printable

_MESSAGE_BYTES = 1024
_LINE_BYTES = 400
_MORE = "; and {} more"
_ROOM_BYTES = 24
_REPEAT_SECONDS = 1200.0
"""Time after which a problem that lasts is told again; API servers keep events for an hour by default."""
_BURST = 3
_REFILL_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Topic:
    """A kind of problem, and the two events that tell of it."""

    warning: str
    """Reason of the event while there is a problem."""
    normal: str
    """Reason of the event after it."""
    relief: str
    """Message of the event after it."""
    grace_seconds: float = 0.0
    """How long a problem must have lasted."""


CONFIGURATION = Topic("ConfigurationRefused", "ConfigurationAccepted", "the configuration file is in effect again")
POOL = Topic("PoolNotFound", "PoolFound", "the pool is there again", grace_seconds=15.0)
ENDPOINTS = Topic("NoEndpoints", "EndpointsFound", "the pool has endpoints again", grace_seconds=15.0)
OBJECTS = Topic("ObjectsRefused", "ObjectsAccepted", "all objects are in effect again")
TOPICS = (CONFIGURATION, POOL, ENDPOINTS, OBJECTS)


@dataclass(frozen=True, slots=True)
class Event:
    """One event to write."""

    topic: Topic
    message: str
    is_warning: bool

    @property
    def reason(self) -> str:
        """The word by which operators filter events."""
        return self.topic.warning if self.is_warning else self.topic.normal


class _Tale:
    """The problem of one topic, and what was told of it."""

    def __init__(self) -> None:
        self.problem = ""
        self.since = 0.0
        self.told = ""
        self.told_at = 0.0
        self.tokens = float(_BURST)
        self.counted_at = 0.0

    def observe(self, problem: str, now: float) -> None:
        if bool(problem) != bool(self.problem):
            self.since = now
        self.problem = problem
        self.tokens = min(_BURST, self.tokens + (now - self.counted_at) / _REFILL_SECONDS)
        self.counted_at = now

    def is_due(self, grace_seconds: float, now: float) -> bool:
        if self.tokens < 1:
            return False
        if self.problem == self.told:
            return bool(self.problem) and now - self.told_at >= _REPEAT_SECONDS
        return not self.problem or bool(self.told) or now - self.since >= grace_seconds

    def tell(self, message: str, now: float) -> None:
        self.told, self.told_at = message, now
        self.tokens -= 1


class EventSchedule:
    """The events that are due: a problem is told when it begins, changes or lasts, and when it is over.

    Only the present state counts, so that nothing queues up while no event can be written. Each topic has a burst of
    three events and then one in five minutes; what changes more often is told as it is by then.
    """

    def __init__(self) -> None:
        self._tales = {topic: _Tale() for topic in TOPICS}

    def observe(self, problems: Mapping[Topic, str], now: float) -> None:
        """Take the present problem of each topic; none, or an empty text, where there is no problem."""
        for topic, tale in self._tales.items():
            tale.observe(problems.get(topic, ""), now)

    def due(self, now: float) -> Event | None:
        """Return an event to write now; the same one until it is `written`, or its topic changes."""
        for topic, tale in self._tales.items():
            if tale.is_due(topic.grace_seconds, now):
                return Event(topic, tale.problem or topic.relief, bool(tale.problem))
        return None

    def written(self, event: Event, now: float) -> None:
        """Record that an event was written."""
        self._tales[event.topic].tell(event.message if event.is_warning else "", now)


def message_of(problems: Iterable[str]) -> str:
    """Return the first problems on one line of at most 1 KiB, and the number of the others; empty for none."""
    everything = list(problems)
    text, told = "", 0
    for problem in everything:
        line = _cut(printable(" ".join(problem.split()), _LINE_BYTES))
        longer = f"{text}; {line}" if text else line
        if len(longer.encode()) > _MESSAGE_BYTES - _ROOM_BYTES:
            break
        text, told = longer, told + 1
    return text if told == len(everything) else text + _MORE.format(len(everything) - told)


def _cut(line: str) -> str:
    content = line.encode()
    return line if len(content) <= _LINE_BYTES else content[: _LINE_BYTES - 3].decode(errors="ignore") + "..."
