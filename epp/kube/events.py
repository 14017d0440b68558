# SPDX-License-Identifier: Apache-2.0
"""Events on the InferencePool, for `kubectl describe` and `kubectl get events`: their schedule and their writer."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from epp.framework.clock import Clock
from epp.framework.printable import printable
from epp.kube.access import ApiError, ApiUnreachableError, KubeApi
from epp.kube.resources import EVENTS

_MESSAGE_BYTES = 1024
_LINE_BYTES = 400
_MORE = "; and {} more"
_ROOM_BYTES = 24
_REPEAT_SECONDS = 1200.0
"""Time after which a problem that lasts is told again; API servers keep events for an hour by default."""
_BURST = 3
_REFILL_SECONDS = 300.0
COMPONENT = "inference-epp"
_LOOK_SECONDS = 1.0
_RETRY_SECONDS = 30.0
_LONGEST_RETRY_SECONDS = 600.0
"""The same where events are forbidden: the time doubles, since a server that starts forbids for a moment too."""
_ANSWER_SECONDS = 10.0
_NAME_CHARACTERS = 200
_FORBIDDEN = frozenset({401, 403})

_log = structlog.get_logger()


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


@dataclass(frozen=True, slots=True)
class Subject:
    """The object that events are about."""

    api_version: str
    kind: str
    name: str
    namespace: str
    uid: str = ""
    """Empty while it is not there."""


@dataclass(slots=True)
class _Count:
    """Events of one reason that were written on the present subject."""

    number: int
    first_at: str


class EventWriter:
    """Looks for problems once a second, and writes one event at a time while `may_write`.

    Events are optional: one that cannot be written is dropped, and the state at a later time is told instead. The name
    of an event follows from its subject and reason: replicas that all write keep one event up to date together.
    """

    def __init__(
        self,
        api: KubeApi,
        instance: str,
        *,
        clock: Clock,
        subject: Callable[[], Subject],
        problems: Callable[[], Mapping[Topic, str]],
        may_write: Callable[[], bool],
    ) -> None:
        """Prepare; `instance` is the name of this replica."""
        self._api = api
        self._instance = instance
        self._clock = clock
        self._subject = subject
        self._problems = problems
        self._may_write = may_write
        self._schedule = EventSchedule()
        self._counts: dict[str, _Count] = {}
        self._counted_uid = ""
        self._refusal_told = False
        self._retry_seconds = _RETRY_SECONDS

    async def run(self) -> None:
        """Write events until cancelled."""
        pause_until = 0.0
        while True:
            now = self._clock.now()
            self._schedule.observe(self._problems(), now)
            event = self._schedule.due(now) if now >= pause_until and self._may_write() else None
            if event is not None:
                pause_until = now + await self._write(event)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _write(self, event: Event) -> float:
        """Write an event; return the time to wait before the next one."""
        subject = self._subject()
        content = self._content(event, subject)
        path = f"{EVENTS.path('v1', subject.namespace)}/{_name(event, subject)}"
        # One request that creates the event or replaces it: reading events needs one more right.
        params = {"fieldManager": COMPONENT, "force": "true"}
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._api.request(
                    "PATCH", path, params=params, body=content, content_type="application/apply-patch+yaml"
                )
        except (ApiError, ApiUnreachableError, TimeoutError) as error:
            return self._failed(error, subject)
        self._schedule.written(event, self._clock.now())
        self._counts[event.reason].number += 1
        self._retry_seconds = _RETRY_SECONDS
        return 0.0

    def _failed(self, error: Exception, subject: Subject) -> float:
        if not isinstance(error, ApiError):
            return _RETRY_SECONDS
        forbidden = error.status in _FORBIDDEN
        if not self._refusal_told:
            remedy = f"allow create and patch of events in {subject.namespace}, or ignore this"
            _log.info("events cannot be written", reason=str(error), **({"remedy": remedy} if forbidden else {}))
            self._refusal_told = True
        if not forbidden:
            return _RETRY_SECONDS
        wait, self._retry_seconds = self._retry_seconds, min(2 * self._retry_seconds, _LONGEST_RETRY_SECONDS)
        return wait

    def _content(self, event: Event, subject: Subject) -> dict[str, object]:
        now = datetime.fromtimestamp(self._clock.utc(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if subject.uid != self._counted_uid:
            self._counts, self._counted_uid = {}, subject.uid
        count = self._counts.setdefault(event.reason, _Count(0, now))
        regarding = {
            "apiVersion": subject.api_version,
            "kind": subject.kind,
            "name": subject.name,
            "namespace": subject.namespace,
            **({"uid": subject.uid} if subject.uid else {}),
        }
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": _name(event, subject), "namespace": subject.namespace},
            "involvedObject": regarding,
            "type": "Warning" if event.is_warning else "Normal",
            "reason": event.reason,
            "message": event.message,
            "count": count.number + 1,
            "firstTimestamp": count.first_at,
            "lastTimestamp": now,
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._instance,
        }


def _name(event: Event, subject: Subject) -> str:
    identity = hashlib.sha256(f"{subject.uid}\n{event.reason}".encode()).hexdigest()[:16]
    return f"{subject.name[:_NAME_CHARACTERS].rstrip('.-')}.{identity}"
