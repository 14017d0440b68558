# SPDX-License-Identifier: Apache-2.0
"""Which total of a quota a request does not fit in now, and when it will."""

from math import ceil
from typing import NamedTuple

from epp.admission.quotas.account import Account
from epp.admission.quotas.allowances import LimitKey
from epp.admission.quotas.days import DAY_SECONDS, Calendar
from epp.admission.quotas.reservation import Amounts, Need
from epp.framework.errors import Breach
from epp.framework.quotas import Blocked

LONGEST_SECONDS = 300
"""Most that a client is told to wait for requests to end, or a minute's tokens."""
_ROUNDING = 1.0 + 1e-9
"""What sums of floats may go beyond a limit."""


_MOMENT = 1e-6
"""Seconds that rounding may leave."""


_KEYS = (
    LimitKey.TOTAL_REQUESTS,
    LimitKey.TOTAL_TOKENS,
    LimitKey.TOTAL_ACCELERATOR_BYTES,
    LimitKey.TOTAL_TFLOPS,
)


class _Shortfall(NamedTuple):
    key: LimitKey
    requested: float
    limit: float
    seconds: float
    most_seconds: int
    needs_release: bool


def blocked(account: Account, need: Need, held: Amounts, now: float, calendar: Calendar) -> Blocked | None:
    """Return what keeps a request from beginning: of several limits, the one that does so for longest."""
    found = [] if _fits(account, need.under_way, held) else _under_way(account, need.under_way, held, now)
    found += _in_time(account, need, now, calendar)
    if not found:
        return None
    worst = max(found, key=lambda each: each.seconds)
    seconds = max(1, min(worst.most_seconds, ceil(worst.seconds)))
    return Blocked(
        Breach(account.tenant, worst.key.value, worst.requested, worst.limit),
        seconds,
        None if any(each.needs_release for each in found) else now + max(0.0, worst.seconds),
        account.quota.waits,
    )


def waits_for_time(account: Account, need: Need, now: float, calendar: Calendar) -> bool:
    """Return whether time has to pass before a request fits, whatever ends."""
    return bool(_in_time(account, need, now, calendar))


def deficit(account: Account, need: Amounts, held: Amounts) -> Amounts:
    """Return what has to be given back before a request fits; 0 of an amount of which enough is left."""
    missing = [total.beyond if total.is_exceeded else 0.0 for total in _totals(account, need, held)]
    requests, tokens, accelerator_bytes, tflops = missing
    return Amounts(round(requests), tokens, accelerator_bytes, tflops)


class _Total(NamedTuple):
    """A limit on what is under way."""

    key: LimitKey
    used: float
    held: float
    more: float
    limit: float

    @property
    def is_exceeded(self) -> bool:
        return self.limit > 0 < self.more and self.used + self.held + self.more > self.limit * _ROUNDING

    @property
    def beyond(self) -> float:
        return self.used + self.held + self.more - self.limit


def _fits(account: Account, need: Amounts, held: Amounts) -> bool:
    """Return whether no limit on what is under way is exceeded, as for most requests."""
    limits = account.quota.total
    return (
        (limits.requests <= 0 or account.requests + held.requests + need.requests <= limits.requests)
        and (limits.tokens <= 0 or account.tokens + held.tokens + need.tokens <= limits.tokens)
        and (
            limits.accelerator_bytes <= 0
            or account.accelerator_bytes + held.accelerator_bytes + need.accelerator_bytes <= limits.accelerator_bytes
        )
        and (limits.tflops <= 0 or account.tflops + held.tflops + need.tflops <= limits.tflops)
    )


def _totals(account: Account, need: Amounts, held: Amounts) -> list[_Total]:
    """Return those of all amounts, in their order."""
    limits = account.quota.total
    used = (account.requests, account.tokens, account.accelerator_bytes, account.tflops)
    most = (limits.requests, limits.tokens, limits.accelerator_bytes, limits.tflops)
    return [_Total(*each) for each in zip(_KEYS, used, held, need, most, strict=True)]


def _under_way(account: Account, need: Amounts, held: Amounts, now: float) -> list[_Shortfall]:
    found: list[_Shortfall] = []
    for total in _totals(account, need, held):
        if not total.is_exceeded:
            continue
        key, used, kept, more, limit = total
        requested = used + kept + more
        if used + more <= limit * _ROUNDING:  # time alone ends what is held
            seconds = account.nominations.until(now) - now
            found.append(_Shortfall(key, requested, limit, seconds, LONGEST_SECONDS, needs_release=False))
            continue
        rate = account.releases_per_second(now)
        releases = total.beyond / (used / account.requests) if used and account.requests else 1.0
        seconds = releases / rate if rate else 1.0
        found.append(_Shortfall(key, requested, limit, seconds, LONGEST_SECONDS, needs_release=True))
    return found


def _in_time(account: Account, need: Need, now: float, calendar: Calendar) -> list[_Shortfall]:
    limits = account.quota.total
    found: list[_Shortfall] = []
    limit: float = limits.tokens_per_minute
    if limit > 0:
        seconds = account.minute.seconds_until(need.minute_tokens, limit, now)
        if seconds > _MOMENT:
            requested = account.minute.taken(limit, now) + need.minute_tokens
            key = LimitKey.TOTAL_TOKENS_PER_MINUTE
            found.append(_Shortfall(key, requested, limit, seconds, LONGEST_SECONDS, needs_release=False))
    if limits.device_seconds_per_day <= 0 and limits.dollars_per_day <= 0:
        return found
    today = calendar.today()
    for key, day, more, limit in (
        (LimitKey.TOTAL_DEVICE_SECONDS, account.device_seconds, need.device_seconds, limits.device_seconds_per_day),
        (LimitKey.TOTAL_DOLLARS, account.dollars, need.dollars, limits.dollars_per_day),
    ):
        if limit <= 0:
            continue
        taken = day.taken(today) + day.expected
        if taken + min(more, limit) > limit * _ROUNDING or taken >= limit:
            seconds = calendar.seconds_left()
            found.append(_Shortfall(key, taken + more, limit, seconds, DAY_SECONDS, needs_release=False))
    return found
