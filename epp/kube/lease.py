# SPDX-License-Identifier: Apache-2.0
"""One lease and its holder: the requests of a replica that wants to hold it, without I/O."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

import msgspec

from epp.framework.clock import Clock

_ABSENT = 404
_CONFLICT = 409
_MOST_CONFLICTS = 3
_LONGEST_SECONDS = 60.0
"""Longest time for which a lease counts that another replica wrote, whatever it says."""
_CREDITED_RETRIES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """A lease, and when it is renewed and lost; the times are the defaults of Kubernetes' own components."""

    name: str
    namespace: str
    seconds: float = 15.0
    """Time without a renewal after which another replica may take the lease."""
    retry_seconds: float = 2.0
    """Time between two attempts to renew the lease, or to take it."""


class Step(Enum):
    """The next request of an attempt."""

    READ = "GET"
    CREATE = "POST"
    REPLACE = "PUT"


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Lease(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: _Spec = _Spec()


class Lease:
    """The lease as one replica sees it, and whether that replica leads.

    An attempt is `begin`, then each `step` with its answer or refusal until there is none. Every write has the
    resourceVersion of what it replaces, so that of two replicas that write at the same time one is refused. Time counts
    by this replica's own clock: a lease has expired when it was seen unchanged for its duration. A time in which the
    API server could not be read counts little, since the holder could not renew it either.

    A leader steps down when it sees another holder, not for want of an answer. Nobody can take over while no replica
    reaches the API server; the leader that serves on then is the only one. If it alone is cut off, two replicas serve
    until it reaches the server again. Both pick by what they see of the endpoints: two pickers are less than ideal for
    prefix caches, no picker is an outage.
    """

    def __init__(self, settings: LeaseSettings, identity: str, clock: Clock) -> None:
        self.identity = identity
        self.is_leader = False
        """Whether this replica held the lease when the API server last told."""
        self._settings = settings
        self._clock = clock
        self._document: Mapping[str, object] | None = None
        """The latest version; None where there is none."""
        self._spec = _Spec()
        self._read_at = 0.0
        self._unchanged_seconds = 0.0
        self._is_current = False
        self._is_done = True
        self._conflicts = 0
        self._resigns = False

    @property
    def holder(self) -> str:
        """The identity in the lease as last seen; empty for none."""
        return self._spec.holder_identity or ""

    @property
    def since(self) -> str:
        """When the holder took it, by its clock."""
        return (self._spec.acquire_time or "") if self.holder else ""

    @property
    def has_expired(self) -> bool:
        """Whether the holder has not renewed it in time."""
        theirs = min(self._spec.lease_duration_seconds or 0, _LONGEST_SECONDS)
        return self._unchanged_seconds >= max(self._settings.seconds, theirs)

    def begin(self) -> None:
        """Start an attempt to renew or take the lease."""
        self._is_current = self.is_leader and self._document is not None
        self._is_done = self._resigns
        self._conflicts = 0

    def resign(self) -> None:
        """Start the attempt that releases the lease; there is none after it."""
        self.begin()
        self._resigns = True
        self._is_done = self._is_current = False

    def step(self) -> Step | None:
        """Return the next request of the attempt; None at its end."""
        if self._is_done or self._conflicts >= _MOST_CONFLICTS:
            return None
        if not self._is_current:
            return Step.READ
        is_mine = self.holder == self.identity
        if self._resigns:
            return Step.REPLACE if is_mine and self._document is not None else None
        if self._document is None:
            return Step.CREATE
        return Step.REPLACE if is_mine or not self.holder or self.has_expired else None

    def content(self) -> dict[str, object]:
        """Return the object to create, or to put in place of the version last seen, of which other fields are kept."""
        before = self._document or {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._settings.name, "namespace": self._settings.namespace},
        }
        now = datetime.fromtimestamp(self._clock.utc(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_mine = self._document is not None and self.holder == self.identity
        transitions = self._spec.lease_transitions or 0
        spec = {
            "holderIdentity": "" if self._resigns else self.identity,
            "leaseDurationSeconds": 1 if self._resigns else max(1, math.ceil(self._settings.seconds)),
            "acquireTime": self.since if is_mine and self.since and not self._resigns else now,
            "renewTime": now,
            "leaseTransitions": transitions if is_mine or self._document is None else transitions + 1,
        }
        earlier = before.get("spec")
        return {**before, "spec": {**(earlier if isinstance(earlier, Mapping) else {}), **spec}}

    def answered(self, step: Step, content: bytes) -> None:
        """Take the lease from an answer; raises ValueError for an unreadable one."""
        try:
            document = msgspec.json.decode(content, type=dict[str, object])
            spec = msgspec.convert(document, _Lease).spec
        except msgspec.DecodeError as error:
            raise ValueError(f"the lease is unreadable: {error}") from error
        now = self._clock.now()
        if spec == self._spec and self._document is not None:
            credited = _CREDITED_RETRIES * self._settings.retry_seconds
            self._unchanged_seconds += min(now - self._read_at, credited)
        else:
            self._unchanged_seconds = 0.0
        self._document, self._spec, self._read_at = document, spec, now
        self.is_leader = self.holder == self.identity
        self._is_current = True
        self._is_done = step is not Step.READ

    def refused(self, step: Step, status: int) -> bool:
        """Take a refusal that belongs to elections; return False for any other, which ends the attempt."""
        if step is Step.READ and status == _ABSENT:
            self._document, self._spec = None, _Spec()
            self._is_current = True
            return True
        if status == _CONFLICT or (step is Step.REPLACE and status == _ABSENT):
            self._conflicts += 1
            self._is_current = False
            return True
        self._is_done = True
        return False
