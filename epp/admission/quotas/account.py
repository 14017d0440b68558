# SPDX-License-Identifier: Apache-2.0
"""Accounts of tenants: usage by requests in flight, usage over time, and amounts reserved for nominated requests."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from epp.admission.quotas.peer_use import ALL_AVAILABLE, PeerUse, Unavailable
from epp.admission.quotas.reservation import Reservation, Spent
from epp.admission.quotas.usage import (
    MINUTE_PART,
    NO_USE,
    TOTAL_KEYS,
    DayUse,
    LimitKey,
    Means,
    MinuteUse,
    Use,
)
from epp.framework.quotas import Quota
from epp.framework.request import Request, Usage

MOST = 64
"""Largest number of nominated requests of a tenant; a new one replaces the oldest."""
_RELEASES = 16
"""Number of releases from which their rate is measured."""
_LEARNT_SECONDS = 600.0
"""Time for which the means of an idle tenant are kept."""
_LEARNT_WEIGHT = 1e-6
"""Weight of an account that only has means."""
_MOST_TOKENS = 2**32
"""Limit on the tokens of one request that a model server may report."""
_LONGEST_NAME = 256
_OVER_TIME = TOTAL_KEYS[MINUTE_PART:]


class _Nomination(NamedTuple):
    until: float
    victims: tuple[Reservation, ...]


@dataclass(slots=True)
class Nominations:
    """Amounts freed by evictions for nominated requests of a tenant, and reserved against lower priorities."""

    _of: dict[Request, _Nomination] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._of)

    def twin(self) -> "Nominations":
        return Nominations(self._of.copy())

    def add(self, request: Request, victims: Sequence[Reservation], until: float) -> None:
        """Reserve the amounts of the victims for a request, from their release until `until` on the clock."""
        self._of.pop(request, None)
        if len(self._of) >= MOST:
            del self._of[next(iter(self._of))]
        self._of[request] = _Nomination(until, tuple(victims))

    def forget(self, request: Request) -> bool:
        return self._of.pop(request, None) is not None

    def forget_before(self, now: float) -> bool:
        over = [request for request, nomination in self._of.items() if nomination.until <= now]
        for request in over:
            del self._of[request]
        return bool(over)

    def held_against(self, request: Request) -> Use:
        """Return the amounts that are reserved for requests of higher priority."""
        held = NO_USE
        for nominated, nomination in self._of.items():
            if nominated.priority > request.priority:
                for victim in nomination.victims:
                    if victim.is_released:
                        held = held.plus(victim.charged)
        return held

    def until(self, now: float) -> float:
        return max((nomination.until for nomination in self._of.values()), default=now)


def brief(tenant: str) -> str:
    """Return the name of the tenant for its account, shortened since clients may choose long names."""
    if len(tenant) <= _LONGEST_NAME:
        return tenant
    return f"{tenant[:64]}...{blake2b(tenant.encode(errors='replace'), digest_size=16).hexdigest()}"


@dataclass(slots=True, eq=False)
class Account:
    """Account of a tenant, with sums over its requests in flight."""

    tenant: str
    quota: Quota
    """The quota at the last request; `set_quota` replaces it."""
    limits: Use = field(init=False)
    """Limits of the quota on all requests together."""
    in_flight: Use = NO_USE
    """Sum of the charges of all requests in flight."""
    minute: MinuteUse = field(default_factory=MinuteUse)
    device_seconds: DayUse = field(default_factory=DayUse)
    dollars: DayUse = field(default_factory=DayUse)
    means: Means = field(default_factory=Means)
    peer_use: PeerUse | None = None
    """Use at other pickers; None if it is not shared."""
    nominations: Nominations = field(default_factory=Nominations)
    alerts: dict[LimitKey, float] = field(default_factory=dict)
    """Last time at which usage was above the threshold, by limit with an alert."""
    uncounted: Counter[LimitKey] = field(default_factory=Counter)
    """Number of requests that were not charged to a limit, since the hardware or price of their endpoint is unknown."""
    _by_priority: dict[int, dict[Reservation, None]] = field(default_factory=dict)
    _releases: deque[float] = field(default_factory=lambda: deque(maxlen=_RELEASES))

    def __post_init__(self) -> None:
        self.tenant = brief(self.tenant)
        self.set_quota(self.quota)

    def set_quota(self, quota: Quota) -> None:
        self.quota = quota
        self.limits = Use(*msgspec.structs.astuple(quota.total))

    def twin(self, quota: Quota) -> "Account":
        """Return a copy with another quota; calls of its methods do not change this account."""
        other = copy(self)
        other.set_quota(quota)
        other.minute = copy(self.minute)
        other.device_seconds, other.dollars = copy(self.device_seconds), copy(self.dollars)
        other.nominations = self.nominations.twin()
        return other

    def own(self, today: int) -> Use:
        """Return the use at this picker, as in `Entry.use`."""
        in_flight = self.in_flight
        device_seconds = self.device_seconds.taken(today) + in_flight.device_seconds
        dollars = self.dollars.taken(today) + in_flight.dollars
        return Use._make((*in_flight[:MINUTE_PART], self.minute.added, device_seconds, dollars))

    def unavailable(self, now: float, today: int) -> Unavailable:
        """Return the amounts that other pickers use, or that are reserved for them."""
        if self.peer_use is None:
            return ALL_AVAILABLE
        return self.peer_use.unavailable(self.own(today), self.limits, self.minute_content(now), now, today)

    def minute_content(self, now: float) -> float:
        """Return the tokens of all pickers that have not drained; 0 without a limit."""
        limit = self.limits.minute_tokens
        return self.minute.taken(limit, now) if limit > 0 else 0.0

    def need(self, request: Request, accelerator_bytes: float = 0.0, tflops: float = 0.0) -> Use:
        """Return the amounts that a request needs; those of the day are means of the requests of its tenant.

        The output of a request without a maximum is estimated. Prompt and estimate do not exceed the limit, unless the
        prompt does, so that the estimate alone cannot make a request impossible. The tokens of the minute are 0 if the
        quota has no limit on them.
        """
        limits, means = self.limits, self.means
        prompt, most = request.prompt_tokens, request.body.max_output_tokens
        if most is None:
            tokens = prompt + means.output_tokens
            if limits.tokens > 0:
                tokens = min(tokens, max(limits.tokens, prompt))
            expected = means.output_tokens
        else:
            tokens = prompt + max(0, most)
            expected = min(max(0, most), means.output_tokens)
        minute_tokens = prompt + expected if limits.minute_tokens > 0 else 0.0
        return Use(1, tokens, accelerator_bytes, tflops, minute_tokens, means.device_seconds, means.dollars)

    def charge(self, reservation: Reservation, need: Use, now: float) -> None:
        reservation.is_limited = True
        reservation.charged = need
        self.in_flight = self.in_flight.plus(need)
        if need.minute_tokens:
            self.minute.add(need.minute_tokens, self.limits.minute_tokens, now)
        self._by_priority.setdefault(reservation.priority, {})[reservation] = None

    def recharge(self, reservation: Reservation, charged: Use) -> None:
        """Replace the charge of a request in flight."""
        self.in_flight = self.in_flight.plus(charged).minus(reservation.charged)
        reservation.charged = charged

    def spend(self, reservation: Reservation, spent: Spent, today: int) -> None:
        """Charge the time that a request has spent at endpoints to the day."""
        self.device_seconds.add(spent.device_seconds, today)
        self.dollars.add(spent.dollars, today)
        if not reservation.is_released:  # `give_back` refunds all that is expected
            used = Use(device_seconds=spent.device_seconds, dollars=spent.dollars)
            self.recharge(reservation, reservation.charged.minus(used))

    def give_back(self, reservation: Reservation, usage: Usage | None, now: float, *, unserved: bool) -> None:
        """Refund the amounts of a request that has ended, once; its time has been charged."""
        of_priority = self._by_priority[reservation.priority]
        del of_priority[reservation]
        if not of_priority:
            del self._by_priority[reservation.priority]
        self._releases.append(now)
        self._correct(reservation, usage, now, unserved=unserved)
        if not unserved:
            spent = reservation.spent
            self.means.ended(spent.seconds, spent.device_seconds, spent.dollars)
        # Exactly zero without requests, since sums of floats drift.
        self.in_flight = self.in_flight.minus(reservation.charged) if self._by_priority else NO_USE

    def lowest_first(self, below: int) -> Iterator[Reservation]:
        """Yield the requests below a priority, the lowest priority first; within a priority, the newest first."""
        for priority in sorted(each for each in self._by_priority if each < below):
            yield from reversed(self._by_priority[priority])

    def reservations(self) -> Iterator[Reservation]:
        for of_priority in self._by_priority.values():
            yield from of_priority

    def releases_per_second(self, now: float) -> float:
        """Return the recent rate of ended requests; 0 if unknown."""
        releases = self._releases
        return (len(releases) - 1) / max(now - releases[0], 1e-3) if len(releases) > 1 else 0.0

    @property
    def counts_over_time(self) -> bool:
        """Whether a limit counts usage over time, which may grow when a request ends."""
        return any(self.limits[MINUTE_PART:])

    def uses(self, now: float, today: int) -> Iterator[tuple[LimitKey, float, float]]:
        """Yield name, usage at all pickers and value of each limit."""
        over_time = self.minute_content(now), self.device_seconds.taken(today), self.dollars.taken(today)
        used = (*self.in_flight[:MINUTE_PART], *over_time)
        for key, own, there, limit in zip(TOTAL_KEYS, used, self.used_by_peers(today), self.limits, strict=True):
            if limit > 0:
                yield key, own + there, limit

    def used_by_peers(self, today: int) -> Use:
        """Return the use at other pickers; tokens of the minute are in the bucket."""
        return NO_USE if self.peer_use is None else self.peer_use.total(today)

    def weight(self, now: float, today: int) -> float:
        """Return the largest used share of a limit over time; 0 if the account can be dropped.

        Means have a small weight for ten minutes, if a limit needs them.
        """
        if self.peer_use is not None and self.peer_use.is_used:
            return 1.0
        share = max((used / limit for key, used, limit in self.uses(now, today) if key in _OVER_TIME), default=0.0)
        if share <= 0 and self._releases and now - self._releases[-1] < _LEARNT_SECONDS:
            return _LEARNT_WEIGHT if self.limits.tokens > 0 or self.counts_over_time else 0.0
        return share

    def _correct(self, reservation: Reservation, usage: Usage | None, now: float, *, unserved: bool) -> None:
        limit, charged, correction = self.limits.minute_tokens, reservation.charged.minute_tokens, 0.0
        if usage is not None:
            self.means.answered(usage.completion_tokens)
            correction = _tokens(usage.prompt_tokens) + _tokens(usage.completion_tokens) - charged
        elif unserved:
            correction = -charged
        if limit > 0 and charged:
            self.minute.add(correction, limit, now)


def _tokens(count: int) -> int:
    return min(max(count, 0), _MOST_TOKENS)
