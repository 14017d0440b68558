# SPDX-License-Identifier: Apache-2.0
"""Quotas of tenants by source, and usage over time: tokens in a minute, device seconds and dollars in a day (UTC)."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import inf
from operator import add, sub
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from epp.framework.arrays import ResultError
from epp.framework.clock import Clock
from epp.framework.errors import ConfigurationError
from epp.framework.expected_times import DEFAULT_OUTPUT_TOKENS
from epp.framework.messages import quoted
from epp.framework.plugin import Failure, Guard
from epp.framework.quotas import Quota, QuotaSource

MOST_SET = 10_000
"""Largest number of tenants whose quota is set at run time."""
_MOST_CHECKED = 4_096
"""Largest number of quotas that are known to be valid."""


class LimitKey(StrEnum):
    """Names of limits, in the order in which reports list them."""

    PROMPT_TOKENS = "single.max.promptTokens"
    OUTPUT_TOKENS = "single.max.outputTokens"
    ACCELERATOR_BYTES = "single.max.vram.request"
    TFLOPS = "single.max.tflops.request"
    DEVICES = "single.max.gpuCount.limit"
    DOLLARS = "single.max.dollars"
    TOTAL_REQUESTS = "total.max.workers.limit"
    TOTAL_TOKENS = "total.max.tokens"
    TOTAL_TOKENS_PER_MINUTE = "total.max.tokensPerMinute"
    TOTAL_ACCELERATOR_BYTES = "total.max.vram.request"
    TOTAL_TFLOPS = "total.max.tflops.request"
    TOTAL_DEVICE_SECONDS = "total.max.deviceSecondsPerDay"
    TOTAL_DOLLARS = "total.max.dollarsPerDay"


class Use(NamedTuple):
    """Amounts of the limits on all requests of a tenant, in the order of `TotalLimits`: used, needed or allowed ones.

    Pickers of other versions read it as an array, so the order stays.
    """

    requests: int = 0
    tokens: float = 0.0
    """Tokens of prompts and of the longest possible output."""
    accelerator_bytes: float = 0.0
    tflops: float = 0.0
    minute_tokens: float = 0.0
    """Tokens of prompts and of the expected output."""
    device_seconds: float = 0.0
    dollars: float = 0.0

    def plus(self, other: "Use") -> "Use":
        return Use._make(map(add, self, other))

    def minus(self, other: "Use") -> "Use":
        """Return the differences; 0 instead of negative ones."""
        left = Use._make(map(sub, self, other))
        return left if min(left) >= 0 else Use._make(map(max, NO_USE, left))

    def least(self, other: "Use") -> "Use":
        """Return the smaller amount of each limit."""
        return Use._make(map(min, self, other))

    def brief(self) -> "Use":
        """Return the same numbers, with integers for whole numbers, which are shorter on the wire."""
        return Use(self.requests, *(int(each) if each == int(each) else each for each in self[1:]))


NO_USE = Use()
MINUTE_PART, DAY_PART = 4, 5
"""Positions in `Use` of the tokens of the minute, and of the first amount of the day. The amounts before them count
while requests are in flight."""
TOTAL_KEYS = (
    LimitKey.TOTAL_REQUESTS,
    LimitKey.TOTAL_TOKENS,
    LimitKey.TOTAL_ACCELERATOR_BYTES,
    LimitKey.TOTAL_TFLOPS,
    LimitKey.TOTAL_TOKENS_PER_MINUTE,
    LimitKey.TOTAL_DEVICE_SECONDS,
    LimitKey.TOTAL_DOLLARS,
)
"""Names of the limits on the amounts of `Use`, in the same order."""


class Allowance(NamedTuple):
    """The quota of a tenant, and the number of requests that share an endpoint."""

    quota: Quota
    requests_per_endpoint: int


class Allowances:
    """Sources of quotas, and the quotas that were set at run time."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._sources: tuple[QuotaSource[Any], ...] = ()
        self._set: dict[str, Quota] = {}
        self._checked: dict[int, Quota] = {}
        self._requests_per_endpoint = QuotaSource.requests_per_endpoint
        self.is_active = False
        """Whether any tenant may have a quota."""

    def twin(self, guard: Guard, sources: Sequence[QuotaSource[Any]]) -> "Allowances":
        """Return allowances with other sources and another guard, and the same quotas set at run time."""
        other = Allowances(guard)
        other._set = self._set
        other.use(sources)
        return other

    @property
    def set_quotas(self) -> Mapping[str, Quota]:
        return MappingProxyType(self._set)

    def use(self, sources: Sequence[QuotaSource[Any]]) -> None:
        self._sources = tuple(sources)
        self._requests_per_endpoint = QuotaSource.requests_per_endpoint
        for source in self._sources[:1]:
            found = self._guard.call(QuotaSource.role, source, _requests_of, source)
            if not isinstance(found, Failure):
                self._requests_per_endpoint = found
        self.is_active = bool(self._sources or self._set)

    def check(self, tenant: str, quota: Quota | None) -> None:
        """Raise ConfigurationError for an invalid quota, or if too many are set."""
        if quota is not None and (problem := problem_of(quota)):
            raise ConfigurationError(f"the quota of {quoted(tenant)} {problem}", remedy="write a number of 0 or more")
        if quota is not None and tenant not in self._set and len(self._set) >= MOST_SET:
            raise ConfigurationError(
                f"{MOST_SET} tenants have a quota that was set at run time, which is the limit",
                remedy="remove some of them, or write them into the configuration",
            )

    def set(self, tenant: str, quota: Quota | None) -> None:
        """Set the quota of a tenant, which overrides the sources; None to remove it. Raises the errors of `check`."""
        self.check(tenant, quota)
        if quota is None:
            self._set.pop(tenant, None)
        else:
            self._set[tenant] = quota
        self.is_active = bool(self._sources or self._set)

    def of(self, tenant: str) -> Allowance | None:
        found = self._set.get(tenant)
        return self.of_sources(tenant) if found is None else Allowance(found, self._requests_per_endpoint)

    def of_sources(self, tenant: str) -> Allowance | None:
        """Return the allowance from the sources, without quotas set at run time; a source that fails is skipped."""
        for source in self._sources:
            found = self._guard.call(QuotaSource.role, source, self._checked_quota, source, tenant)
            if found is not None and not isinstance(found, Failure):
                return found
        return None

    def _checked_quota(self, source: QuotaSource[Any], tenant: str) -> Allowance | None:
        quota = source.quota_of(tenant)
        if quota is None:
            return None
        if self._checked.get(id(quota)) is not quota:
            if problem := problem_of(quota):
                raise ResultError(f"returned a quota that {problem}")
            if len(self._checked) >= _MOST_CHECKED:
                self._checked.clear()
            self._checked[id(quota)] = quota
        return Allowance(quota, _requests_of(source))


def problem_of(quota: object) -> str:
    """Return the reason that a quota is invalid; empty if it is valid."""
    if not isinstance(quota, Quota):
        return f"is {type(quota).__name__} instead of a Quota"
    limits = {**msgspec.structs.asdict(quota.single), **msgspec.structs.asdict(quota.total)}
    shared = [("shared", each.accelerator_bytes) for each in quota.shared]
    for name, limit in (*limits.items(), *shared, ("alert_percent", quota.alert_percent)):
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 <= limit < inf:
            return f"has a limit {name} of {limit!r:.40}"
    return ""


def _requests_of(source: QuotaSource[Any]) -> int:
    return max(1, int(source.requests_per_endpoint))


DAY_SECONDS = 86_400
_LONGEST_SECONDS = DAY_SECONDS + 3_600.0
"""Longest day, so that a clock that was far ahead for some time does not stop the reset of budgets."""
_MOST = 64
"""Number of requests in a running mean."""
_MOST_OUTPUT_TOKENS = 2**24
_MOST_MINUTES = 5
"""Capacity of a bucket in minutes, and so the longest wait for it to drain."""
_SECONDS = 60.0


class Calendar:
    """Numbers the days for all tenants, in ascending order.

    A clock that is set back does not repeat a day; a clock that is set forward starts a new day.
    """

    __slots__ = ("_clock", "_day", "_number", "_since")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._day = self.date
        self._since = clock.now()
        self._number = 0

    def today(self) -> int:
        day, now = self.date, self._clock.now()
        if day > self._day or now - self._since >= _LONGEST_SECONDS:
            self._day, self._since = day, now
            self._number += 1
        return self._number

    @property
    def date(self) -> int:
        """Days since 1970; may repeat if the clock is set back."""
        return int(self._clock.utc() // DAY_SECONDS)

    def seconds_left(self) -> float:
        """Return the seconds until the next day, at most 24 hours."""
        self.today()
        midnight = (self._day + 1) * DAY_SECONDS - self._clock.utc()
        longest = self._since + _LONGEST_SECONDS - self._clock.now()
        return max(0.0, min(midnight, longest, DAY_SECONDS))


class DayUse:
    """Usage in a day."""

    __slots__ = ("_day", "_taken")

    def __init__(self) -> None:
        self._day = -1
        self._taken = 0.0

    def taken(self, today: int) -> float:
        if self._day != today:
            self._day, self._taken = today, 0.0
        return self._taken

    def add(self, amount: float, today: int) -> None:
        self._taken = self.taken(today) + amount


class Means:
    """Running means over requests; before the first request, output has a default length and the rest is 0."""

    __slots__ = ("_answers", "_requests", "device_seconds", "dollars", "output_tokens", "seconds")

    def __init__(self) -> None:
        self.output_tokens = DEFAULT_OUTPUT_TOKENS
        self.seconds = 0.0
        """Time at an endpoint, divided between its concurrent requests."""
        self.device_seconds = 0.0
        self.dollars = 0.0
        self._answers = 0
        self._requests = 0

    def answered(self, output_tokens: int) -> None:
        """Add the length of an output, as reported by the model server."""
        self._answers = min(self._answers + 1, _MOST)
        tokens = min(max(output_tokens, 0), _MOST_OUTPUT_TOKENS)
        self.output_tokens += (tokens - self.output_tokens) / self._answers

    def ended(self, seconds: float, device_seconds: float, dollars: float) -> None:
        """Add the total of a request that has ended."""
        self._requests = min(self._requests + 1, _MOST)
        share = 1.0 / self._requests
        self.seconds += (seconds - self.seconds) * share
        self.device_seconds += (device_seconds - self.device_seconds) * share
        self.dollars += (dollars - self.dollars) * share


class MinuteUse:
    """A leaky bucket of tokens, which drains at the limit per minute; it may hold more than the limit.

    A change of the limit keeps the content and changes the rate at which it drains.
    """

    __slots__ = ("_at", "_taken", "added")

    def __init__(self) -> None:
        self.added = 0.0
        """All tokens ever added, without those of other pickers."""
        self._taken = 0.0
        self._at = 0.0

    def taken(self, limit: float, now: float) -> float:
        """Return the tokens that have not drained."""
        if self._taken:
            drained = self._taken - max(0.0, now - self._at) * limit / _SECONDS
            self._taken = min(max(0.0, drained), limit * _MOST_MINUTES)
        self._at = now
        return self._taken

    def add(self, tokens: float, limit: float, now: float) -> None:
        """Add tokens, or remove a negative number of them."""
        self.added += tokens
        self.add_by_peers(tokens, limit, now)

    def add_by_peers(self, tokens: float, limit: float, now: float) -> None:
        """Add tokens of another picker, or remove a negative number of them."""
        self._taken = max(0.0, self.taken(limit, now) + tokens)

    def seconds_until(self, tokens: float, limit: float, now: float) -> float:
        """Return the time until a number of tokens, at most the limit, fits."""
        return max(0.0, (self.taken(limit, now) + min(tokens, limit) - limit) * _SECONDS / limit)
