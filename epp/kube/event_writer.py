# SPDX-License-Identifier: Apache-2.0
"""Writes events on an InferencePool, for `kubectl describe` and `kubectl get events`."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from epp.framework.clock import Clock
from epp.kube.access import KubeApi
from epp.kube.errors import ApiError, ApiUnreachableError
from epp.kube.events import Event, EventSchedule, Topic
from epp.kube.resources import EVENTS

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
