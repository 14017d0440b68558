# SPDX-License-Identifier: Apache-2.0
"""Accounts of tenants: usage by requests in flight, usage over time, and amounts reserved for nominated requests."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from epp.admission.quotas.peer_use import ALL_AVAILABLE, NO_USE, PeerUse, Unavailable, Use
from epp.admission.quotas.reservation import NOTHING, Amounts, Need, Reservation, Spent
from epp.admission.quotas.usage import DayUse, LimitKey, Means, MinuteUse
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
_OVER_TIME = (LimitKey.TOTAL_TOKENS_PER_MINUTE, LimitKey.TOTAL_DEVICE_SECONDS, LimitKey.TOTAL_DOLLARS)


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

    def held_against(self, request: Request) -> Amounts:
        """Return the amounts that are reserved for requests of higher priority."""
        held = NOTHING
        for nominated, nomination in self._of.items():
            if nominated.priority > request.priority:
                for victim in nomination.victims:
                    if victim.is_released:
                        held = held.plus(victim.amounts)
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
    """The quota at the last request."""
    requests: int = 0
    tokens: float = 0.0
    accelerator_bytes: float = 0.0
    tflops: float = 0.0
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

    def twin(self, quota: Quota) -> "Account":
        """Return a copy with another quota; calls of its methods do not change this account."""
        other = copy(self)
        other.quota = quota
        other.minute = copy(self.minute)
        other.device_seconds, other.dollars = copy(self.device_seconds), copy(self.dollars)
        other.nominations = self.nominations.twin()
        return other

    def without(self, amounts: Amounts) -> None:
        """Subtract the amounts of requests in flight that are treated as ended."""
        self.requests -= amounts.requests
        self.tokens -= amounts.tokens
        self.accelerator_bytes -= amounts.accelerator_bytes
        self.tflops -= amounts.tflops

    def own(self, today: int) -> Use:
        return Use(
            self.requests,
            self.tokens,
            self.accelerator_bytes,
            self.tflops,
            self.minute.added,
            self.device_seconds.taken(today) + self.device_seconds.expected,
            self.dollars.taken(today) + self.dollars.expected,
        )

    def unavailable(self, now: float, today: int) -> Unavailable:
        """Return the amounts that other pickers use, or that are reserved for them."""
        if self.peer_use is None:
            return ALL_AVAILABLE
        limits = self.quota.total
        return self.peer_use.unavailable(
            self.own(today),
            Use(
                limits.requests,
                limits.tokens,
                limits.accelerator_bytes,
                limits.tflops,
                limits.tokens_per_minute,
                limits.device_seconds_per_day,
                limits.dollars_per_day,
            ),
            self.minute_content(now),
            now,
            today,
        )

    def minute_content(self, now: float) -> float:
        """Return the tokens of all pickers that have not drained; 0 without a limit."""
        limit = self.quota.total.tokens_per_minute
        return self.minute.taken(limit, now) if limit > 0 else 0.0

    def need(self, request: Request, accelerator_bytes: float = 0.0, tflops: float = 0.0) -> Need:
        """Return the amounts that a request needs.

        The output of a request without a maximum is estimated. Prompt and estimate do not exceed the limit, unless the
        prompt does, so that the estimate alone cannot make a request impossible.
        """
        limits, means = self.quota.total, self.means
        prompt, most = request.prompt_tokens, request.body.max_output_tokens
        if most is None:
            tokens = prompt + means.output_tokens
            if limits.tokens > 0:
                tokens = min(tokens, max(limits.tokens, prompt))
            expected = means.output_tokens
        else:
            tokens = prompt + max(0, most)
            expected = min(max(0, most), means.output_tokens)
        return Need(
            Amounts(1, tokens, accelerator_bytes, tflops), prompt + expected, means.device_seconds, means.dollars
        )

    def charge(self, reservation: Reservation, need: Need, now: float) -> None:
        amounts, limits = need.under_way, self.quota.total
        reservation.is_limited = True
        reservation.amounts = amounts
        self.requests += amounts.requests
        self.tokens += amounts.tokens
        self.accelerator_bytes += amounts.accelerator_bytes
        self.tflops += amounts.tflops
        if limits.tokens_per_minute > 0:
            reservation.minute_tokens = need.minute_tokens
            self.minute.add(need.minute_tokens, limits.tokens_per_minute, now)
        reservation.expected_device_seconds = need.device_seconds
        reservation.expected_dollars = need.dollars
        self.device_seconds.expect(need.device_seconds)
        self.dollars.expect(need.dollars)
        self._by_priority.setdefault(reservation.priority, {})[reservation] = None

    def recharge(self, reservation: Reservation, amounts: Amounts) -> None:
        before = reservation.amounts
        self.accelerator_bytes = max(0.0, self.accelerator_bytes + amounts.accelerator_bytes - before.accelerator_bytes)
        self.tflops = max(0.0, self.tflops + amounts.tflops - before.tflops)
        reservation.amounts = amounts

    def spend(self, reservation: Reservation, spent: Spent, today: int) -> None:
        """Charge the time that a request has spent at endpoints to the day."""
        self.device_seconds.add(spent.device_seconds, today)
        self.dollars.add(spent.dollars, today)
        left = max(0.0, reservation.expected_device_seconds - spent.device_seconds)
        self.device_seconds.expect(left - reservation.expected_device_seconds)
        reservation.expected_device_seconds = left
        left = max(0.0, reservation.expected_dollars - spent.dollars)
        self.dollars.expect(left - reservation.expected_dollars)
        reservation.expected_dollars = left

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
        self.requests -= 1
        if self.requests:
            amounts = reservation.amounts
            self.tokens = max(0.0, self.tokens - amounts.tokens)
            self.accelerator_bytes = max(0.0, self.accelerator_bytes - amounts.accelerator_bytes)
            self.tflops = max(0.0, self.tflops - amounts.tflops)
            self.device_seconds.expect(-reservation.expected_device_seconds)
            self.dollars.expect(-reservation.expected_dollars)
        else:  # exact: sums of floats drift
            self.tokens = self.accelerator_bytes = self.tflops = 0.0
            self.device_seconds.expected = self.dollars.expected = 0.0

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
        limits = self.quota.total
        return limits.tokens_per_minute > 0 or limits.device_seconds_per_day > 0 or limits.dollars_per_day > 0

    def uses(self, now: float, today: int) -> Iterator[tuple[LimitKey, float, float]]:
        """Yield name, usage at all pickers and value of each limit."""
        limits, there = self.quota.total, self.used_by_peers(today)
        if limits.requests > 0:
            yield LimitKey.TOTAL_REQUESTS, self.requests + there.requests, limits.requests
        if limits.tokens > 0:
            yield LimitKey.TOTAL_TOKENS, self.tokens + there.tokens, limits.tokens
        if limits.tokens_per_minute > 0:
            taken = self.minute.taken(limits.tokens_per_minute, now)
            yield LimitKey.TOTAL_TOKENS_PER_MINUTE, taken, limits.tokens_per_minute
        if limits.accelerator_bytes > 0:
            used = self.accelerator_bytes + there.accelerator_bytes
            yield LimitKey.TOTAL_ACCELERATOR_BYTES, used, limits.accelerator_bytes
        if limits.tflops > 0:
            yield LimitKey.TOTAL_TFLOPS, self.tflops + there.tflops, limits.tflops
        if limits.device_seconds_per_day > 0:
            used = self.device_seconds.taken(today) + there.device_seconds
            yield LimitKey.TOTAL_DEVICE_SECONDS, used, limits.device_seconds_per_day
        if limits.dollars_per_day > 0:
            yield LimitKey.TOTAL_DOLLARS, self.dollars.taken(today) + there.dollars, limits.dollars_per_day

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
            return _LEARNT_WEIGHT if self.quota.total.tokens > 0 or self.counts_over_time else 0.0
        return share

    def _correct(self, reservation: Reservation, usage: Usage | None, now: float, *, unserved: bool) -> None:
        limit, correction = self.quota.total.tokens_per_minute, 0.0
        if usage is not None:
            self.means.answered(usage.completion_tokens)
            correction = _tokens(usage.prompt_tokens) + _tokens(usage.completion_tokens) - reservation.minute_tokens
        elif unserved:
            correction = -reservation.minute_tokens
        if limit > 0 and reservation.minute_tokens:
            self.minute.add(correction, limit, now)


def _tokens(count: int) -> int:
    return min(max(count, 0), _MOST_TOKENS)
