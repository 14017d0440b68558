# SPDX-License-Identifier: Apache-2.0
"""Usage of one tenant: in flight, by minute and by day."""

from collections import deque
from collections.abc import Iterator
from copy import copy
from hashlib import blake2b

from epp.admission.quotas.allowances import LimitKey
from epp.admission.quotas.days import DayUse
from epp.admission.quotas.nominations import Nominations
from epp.admission.quotas.reservation import Amounts, Need, Reservation, Spent
from epp.framework.quotas import Quota
from epp.framework.rates import DEFAULT_OUTPUT_TOKENS
from epp.framework.request import Request, Usage

_MOST = 64
"""Requests that a mean looks back on: it follows a tenant who changes."""
_MOST_OUTPUT_TOKENS = 2**24


class Means:
    """Running means; an answer has a usual length before any has been seen, and time and price are 0."""

    __slots__ = ("_answers", "_requests", "device_seconds", "dollars", "output_tokens", "seconds")

    def __init__(self) -> None:
        self.output_tokens = DEFAULT_OUTPUT_TOKENS
        self.seconds = 0.0
        """Of the endpoint's time, which requests there share."""
        self.device_seconds = 0.0
        self.dollars = 0.0
        self._answers = 0
        self._requests = 0

    def answered(self, output_tokens: int) -> None:
        """Add the length of an answer, as a model server says it."""
        self._answers = min(self._answers + 1, _MOST)
        tokens = min(max(output_tokens, 0), _MOST_OUTPUT_TOKENS)
        self.output_tokens += (tokens - self.output_tokens) / self._answers

    def ended(self, seconds: float, device_seconds: float, dollars: float) -> None:
        """Add what a request has taken in all."""
        self._requests = min(self._requests + 1, _MOST)
        share = 1.0 / self._requests
        self.seconds += (seconds - self.seconds) * share
        self.device_seconds += (device_seconds - self.device_seconds) * share
        self.dollars += (dollars - self.dollars) * share


_MOST_MINUTES = 5
"""Most that a bucket holds, in limits of a minute: thus nobody waits longer than this for it to drain."""
_SECONDS = 60.0


class MinuteUse:
    """Tokens taken, which drain at the limit a minute; more than the limit is a debt.

    What is taken stays what it was under another limit, and drains at the new one.
    """

    __slots__ = ("_at", "_taken")

    def __init__(self) -> None:
        self._taken = 0.0
        self._at = 0.0

    def taken(self, limit: float, now: float) -> float:
        """Return the tokens taken that have not drained yet."""
        if self._taken:
            drained = self._taken - max(0.0, now - self._at) * limit / _SECONDS
            self._taken = min(max(0.0, drained), limit * _MOST_MINUTES)
        self._at = now
        return self._taken

    def add(self, tokens: float, limit: float, now: float) -> None:
        """Take tokens, or give back those of a negative number."""
        self._taken = max(0.0, self.taken(limit, now) + tokens)

    def seconds_until(self, tokens: float, limit: float, now: float) -> float:
        """Return how long it takes until so many tokens fit; at most the limit is asked for."""
        return max(0.0, (self.taken(limit, now) + min(tokens, limit) - limit) * _SECONDS / limit)


_RELEASES = 16
"""Latest releases, from which their rate is measured."""
_LEARNT_SECONDS = 600.0
"""How long the means of a tenant are kept that sends nothing."""
_LEARNT_WEIGHT = 1e-6
"""How much they matter beside what was taken."""
_MOST_TOKENS = 2**32
"""Of one request, however many a model server says."""
_LONGEST_NAME = 256


def brief(tenant: str) -> str:
    """Return a name that accounts are kept under: clients may choose long ones."""
    if len(tenant) <= _LONGEST_NAME:
        return tenant
    return f"{tenant[:64]}...{blake2b(tenant.encode(errors='replace'), digest_size=16).hexdigest()}"


class Account:
    """Sums over the requests of a tenant."""

    __slots__ = (
        "_by_priority",
        "_releases",
        "accelerator_bytes",
        "alerts",
        "device_seconds",
        "dollars",
        "means",
        "minute",
        "nominations",
        "quota",
        "requests",
        "tenant",
        "tflops",
        "tokens",
        "uncounted",
    )

    def __init__(self, tenant: str, quota: Quota) -> None:
        self.tenant = brief(tenant)
        self.quota = quota
        """As of the last request."""
        self.requests = 0
        self.tokens = 0.0
        self.accelerator_bytes = 0.0
        self.tflops = 0.0
        self.minute = MinuteUse()
        self.device_seconds = DayUse()
        self.dollars = DayUse()
        self.means = Means()
        self.nominations = Nominations()
        self.alerts: dict[LimitKey, float] = {}
        """Limits that are almost used up, and when they last were."""
        self.uncounted: dict[LimitKey, int] = {}
        """Requests that took nothing of a limit, as the hardware or price of their endpoint is not known."""
        self._by_priority: dict[int, dict[Reservation, None]] = {}
        self._releases: deque[float] = deque(maxlen=_RELEASES)

    def twin(self, quota: Quota) -> "Account":
        """Return an account of the same sums under a quota, of which nothing that is asked changes this one."""
        other = copy(self)
        other.quota = quota
        other.minute = copy(self.minute)
        other.device_seconds, other.dollars = copy(self.device_seconds), copy(self.dollars)
        other.nominations = self.nominations.twin()
        return other

    def need(self, request: Request, accelerator_bytes: float = 0.0, tflops: float = 0.0) -> Need:
        """Return what a request would take.

        What is only expected of it, since it does not say, makes no request impossible: it counts at most as much as
        the limit leaves beside the prompt.
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
            Amounts(1, tokens, accelerator_bytes, tflops),
            prompt + expected,
            means.device_seconds,
            means.dollars,
        )

    def charge(self, reservation: Reservation, need: Need, now: float) -> None:
        """Take what a request needs, whether it fits or not."""
        amounts, limits = need.under_way, self.quota.total
        reservation.is_limited = True
        reservation.amounts = amounts
        self._add(amounts)
        if limits.tokens_per_minute > 0:
            reservation.minute_tokens = need.minute_tokens
            self.minute.add(need.minute_tokens, limits.tokens_per_minute, now)
        reservation.expected_device_seconds = need.device_seconds
        reservation.expected_dollars = need.dollars
        self.device_seconds.expect(need.device_seconds)
        self.dollars.expect(need.dollars)
        self._by_priority.setdefault(reservation.priority, {})[reservation] = None

    def recharge(self, reservation: Reservation, amounts: Amounts) -> None:
        """Take other amounts for a request that is under way."""
        before = reservation.amounts
        self.accelerator_bytes = max(0.0, self.accelerator_bytes + amounts.accelerator_bytes - before.accelerator_bytes)
        self.tflops = max(0.0, self.tflops + amounts.tflops - before.tflops)
        reservation.amounts = amounts

    def spend(self, reservation: Reservation, spent: Spent, today: int) -> None:
        """Charge to the day what a request has had of an endpoint."""
        self.device_seconds.add(spent.device_seconds, today)
        self.dollars.add(spent.dollars, today)
        left = max(0.0, reservation.expected_device_seconds - spent.device_seconds)
        self.device_seconds.expect(left - reservation.expected_device_seconds)
        reservation.expected_device_seconds = left
        left = max(0.0, reservation.expected_dollars - spent.dollars)
        self.dollars.expect(left - reservation.expected_dollars)
        reservation.expected_dollars = left

    def give_back(self, reservation: Reservation, usage: Usage | None, now: float, *, unserved: bool) -> None:
        """Give back what a request took, once; its time is charged already."""
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
        else:  # to the last bit, which sums of floats may miss
            self.tokens = self.accelerator_bytes = self.tflops = 0.0
            self.device_seconds.expected = self.dollars.expected = 0.0

    def lowest_first(self, below: int) -> Iterator[Reservation]:
        """Yield the requests below a priority, the lowest first, of equal ones the newest."""
        for priority in sorted(each for each in self._by_priority if each < below):
            yield from reversed(self._by_priority[priority])

    def reservations(self) -> Iterator[Reservation]:
        """Yield all."""
        for of_priority in self._by_priority.values():
            yield from of_priority

    def releases_per_second(self, now: float) -> float:
        """Return how many requests a second ended of late; 0 where that is not known."""
        releases = self._releases
        return (len(releases) - 1) / max(now - releases[0], 1e-3) if len(releases) > 1 else 0.0

    def note_uncounted(self, key: LimitKey) -> None:
        """Note that a request took nothing of a limit."""
        self.uncounted[key] = self.uncounted.get(key, 0) + 1

    @property
    def counts_over_time(self) -> bool:
        """Whether the end of a request may use more of a limit."""
        limits = self.quota.total
        return limits.tokens_per_minute > 0 or limits.device_seconds_per_day > 0 or limits.dollars_per_day > 0

    def uses(self, now: float, today: int) -> Iterator[tuple[LimitKey, float, float]]:
        """Yield each limit with what is used of it: its name, the use and the limit."""
        limits = self.quota.total
        if limits.requests > 0:
            yield LimitKey.TOTAL_REQUESTS, self.requests, limits.requests
        if limits.tokens > 0:
            yield LimitKey.TOTAL_TOKENS, self.tokens, limits.tokens
        if limits.tokens_per_minute > 0:
            taken = self.minute.taken(limits.tokens_per_minute, now)
            yield LimitKey.TOTAL_TOKENS_PER_MINUTE, taken, limits.tokens_per_minute
        if limits.accelerator_bytes > 0:
            yield LimitKey.TOTAL_ACCELERATOR_BYTES, self.accelerator_bytes, limits.accelerator_bytes
        if limits.tflops > 0:
            yield LimitKey.TOTAL_TFLOPS, self.tflops, limits.tflops
        if limits.device_seconds_per_day > 0:
            yield LimitKey.TOTAL_DEVICE_SECONDS, self.device_seconds.taken(today), limits.device_seconds_per_day
        if limits.dollars_per_day > 0:
            yield LimitKey.TOTAL_DOLLARS, self.dollars.taken(today), limits.dollars_per_day

    def weight(self, now: float, today: int) -> float:
        """Return the largest share of a limit that is used beyond the end of requests; 0 where nothing is to be kept.

        What was learnt of requests counts a little for a while, where a limit needs it.
        """
        limits, share = self.quota.total, 0.0
        if limits.tokens_per_minute > 0:
            share = self.minute.taken(limits.tokens_per_minute, now) / limits.tokens_per_minute
        if limits.device_seconds_per_day > 0:
            share = max(share, self.device_seconds.taken(today) / limits.device_seconds_per_day)
        if limits.dollars_per_day > 0:
            share = max(share, self.dollars.taken(today) / limits.dollars_per_day)
        if share <= 0 and self._releases and now - self._releases[-1] < _LEARNT_SECONDS:
            return _LEARNT_WEIGHT if limits.tokens > 0 or self.counts_over_time else 0.0
        return share

    def _add(self, amounts: Amounts) -> None:
        self.requests += amounts.requests
        self.tokens += amounts.tokens
        self.accelerator_bytes += amounts.accelerator_bytes
        self.tflops += amounts.tflops

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
