# SPDX-License-Identifier: Apache-2.0
"""Use of a tenant's quota at other pickers of the pool, and the limit of the unconfirmed use of this picker.

The unconfirmed use of a picker is the use that other pickers may not know yet. It is limited to one request or to the
rest of the limit divided by the number of pickers, whichever is larger. All pickers together exceed a limit at most by
the unconfirmed use of the other pickers.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil
from typing import NamedTuple

import msgspec

from epp.admission.quotas.usage import DAY_PART, MINUTE_PART, NO_USE, Use

MOST_ENDED = 64
"""Largest number of pickers that ended today whose use of the day is kept, for each tenant."""
_MOST_USE = 1e18
_MOST_NAME = 256
_ROUNDING = 1e-9
GRACE_SECONDS = 2.0
"""Time after the loss of contact until `WhenAlone` takes effect; other pickers forget this one after 5 seconds."""
_MINUTE = 60.0


class WhenAlone(StrEnum):
    """Part of each quota that a picker may use without contact with the other pickers."""

    LAST_KNOWN_SHARE = "last-known-share"
    REFUSE = "refuse"
    FULL_LIMIT = "full-limit"


class Unavailable(NamedTuple):
    """Amounts of each limit that this picker may not use."""

    used: Use = NO_USE
    """Last reported use by other pickers, except tokens of the minute, which are in the bucket."""
    reserved: Use = NO_USE
    """Amounts reserved for the unconfirmed use of other pickers until they have received this picker's use."""


ALL_AVAILABLE = Unavailable()


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Use of one tenant at one picker."""

    tenant: str
    born: int
    """Number of the account; a new account counts tokens of the minute from 0."""
    use: Use
    """Its tokens of the minute are all that were ever charged; its amounts of the day include what requests in flight
    are expected to use."""
    minute_content: float
    """Tokens of all pickers that have not drained."""
    date: int
    """Date of the use of the day, in days since 1970."""
    others: tuple[tuple[str, float, float], ...] = ()
    """Names and last reported use of the day of the other pickers."""

    def __post_init__(self) -> None:
        days = [number for _, *numbers in self.others for number in numbers]
        if not all(abs(number) <= _MOST_USE for number in (*self.use, self.minute_content, *days)):
            raise ValueError("the use of a quota is not a number")
        if min((*self.use[:MINUTE_PART], *self.use[DAY_PART:], self.minute_content, *days)) < 0:
            raise ValueError("the use of a quota is negative")
        if any(len(name) > _MOST_NAME for name in (self.tenant, *(picker for picker, *_ in self.others))):
            raise ValueError(f"a name has more than {_MOST_NAME} characters")


class Group:
    """State for all tenants: number of pickers, and contact with them."""

    def __init__(self, picker: str, when_alone: WhenAlone) -> None:
        self.picker = picker
        self.pickers = 1
        """Number of pickers, including this one."""
        self.lost_at: float | None = None
        """Time of the loss of contact; None while there is contact."""
        self.accounts = 0
        self._when_alone = when_alone

    def policy(self, now: float) -> WhenAlone | None:
        """Return the rule for the loss of contact; None if it does not apply."""
        return self._when_alone if self.lost_at is not None and now - self.lost_at > GRACE_SECONDS else None

    def new_use(self) -> "PeerUse":
        self.accounts += 1
        return PeerUse(self, self.accounts)


@dataclass(slots=True, eq=False)
class PeerUse:
    """Use of one tenant at other pickers, and the own use that all of them have received."""

    _group: Group
    born: int
    _sent: Use = NO_USE
    _acknowledged: Use = NO_USE
    """Own use that each of the other pickers counts at least."""
    _next: Use = NO_USE
    """Value of `_acknowledged` after the other pickers have received version `_waits_for`."""
    _waits_for: int = 0
    _sent_version: int = 0
    _peers: dict[str, Entry] = field(default_factory=dict)
    _days: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Use of the day by picker, including ended ones."""
    _today: int = -1
    _sum: Use | None = None
    _drained_at: float = 0.0

    @property
    def is_used(self) -> bool:
        """Whether another picker uses the quota, or counts requests of this one."""
        return any(any(use[:MINUTE_PART]) for use in (self._sent, *(entry.use for entry in self._peers.values())))

    def record_sent(self, use: Use, version: int) -> None:
        self._acknowledged = self._acknowledged.least(use)
        if self._waits_for:
            self._next = self._next.least(use)
        else:
            self._waits_for, self._next = version, use
        self._sent, self._sent_version = use, version

    def resend(self) -> None:
        """Wait for the next version, since another picker may have missed the last ones."""
        self._waits_for = 0

    def confirm(self, version: int) -> bool:
        """Record a version that all other pickers have received; return whether it is the last one."""
        if self._waits_for > version:
            return False
        if self._sent_version <= version:
            self._acknowledged, self._waits_for = self._sent, 0
            return True
        self._acknowledged, self._next, self._waits_for = self._next, self._sent, self._sent_version
        return False

    def record(self, peer: str, entry: Entry, today: int, *, is_today: bool) -> float | None:
        """Record the use at another picker; return new tokens of the minute, None if unknown."""
        self._start(today)
        before = self._peers.get(peer)
        self._peers[peer] = entry
        if is_today:
            self._days[peer] = entry.use.device_seconds, entry.use.dollars
            for picker, *numbers in entry.others:
                self._record_indirectly(picker, *numbers)
        self._sum = None
        if before is None or before.born != entry.born:
            return None
        return entry.use.minute_tokens - before.use.minute_tokens

    def forget(self, peer: str) -> None:
        """Drop the use at a picker that has ended, except that of the day."""
        self._peers.pop(peer, None)
        self._sum = None

    def total(self, today: int) -> Use:
        """Return the use at all other pickers; tokens of the minute are in the bucket."""
        self._start(today)
        if self._sum is None:
            uses = (entry.use[:MINUTE_PART] for entry in self._peers.values())
            in_flight = map(sum, zip(NO_USE[:MINUTE_PART], *uses, strict=True))
            days = map(sum, zip(NO_USE[DAY_PART:], *self._days.values(), strict=True))
            self._sum = Use._make((*in_flight, 0.0, *days))
        return self._sum

    def days(self, today: int) -> tuple[tuple[str, float, float], ...]:
        """Return the use of the day by picker, including ended ones; at most the latest 64."""
        self._start(today)
        return tuple((picker, *numbers) for picker, numbers in self._days.items())[-MOST_ENDED:]

    def unavailable(self, own: Use, limits: Use, content: float, now: float, today: int) -> Unavailable:
        """Return the amounts that this picker may not use; `content` are tokens that have not drained."""
        policy, pickers = self._group.policy(now), self._group.pickers
        if policy is WhenAlone.FULL_LIMIT:
            return ALL_AVAILABLE
        if policy is WhenAlone.REFUSE:
            return Unavailable(reserved=limits.plus(limits))
        used = self.total(today)
        if pickers == 1:
            return Unavailable(used)
        self._drain(own.minute_tokens, limits.minute_tokens / pickers, now)
        reserved = [0.0] * len(limits)
        for part, limit in enumerate(limits):
            unknown = own[part] - self._acknowledged[part]
            if limit > 0 and unknown > limit * _ROUNDING:
                total = content if part == MINUTE_PART else own[part] + used[part]
                reserved[part] = max(0.0, limit - total + unknown) * (1.0 - 1.0 / pickers)
        return Unavailable(used, Use(ceil(reserved[0] - _ROUNDING), *reserved[1:]))

    def _record_indirectly(self, picker: str, device_seconds: float, dollars: float) -> None:
        """Record the use of the day of a picker, as reported by another picker."""
        before = self._days.get(picker)
        if picker in self._peers or picker == self._group.picker or (before is None and len(self._days) > MOST_ENDED):
            return
        self._days[picker] = max(device_seconds, (before or NO_USE)[0]), max(dollars, (before or NO_USE)[1])

    def _start(self, today: int) -> None:
        if self._today != today:
            self._today, self._sum = today, None
            self._days.clear()
            self._sent, self._acknowledged, self._next = (
                each._replace(device_seconds=0.0, dollars=0.0) for each in (self._sent, self._acknowledged, self._next)
            )

    def _drain(self, own: float, limit: float, now: float) -> None:
        """Drain the unconfirmed tokens of the minute while contact is lost, because peers cannot confirm them."""
        lost_at = self._group.lost_at
        if lost_at is not None:
            drained = (now - max(self._drained_at, lost_at)) * limit / _MINUTE
            known = max(self._acknowledged.minute_tokens, min(own, self._acknowledged.minute_tokens + drained))
            self._acknowledged = self._acknowledged._replace(minute_tokens=known)
        self._drained_at = now
