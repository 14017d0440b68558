# SPDX-License-Identifier: Apache-2.0
"""Checks of a request against its quota, alone and together with others, and the requests to evict for it."""

from collections.abc import Iterator, Sequence
from itertools import islice
from math import ceil
from typing import NamedTuple

import numpy as np

from epp.admission.quotas.account import Account
from epp.admission.quotas.reservation import Reservation, devices, dollars_per_second, memory_share, tflops_share
from epp.admission.quotas.usage import (
    DAY_PART,
    DAY_SECONDS,
    MINUTE_PART,
    NO_USE,
    TOTAL_KEYS,
    Allowance,
    Calendar,
    LimitKey,
    Use,
)
from epp.framework.accelerators.arrays import tag_numbers
from epp.framework.arrays import Floats, Mask, any_true, lowest
from epp.framework.candidates import Candidates
from epp.framework.errors import BodyTooLargeError
from epp.framework.quotas import Blocked, Quota
from epp.framework.refusals import Breach, OverQuotaError
from epp.framework.request import Request

_ROUNDING = 1.0 + 1e-9
"""Tolerance for sums of floats that are compared with a limit."""
_TOO_LARGE = BodyTooLargeError.status
LONGEST_SECONDS = 300
"""Longest `retry-after`, unless the budget of a day is used up."""
_MOMENT = 1e-6
"""Tolerance of seconds."""


class Bound(NamedTuple):
    """A limit on hardware, and the need of a request at each candidate."""

    key: LimitKey
    needs: Floats
    limit: float
    used: float = 0.0

    @property
    def mask(self) -> Mask:
        """Mask of the candidates where the need fits; a need of 0 always fits."""
        fits: Mask = self.needs <= max(0.0, self.limit * _ROUNDING - self.used)
        return fits


def check_tokens(request: Request, quota: Quota) -> None:
    """Raise OverQuotaError for a request whose prompt or maximum output is too long.

    A request without a maximum output is not refused for its output, whose length is unknown.
    """
    single, total = quota.single, quota.total
    prompt, output = request.prompt_tokens, request.body.max_output_tokens
    if single.prompt_tokens > 0 and prompt > single.prompt_tokens:
        raise _over(request, LimitKey.PROMPT_TOKENS, prompt, single.prompt_tokens, _TOO_LARGE)
    if single.output_tokens > 0 and output is not None and output > single.output_tokens:
        raise _over(request, LimitKey.OUTPUT_TOKENS, output, single.output_tokens)
    if total.tokens > 0 and prompt + (output or 0) > total.tokens:
        raise _over(request, LimitKey.TOTAL_TOKENS, prompt + (output or 0), total.tokens, _TOO_LARGE)
    if total.tokens_per_minute > 0 and prompt > total.tokens_per_minute:
        raise _over(request, LimitKey.TOTAL_TOKENS_PER_MINUTE, prompt, total.tokens_per_minute, _TOO_LARGE)


def hardware_bounds(allowance: Allowance, candidates: Candidates, mean_seconds: float) -> Iterator[Bound]:
    """Yield the limits on hardware for one request; its price is computed from its tenant's mean time."""
    quota, sharers = allowance
    single, total = quota.single, quota.total
    if single.accelerator_bytes > 0 or total.accelerator_bytes > 0:
        needs = tag_numbers(candidates, memory_share, sharers)
        if single.accelerator_bytes > 0:
            yield Bound(LimitKey.ACCELERATOR_BYTES, needs, single.accelerator_bytes)
        if total.accelerator_bytes > 0:
            yield Bound(LimitKey.TOTAL_ACCELERATOR_BYTES, needs, total.accelerator_bytes)
    if single.tflops > 0 or total.tflops > 0:
        needs = tag_numbers(candidates, tflops_share, sharers)
        if single.tflops > 0:
            yield Bound(LimitKey.TFLOPS, needs, single.tflops)
        if total.tflops > 0:
            yield Bound(LimitKey.TOTAL_TFLOPS, needs, total.tflops)
    if single.devices > 0:
        yield Bound(LimitKey.DEVICES, tag_numbers(candidates, devices), single.devices)
    if single.dollars > 0 and mean_seconds > 0:
        yield Bound(LimitKey.DOLLARS, tag_numbers(candidates, dollars_per_second) * mean_seconds, single.dollars)


def joint_mask(bounds: list[Bound]) -> Mask:
    """Mark the candidates that fit all bounds; `bounds` is not empty."""
    masks = [bound.mask for bound in bounds]
    mask: Mask = masks[0] if len(masks) == 1 else np.logical_and.reduce(masks)
    return mask


def check_hardware(request: Request, bounds: list[Bound], mask: Mask) -> None:
    """Raise OverQuotaError for a request that fits at none of the candidates, unless there are none."""
    if not len(mask) or any_true(mask):
        return
    worst = next((bound for bound in bounds if not any_true(bound.mask)), bounds[0])
    raise _over(request, worst.key, lowest(worst.needs), worst.limit)


def with_usage(account: Account, held: Use, bounds: list[Bound]) -> list[Bound]:
    used = dict(zip(TOTAL_KEYS, account.in_flight.plus(held), strict=True))
    return [bound._replace(used=used.get(bound.key, 0.0)) for bound in bounds]


def least(bounds: list[Bound], used: list[Bound]) -> tuple[float, float]:
    """Return memory and TFLOPS at the candidate with the smallest shortage that fits the bounds.

    `used` are the bounds with usage.
    """
    totals = [bound for bound in used if bound.key in TOTAL_KEYS]
    if not totals:
        return 0.0, 0.0
    beyond = np.max([(bound.needs + bound.used) / bound.limit for bound in totals], axis=0)
    mask = joint_mask(bounds)
    best = int(np.argmin(np.where(mask, beyond, np.inf) if any_true(mask) else beyond))
    amounts = {bound.key: bound.needs.item(best) for bound in totals}
    return amounts.get(LimitKey.TOTAL_ACCELERATOR_BYTES, 0.0), amounts.get(LimitKey.TOTAL_TFLOPS, 0.0)


def _over(request: Request, key: LimitKey, requested: float, limit: float, status: int = 400) -> OverQuotaError:
    return OverQuotaError(Breach(request.fairness_id, key.value, requested, limit), status)


class _Shortfall(NamedTuple):
    key: LimitKey
    requested: float
    limit: float
    seconds: float
    most_seconds: int
    needs_release: bool


def blocked(account: Account, need: Use, held: Use, now: float, calendar: Calendar) -> Blocked | None:
    """Return the limit that a request exceeds for the longest time; None if it fits.

    `held` are the amounts in flight that are reserved for others.
    """
    found = [_until_released(account, excess, now) for excess in _in_flight(account, need, held)]
    found += over_time(account, need, now, calendar)
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


def deficit(account: Account, need: Use, held: Use) -> Use:
    """Return the amounts in flight that must be freed before a request fits; 0 if enough of an amount is free."""
    missing = {excess.key: excess.beyond for excess in _in_flight(account, need, held)}
    return Use._make(missing.get(key, 0) for key in TOTAL_KEYS)


class _Excess(NamedTuple):
    """A limit on the requests in flight that one more request exceeds."""

    key: LimitKey
    used: float
    held: float
    more: float
    limit: float

    @property
    def beyond(self) -> float:
        return self.used + self.held + self.more - self.limit


def _in_flight(account: Account, need: Use, held: Use) -> list[_Excess]:
    """Return the limits on the requests in flight that a request exceeds."""
    parts = zip(TOTAL_KEYS[:MINUTE_PART], account.in_flight, held, need, account.limits, strict=False)
    return [
        _Excess(key, used, kept, more, limit)
        for key, used, kept, more, limit in parts
        if limit > 0 < more and used + kept + more > limit * _ROUNDING
    ]


def _until_released(account: Account, excess: _Excess, now: float) -> _Shortfall:
    key, used, held, more, limit = excess
    requests = account.in_flight.requests
    # Otherwise the rest is reserved until the nomination expires.
    needs_release = used + more > limit * _ROUNDING or not len(account.nominations)
    rate = account.releases_per_second(now)
    releases = excess.beyond / (used / requests) if used and requests else 1.0
    seconds = (releases / rate if rate else 1.0) if needs_release else account.nominations.until(now) - now
    return _Shortfall(key, used + held + more, limit, seconds, LONGEST_SECONDS, needs_release)


def over_time(account: Account, need: Use, now: float, calendar: Calendar) -> list[_Shortfall]:
    """Return the limits over time that a request exceeds."""
    found: list[_Shortfall] = []
    if not account.counts_over_time:
        return found
    today = calendar.today()
    by_peers, for_peers = account.unavailable(now, today)
    limit = account.limits.minute_tokens
    if limit > 0:
        seconds = account.minute.seconds_until(need.minute_tokens, limit, now)
        taken = account.minute.taken(limit, now)
        requested, key = taken + need.minute_tokens, LimitKey.TOTAL_TOKENS_PER_MINUTE
        if seconds > _MOMENT:
            found.append(_Shortfall(key, requested, limit, seconds, LONGEST_SECONDS, needs_release=False))
        elif (reserved := for_peers.minute_tokens) and (
            taken + reserved + min(need.minute_tokens, limit) > limit * _ROUNDING
        ):
            found.append(_until_acknowledged(key, requested + reserved, limit))
    parts = zip(TOTAL_KEYS, account.own(today), by_peers, for_peers, need, account.limits, strict=True)
    for key, own, there, reserved, more, limit in islice(parts, DAY_PART, None):
        if limit <= 0:
            continue
        taken = own + there
        if taken + min(more, limit) > limit * _ROUNDING or taken >= limit:
            seconds = calendar.seconds_left()
            found.append(_Shortfall(key, taken + more, limit, seconds, DAY_SECONDS, needs_release=False))
        elif reserved and taken + min(more, limit) + reserved > limit * _ROUNDING:
            found.append(_until_acknowledged(key, taken + more + reserved, limit))
    return found


def _until_acknowledged(key: LimitKey, requested: float, limit: float) -> _Shortfall:
    """Return a limit whose rest is reserved for other pickers until they have received this picker's use."""
    return _Shortfall(key, requested, limit, 1.0, LONGEST_SECONDS, needs_release=True)


MOST_ASKED = 4_096
"""Largest number of a tenant's requests that are checked for eviction."""
MOST_CONSIDERED = 256
"""Largest number of a tenant's requests from which victims are chosen."""
_SLACK = 1e-9


def enough(deficit: Use, found: Sequence[Reservation]) -> list[Reservation] | None:
    """Return requests whose release covers the deficit, none of them superfluous; None if all together do not cover it.

    If only one amount is lacking, the set is the smallest possible. Among requests that free equal shares, earlier
    requests in `found` are preferred. The result has the order of `found`.
    """
    lacking = {part: amount * (1 - _SLACK) for part, amount in enumerate(deficit) if amount > 0}

    def share(each: Reservation) -> float:
        return sum(min(1.0, each.charged[part] / amount) for part, amount in lacking.items())

    def covers(freed: Use) -> bool:
        return all(freed[part] >= amount for part, amount in lacking.items())

    freed, chosen = NO_USE, set[Reservation]()
    for each in sorted(found, key=share, reverse=True):
        if covers(freed):
            break
        freed = freed.plus(each.charged)
        chosen.add(each)
    if not covers(freed):
        return None
    for each in reversed(found):
        if each in chosen and covers(freed.minus(each.charged)):
            freed = freed.minus(each.charged)
            chosen.remove(each)
    return [each for each in found if each in chosen]
