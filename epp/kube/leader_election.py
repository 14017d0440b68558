# SPDX-License-Identifier: Apache-2.0
"""Leader election by a lease: its state without I/O, and the task that renews it or waits for it."""

import asyncio
import math
import random
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

import msgspec
import structlog

from epp.framework.clock import Clock
from epp.kube.access import REFUSED, ApiError, ApiUnreachableError, KubeApi
from epp.kube.objects.base import Part, convert
from epp.kube.resources import LEASES

_ABSENT = 404
_CONFLICT = 409
_MOST_CONFLICTS = 3
_LONGEST_SECONDS = 60.0
"""Maximum for the duration that another replica writes into the lease."""
_CREDITED_RETRIES = 2
_JITTER = (0.8, 1.2)

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """Name and timing of a lease; the default times are those of Kubernetes components."""

    name: str
    namespace: str
    seconds: float = 15.0
    """Time after the last renewal until another replica may take the lease."""
    retry_seconds: float = 2.0


class _Spec(Part, frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Lease(Part, frozen=True):
    version: str = msgspec.field(name="metadata.resourceVersion")
    spec: _Spec = _Spec()


Attempt: TypeAlias = Generator[tuple[str, Mapping[str, object] | None], bytes, bool]
"""Yields method and body of each request, receives the response or an ApiError; returns whether it wrote the lease."""


class Lease:
    """State of the lease as seen by one replica, without I/O.

    A write has the resourceVersion that it replaces: if two replicas write at the same time, the API server rejects
    one. The replica uses its own clock: a lease expires when it is unchanged for its duration. Time without access to
    the API server counts only in part, because the holder cannot renew the lease either.

    A leader steps down when it sees another holder, but not when the API server is unreachable. If all replicas lose
    access, the leader continues alone. If only the leader loses access, two replicas serve until it has access again.
    Two pickers are worse for prefix caches; no picker is an outage.
    """

    def __init__(self, settings: LeaseSettings, identity: str, clock: Clock) -> None:
        self.identity = identity
        self.is_leader = False
        """Whether this replica held the lease in its last known version."""
        self._settings = settings
        self._clock = clock
        self._document: Mapping[str, object] | None = None
        self._spec = _Spec()
        self._read_at = 0.0
        self._unchanged_seconds = 0.0

    @property
    def holder(self) -> str:
        """Holder in the last known version; empty for none."""
        return self._spec.holder_identity or ""

    @property
    def since(self) -> str:
        """Time at which the holder took the lease, by its clock."""
        return (self._spec.acquire_time or "") if self.holder else ""

    def attempt(self, *, resigns: bool = False) -> Attempt:
        """Renew, take or, if the replica `resigns`, release the lease; raises unexpected errors, and ValueError."""
        is_current = self.is_leader and self._document is not None and not resigns
        for _ in range(_MOST_CONFLICTS):
            if not is_current:
                try:
                    self._read((yield "GET", None))
                except ApiError as error:
                    if error.status != _ABSENT:
                        raise
                    self._document, self._spec = None, _Spec()
            if not self._may_write(resigns=resigns):
                return False
            creates = self._document is None
            try:
                self._read((yield "POST" if creates else "PUT", self._content(resigns=resigns)))
            except ApiError as error:
                if error.status != _CONFLICT and (creates or error.status != _ABSENT):
                    raise
                is_current = False
            else:
                return True
        return False

    def _may_write(self, *, resigns: bool) -> bool:
        duration = min(self._spec.lease_duration_seconds or 0, _LONGEST_SECONDS)
        has_expired = self._unchanged_seconds >= max(self._settings.seconds, duration)
        return self._is_mine or (not resigns and (not self.holder or has_expired))

    @property
    def _is_mine(self) -> bool:
        return self._document is not None and self.holder == self.identity

    def _content(self, *, resigns: bool) -> dict[str, object]:
        before = self._document or {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._settings.name, "namespace": self._settings.namespace},
        }
        now = datetime.fromtimestamp(self._clock.utc(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_mine, transitions = self._is_mine, self._spec.lease_transitions or 0
        spec = {
            "holderIdentity": "" if resigns else self.identity,
            "leaseDurationSeconds": 1 if resigns else max(1, math.ceil(self._settings.seconds)),
            "acquireTime": self.since if is_mine and self.since and not resigns else now,
            "renewTime": now,
            "leaseTransitions": transitions if is_mine or self._document is None else transitions + 1,
        }
        earlier = before.get("spec")
        return {**before, "spec": {**(earlier if isinstance(earlier, Mapping) else {}), **spec}}

    def _read(self, content: bytes) -> None:
        try:
            document = msgspec.json.decode(content, type=dict[str, object])
            spec = convert(document, _Lease).spec
        except (msgspec.DecodeError, ValueError) as error:
            raise ValueError(f"the lease is unreadable: {error}") from error
        now = self._clock.now()
        if spec == self._spec and self._document is not None:
            credited = _CREDITED_RETRIES * self._settings.retry_seconds
            self._unchanged_seconds += min(now - self._read_at, credited)
        else:
            self._unchanged_seconds = 0.0
        self._document, self._spec, self._read_at = document, spec, now
        self.is_leader = self.holder == self.identity


class LeaderElection:
    """Elects one leader among the replicas with the same lease.

    llm-d-router ends its process if it does not renew the lease in time. This picker becomes a follower: open streams
    continue, and it still knows the endpoints when it leads again.
    """

    def __init__(self, api: KubeApi, settings: LeaseSettings, identity: str, *, clock: Clock) -> None:
        self.settings = settings
        self.lease = Lease(settings, identity, clock)
        self.is_leader = False
        self.problem = ""
        """Error of the last attempt; empty if it succeeded."""
        self._api = api
        self._clock = clock
        self._collection = LEASES.path("v1", settings.namespace)
        self._response_seconds = settings.seconds / 3
        self._on_change: Callable[[bool], None] | None = None
        self._logged_holder = ""
        self._failing_since: float | None = None
        self._is_failure_logged = False

    async def run(self, on_change: Callable[[bool], None]) -> None:
        """Renew the lease or wait for it until cancelled; call `on_change` when `is_leader` changes."""
        self._on_change = on_change
        while True:
            await self._attempt()
            await asyncio.sleep(self.settings.retry_seconds * random.uniform(*_JITTER))  # noqa: S311  spreads requests

    def step_down(self) -> None:
        """Stop leading, but keep the lease. Cancel `run`, then call `release`."""
        self._on_change = None
        self.is_leader = False

    async def release(self) -> None:
        """Release the lease if this replica holds it, so that another replica can take it immediately."""
        try:
            async with asyncio.timeout(self._response_seconds):
                wrote = await self._send_all(resigns=True)
        except (ApiError, ApiUnreachableError, TimeoutError, ValueError) as error:
            _log.warning("lease not released; it expires later", lease=self._title, reason=_error_text(error))
        else:
            if wrote:
                _log.info("lease released", lease=self._title)

    @property
    def _title(self) -> str:
        return f"{self.settings.namespace}/{self.settings.name}"

    async def _attempt(self) -> None:
        try:
            await self._send_all()
        except (ApiError, ApiUnreachableError, TimeoutError, ValueError) as error:
            self._failed(error)
        else:
            if self._is_failure_logged:
                _log.info("lease readable again", lease=self._title)
            self.problem, self._failing_since, self._is_failure_logged = "", None, False
        self._publish()

    async def _send_all(self, *, resigns: bool = False) -> bool:
        """Send the requests of an attempt; return whether the lease was written. Raises errors of requests."""
        attempt = self.lease.attempt(resigns=resigns)
        method, content = next(attempt)
        while True:
            path = self._collection if method == "POST" else f"{self._collection}/{self.settings.name}"
            try:
                try:
                    async with asyncio.timeout(self._response_seconds):
                        response = await self._api.request(method, path, body=content)
                except ApiError as error:
                    method, content = attempt.throw(error)
                else:
                    method, content = attempt.send(response)
            except StopIteration as end:
                return bool(end.value)

    def _failed(self, error: Exception) -> None:
        """Log a failure once: missing rights immediately, other errors when another replica may take the lease."""
        self.problem = _error_text(error)
        now = self._clock.now()
        if self._failing_since is None:
            self._failing_since = now
        if self._is_failure_logged:
            return
        if isinstance(error, ApiError) and error.status in REFUSED:
            remedy = f"allow get, create and update of leases.{LEASES.group} in {self.settings.namespace}"
            _log.error("no access to the lease", lease=self._title, reason=self.problem, remedy=remedy)
        elif now - self._failing_since >= self.settings.seconds - self._response_seconds:
            _log.warning("lease not readable", lease=self._title, reason=self.problem, leader=self.is_leader)
        else:
            return
        self._is_failure_logged = True

    def _publish(self) -> None:
        if self._on_change is None:
            return
        if self.lease.holder not in {self._logged_holder, self.lease.identity} and not self.is_leader:
            _log.info("another replica leads", lease=self._title, holder=self.lease.holder, since=self.lease.since)
        self._logged_holder = self.lease.holder or self._logged_holder
        if self.lease.is_leader == self.is_leader:
            return
        self.is_leader = self.lease.is_leader
        if self.is_leader:
            _log.info("this replica leads", lease=self._title, identity=self.lease.identity)
        else:
            _log.warning("this replica no longer leads", lease=self._title, holder=self.lease.holder)
        self._on_change(self.is_leader)


def _error_text(error: Exception) -> str:
    return str(error) or "no response in time"
