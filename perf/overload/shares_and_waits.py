# SPDX-License-Identifier: Apache-2.0
"""Figures from answers: waits, rates, fairness, and accuracy of `Retry-After`."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from statistics import median

from perf.overload.clients import Answer, Tenant

WINDOW_SECONDS = 10.0
Window = tuple[float, float]
"""Start and end."""


def share_of(values: Iterable[float], share: float) -> float:
    """Return the quantile of the values at `share`; 0 without values."""
    found = sorted(values)
    return found[int(share * (len(found) - 1))] if found else 0.0


def jain(values: Sequence[float]) -> float:
    """Return Jain's fairness index: 1 for equal values, 1 / n if one has all."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values)) if any(values) else 0.0


def fair_shares(wanted: Sequence[float], capacity: float) -> list[float]:
    """Return the max-min fair shares: equal, or the demand if it is lower, so that nothing is left."""
    shares, left = [0.0] * len(wanted), capacity
    order = sorted(range(len(wanted)), key=lambda each: wanted[each])
    for done, each in enumerate(order):
        shares[each] = min(wanted[each], left / (len(order) - done))
        left -= shares[each]
    return shares


def windows_of(start: float, end: float) -> list[Window]:
    """Split a time span into windows of equal length."""
    count = max(1, round((end - start) / WINDOW_SECONDS))
    seconds = (end - start) / count
    return [(start + number * seconds, start + (number + 1) * seconds) for number in range(count)]


def undisturbed(windows: Sequence[Window], stalls: Sequence[Window]) -> list[Window]:
    """Return the windows without a stall."""
    return [(start, end) for start, end in windows if not any(a < end and b > start for a, b in stalls)]


def tokens_per_second(answers: Iterable[Answer], window: Window) -> float:
    """Return the rate of tokens that reached clients in a window."""
    start, end = window
    return sum(each.tokens for each in answers if start <= each.came_at < end) / (end - start)


def median_rate(answers: Sequence[Answer], windows: Sequence[Window]) -> float:
    """Return the median of the rates of windows."""
    return median(tokens_per_second(answers, window) for window in windows) if windows else 0.0


def told_and_real(tenant: Tenant) -> list[tuple[int, float]]:
    """Return, for each refusal of a tenant, its `retry-after` and the time until it would have been dispatched.

    This is the time until the last one of the tenant's requests that waited then had left the queue.
    """
    waited = sorted((answer.sent_at, answer.left_at) for answer in tenant.good())
    sent = [sent_at for sent_at, _ in waited]
    longest = max((left - sent_at for sent_at, left in waited), default=0.0)
    found = []
    for refusal in tenant.refused():
        at, told = refusal.came_at, refusal.told_seconds
        around = waited[bisect_left(sent, at - longest) : bisect_right(sent, at)]
        last = max((left for _, left in around), default=at)
        if told is not None and last > at:
            found.append((told, last - at))
    return found


def share_within_two(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the share of pairs whose ratio is between 1/2 and 2."""
    return sum(told / 2 <= real <= told * 2 for told, real in pairs) / len(pairs) if pairs else 0.0
