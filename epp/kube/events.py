# SPDX-License-Identifier: Apache-2.0
"""Events on the InferencePool, for `kubectl describe` and `kubectl get events`: their schedule and their writer."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from epp.framework.clock import Clock
from epp.framework.messages import printable
from epp.kube.access import REFUSED, ApiError, ApiUnreachableError, KubeApi
from epp.kube.resources import EVENTS

_MESSAGE_BYTES = 1024
_LINE_BYTES = 400
_MORE = "; and {} more"
_ROOM_BYTES = 24
_REPEAT_SECONDS = 1200.0
"""Time after which the event of a persistent problem is repeated; API servers keep events for an hour by default."""
_BURST = 3
_REFILL_SECONDS = 300.0
COMPONENT = "inference-epp"
_CHECK_SECONDS = 1.0
_RETRY_SECONDS = 30.0
_LONGEST_RETRY_SECONDS = 600.0
"""Maximum delay while events are forbidden; it doubles each time, because a starting server also forbids access."""
_RESPONSE_SECONDS = 10.0
_NAME_CHARACTERS = 200

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Topic:
    """A kind of problem with its two events."""

    warning: str
    """Reason of the event for a problem."""
    normal: str
    """Reason of the event for its end."""
    resolved: str
    """Message of the event for its end."""
    grace_seconds: float = 0.0


CONFIGURATION = Topic("ConfigurationRefused", "ConfigurationAccepted", "the configuration file is in effect again")
POOL = Topic("PoolNotFound", "PoolFound", "the pool exists again", grace_seconds=15.0)
ENDPOINTS = Topic("NoEndpoints", "EndpointsFound", "the pool has endpoints again", grace_seconds=15.0)
OBJECTS = Topic("ObjectsRefused", "ObjectsAccepted", "all objects are in effect again")
TOPICS = (CONFIGURATION, POOL, ENDPOINTS, OBJECTS)


@dataclass(frozen=True, slots=True)
class Event:
    topic: Topic
    message: str
    is_warning: bool

    @property
    def reason(self) -> str:
        """Reason, by which operators filter events."""
        return self.topic.warning if self.is_warning else self.topic.normal


@dataclass(slots=True)
class _TopicState:
    problem: str = ""
    since: float = 0.0
    recorded: str = ""
    """Problem of the last written event; empty after the event for its end."""
    recorded_at: float = 0.0
    tokens: float = _BURST
    counted_at: float = 0.0


class EventSchedule:
    """Schedules events for the start, change, repetition and end of each problem.

    Only the current state matters, so there is no queue while the API server is unreachable. Each topic allows a burst
    of three events and then one event in five minutes; the event has the state at that time.
    """

    def __init__(self) -> None:
        self._topics = {topic: _TopicState() for topic in TOPICS}

    def observe(self, problems: Mapping[Topic, str], now: float) -> None:
        """Update the problem of each topic; a missing or empty text means no problem."""
        for topic, state in self._topics.items():
            problem = problems.get(topic, "")
            if bool(problem) != bool(state.problem):
                state.since = now
            state.problem = problem
            state.tokens = min(_BURST, state.tokens + (now - state.counted_at) / _REFILL_SECONDS)
            state.counted_at = now

    def due(self, now: float) -> Event | None:
        """Return the event to write now; the same event until `written` is called or its topic changes."""
        for topic, state in self._topics.items():
            if state.tokens < 1:
                continue
            if state.problem == state.recorded:
                is_due = bool(state.problem) and now - state.recorded_at >= _REPEAT_SECONDS
            else:
                is_due = not state.problem or bool(state.recorded) or now - state.since >= topic.grace_seconds
            if is_due:
                return Event(topic, state.problem or topic.resolved, bool(state.problem))
        return None

    def written(self, event: Event, now: float) -> None:
        state = self._topics[event.topic]
        state.recorded, state.recorded_at = event.message if event.is_warning else "", now
        state.tokens -= 1


def message_of(problems: Iterable[str]) -> str:
    """Return one line of at most 1 KiB: the first problems and the number of further ones."""
    everything = list(problems)
    text, count = "", 0
    for problem in everything:
        line = _cut(printable(" ".join(problem.split()), _LINE_BYTES))
        longer = f"{text}; {line}" if text else line
        if len(longer.encode()) > _MESSAGE_BYTES - _ROOM_BYTES:
            break
        text, count = longer, count + 1
    return text if count == len(everything) else text + _MORE.format(len(everything) - count)


def _cut(line: str) -> str:
    content = line.encode()
    return line if len(content) <= _LINE_BYTES else content[: _LINE_BYTES - 3].decode(errors="ignore") + "..."


@dataclass(frozen=True, slots=True)
class Subject:
    """The object of the events."""

    api_version: str
    kind: str
    name: str
    namespace: str
    uid: str = ""
    """Empty while the object does not exist."""


class EventWriter:
    """Checks for problems once a second, and writes one event at a time while `may_write` returns true.

    Events are optional: after a failure, a later attempt writes the state at that time. The name of an event depends on
    its subject and reason only, so that all replicas update the same event.
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
        """`instance` is the name of this replica."""
        self._api = api
        self._instance = instance
        self._clock = clock
        self._subject = subject
        self._problems = problems
        self._may_write = may_write
        self._schedule = EventSchedule()
        self._counts: dict[str, tuple[int, str]] = {}
        """Number of written events by reason, and the time of the first, for the current subject."""
        self._counted_uid = ""
        self._refusal_logged = False
        self._retry_seconds = _RETRY_SECONDS

    async def run(self) -> None:
        pause_until = 0.0
        while True:
            now = self._clock.now()
            self._schedule.observe(self._problems(), now)
            event = self._schedule.due(now) if now >= pause_until and self._may_write() else None
            if event is not None:
                pause_until = now + await self._write(event)
            await asyncio.sleep(_CHECK_SECONDS)

    async def _write(self, event: Event) -> float:
        """Write an event; return the delay before the next one."""
        subject = self._subject()
        content = self._content(event, subject)
        path = f"{EVENTS.path('v1', subject.namespace)}/{_name(event, subject)}"
        # Server-side apply creates or replaces the event in one request; reading it would need one more right.
        params = {"fieldManager": COMPONENT, "force": "true"}
        try:
            async with asyncio.timeout(_RESPONSE_SECONDS):
                await self._api.request(
                    "PATCH", path, params=params, body=content, content_type="application/apply-patch+yaml"
                )
        except (ApiError, ApiUnreachableError, TimeoutError) as error:
            return self._failed(error, subject)
        self._schedule.written(event, self._clock.now())
        number, first_at = self._counts[event.reason]
        self._counts[event.reason] = number + 1, first_at
        self._retry_seconds = _RETRY_SECONDS
        return 0.0

    def _failed(self, error: Exception, subject: Subject) -> float:
        if not isinstance(error, ApiError):
            return _RETRY_SECONDS
        forbidden = error.status in REFUSED
        if not self._refusal_logged:
            remedy = f"allow create and patch of events in {subject.namespace}, or ignore this"
            _log.info("events cannot be written", reason=str(error), **({"remedy": remedy} if forbidden else {}))
            self._refusal_logged = True
        if not forbidden:
            return _RETRY_SECONDS
        wait, self._retry_seconds = self._retry_seconds, min(2 * self._retry_seconds, _LONGEST_RETRY_SECONDS)
        return wait

    def _content(self, event: Event, subject: Subject) -> dict[str, object]:
        now = datetime.fromtimestamp(self._clock.utc(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if subject.uid != self._counted_uid:
            self._counts, self._counted_uid = {}, subject.uid
        number, first_at = self._counts.setdefault(event.reason, (0, now))
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": _name(event, subject), "namespace": subject.namespace},
            "involvedObject": {
                "apiVersion": subject.api_version,
                "kind": subject.kind,
                "name": subject.name,
                "namespace": subject.namespace,
                **({"uid": subject.uid} if subject.uid else {}),
            },
            "type": "Warning" if event.is_warning else "Normal",
            "reason": event.reason,
            "message": event.message,
            "count": number + 1,
            "firstTimestamp": first_at,
            "lastTimestamp": now,
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._instance,
        }


def _name(event: Event, subject: Subject) -> str:
    identity = hashlib.sha256(f"{subject.uid}\n{event.reason}".encode()).hexdigest()[:16]
    return f"{subject.name[:_NAME_CHARACTERS].rstrip('.-')}.{identity}"
