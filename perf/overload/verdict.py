# SPDX-License-Identifier: Apache-2.0
"""Measurements as a table and as checks."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from perf.overload.clients import MEAN_TOKENS, Answer, Tenant
from perf.overload.shares_and_waits import (
    Window,
    fair_shares,
    jain,
    median_rate,
    share_of,
    share_within_two,
    told_and_real,
    undisturbed,
    windows_of,
)
from perf.overload.stage import HIGH, LOW, LOW_TTL_SECONDS
from perf.overload.watching import STALL_SECONDS, Process

_MOST_LEFT_OUT = 1 / 3
"""Share of the windows that a busy machine may affect."""
_LEAST_TOLD = 2
_LEAST_FAIRNESS = 0.95
_MOST_GROWTH = 1.15


@dataclass(frozen=True, slots=True)
class Measured:
    """Observations of a run."""

    idle: Sequence[Answer]
    """Answers through an idle system, of high priority only."""
    capacity: float
    """Tokens per second of the servers under direct load."""
    tenants: Sequence[Tenant]
    began: float
    start: float
    """Time from which figures count, because queues are full."""
    end: float
    stalls: Sequence[Window]
    memory: Sequence[tuple[float, int]]
    before: Process
    """Resources of the picker before the overload."""
    after: Process
    at_servers: Counter[str]
    under_way: dict[str, float]
    saturation: float
    """Saturation of the pool after the end, by the picker's count of requests in flight."""


@dataclass(frozen=True, slots=True)
class Check:
    """A condition and its result."""

    title: str
    figure: str
    holds: bool
    is_of_time: bool = False
    """Whether it depends on the speed of the machine."""


class Verdict:
    """The figures of a campaign."""

    def __init__(self, measured: Measured) -> None:
        self._of = measured
        self._windows = windows_of(measured.start, measured.end)
        self._judged = undisturbed(self._windows, measured.stalls)
        self._answers = [answer for tenant in measured.tenants for answer in tenant.answers]
        self._by_name = {tenant.name: tenant for tenant in measured.tenants}

    def table(self) -> list[str]:
        """Return a line per tenant, and totals."""
        heads = ("sent", "200", "429", "other", "wait p50", "p95 s", "tokens/s", "told")
        lines = [f"{'tenant':9}{'priority':>9}" + "".join(f"{head:>10}" for head in heads)]
        seconds = self._of.end - self._of.began
        for tenant in self._of.tenants:
            good, refused = tenant.good(), tenant.refused()
            told = sorted(each.told_seconds for each in refused if each.told_seconds is not None)
            cells = (
                tenant.sent,
                len(good),
                len(refused),
                len(tenant.answers) - len(good) - len(refused),
                f"{share_of((each.queued_seconds for each in good), 0.5):.2f}",
                f"{share_of((each.seconds for each in good), 0.95):.2f}",
                f"{sum(each.tokens for each in good) / seconds:.0f}",
                f"{told[0]}..{told[-1]} s" if told else "-",
            )
            lines.append(f"{tenant.name:9}{tenant.priority:9}" + "".join(f"{cell!s:>10}" for cell in cells))
        return [*lines, *self._about_coming_again()]

    def checks(self) -> list[Check]:
        """Return the checks."""
        return [*self._of_time(), *self._of_order(), *self._of_retry_after(), *self._of_loss(), *self._of_leaks()]

    def _about_coming_again(self) -> list[str]:
        for tenant in self._of.tenants:
            came_again = [tries for tries in tenant.again if len(tries) > 1 and tries[-1].status == 200]
            if came_again:
                first = sum(len(tries) == 2 for tries in came_again)
                told = [sum(each.told_seconds or 0 for each in tries[:-1]) for tries in came_again]
                until = [tries[-1].left_at - tries[0].came_at for tries in came_again]
                counted = f"{len(came_again)} times it was served after refusals, {100 * first / len(came_again):.0f} %"
                waited = f"told {median(told):.0f} s in all, at a server after {median(until):.1f} s"
                return [f"{tenant.name} comes again when told: {counted} as it came again first; {waited} (medians)"]
        return []

    def _in_judged(self, answers: Sequence[Answer]) -> list[Answer]:
        return [each for each in answers if any(start <= each.sent_at < end for start, end in self._judged)]

    def _of_time(self) -> list[Check]:
        of = self._of
        offered = len(self._answers) * MEAN_TOKENS / (of.end - of.began) / of.capacity
        idle = share_of((each.seconds for each in of.idle), 0.95)
        high = share_of((each.seconds for each in self._in_judged(self._by_name[HIGH].good())), 0.95)
        rate = median_rate(self._answers, self._judged)
        left_out = len(self._windows) - len(self._judged)
        return [
            Check("requests sent, in capacities", f"{offered:.2f}", offered >= 2.9, is_of_time=True),
            Check(
                f"windows without a stall of {STALL_SECONDS:g} s",
                f"{len(self._judged)} of {len(self._windows)}",
                left_out <= _MOST_LEFT_OUT * len(self._windows),
                is_of_time=True,
            ),
            Check(
                "p95 of high priority, by that of an idle system",
                f"{high:.2f} s / {idle:.2f} s = {high / idle:.2f}",
                0 < high <= 1.5 * idle,
                is_of_time=True,
            ),
            Check(
                "goodput in tokens/s, by what servers do alone",
                f"{rate:.0f} / {of.capacity:.0f} = {rate / of.capacity:.3f}",
                rate >= 0.95 * of.capacity,
                is_of_time=True,
            ),
        ]

    def _of_order(self) -> list[Check]:
        tenants = self._of.tenants
        high = [each for each in tenants if each.objective != LOW]
        low = [each for each in tenants if each.objective == LOW]
        calm = [each for each in low if each.name.startswith("calm")]
        flood = self._by_name["flood"]
        wait = share_of((each.queued_seconds for tenant in high for each in tenant.good()), 0.95)
        flood_wait = share_of((each.queued_seconds for each in flood.good()), 0.5)
        calm_wait = max(share_of((each.queued_seconds for each in tenant.good()), 0.95) for tenant in calm)
        served = [float(len(tenant.good())) for tenant in low]
        shares = fair_shares([float(tenant.sent) for tenant in low], sum(served))
        between_all = jain([got / share for got, share in zip(served, shares, strict=True)])
        between_calm = jain([len(tenant.good()) / tenant.sent for tenant in calm])
        refused = sum(len(tenant.answers) - len(tenant.good()) for tenant in high)
        return [
            Check("refused of higher priorities", f"{refused}", refused == 0),
            Check("p95 wait of higher priorities, by the flood's median", _by(wait, flood_wait), wait < flood_wait / 2),
            Check(
                "p95 wait of calm tenants, by the flood's median", _by(calm_wait, flood_wait), calm_wait < flood_wait
            ),
            Check("Jain's index, calm tenants, served by sent", f"{between_calm:.3f}", between_calm >= _LEAST_FAIRNESS),
            Check(
                "Jain's index, low priority, served by fair share", f"{between_all:.3f}", between_all >= _LEAST_FAIRNESS
            ),
        ]

    def _of_retry_after(self) -> list[Check]:
        refused = [each for each in self._answers if each.status == 429]
        told = [each.told_seconds for each in refused]
        low = [tenant for tenant in self._of.tenants if tenant.objective == LOW]
        pairs = [pair for tenant in low for pair in told_and_real(tenant) if pair[0] >= _LEAST_TOLD]
        middle = median(real / said for said, real in pairs) if pairs else 0.0
        true = share_within_two(pairs)
        return [
            Check("refusals", f"{len(refused)}", bool(refused)),
            Check(
                "refusals with a Retry-After of 1 s to the TTL",
                f"{sum(each is not None and 1 <= each <= LOW_TTL_SECONDS for each in told)}",
                all(each is not None and 1 <= each <= LOW_TTL_SECONDS for each in told),
            ),
            Check(
                "Retry-After true within a factor of two",
                f"{100 * true:.1f} % of {len(pairs)}",
                true >= 0.8,
                is_of_time=True,
            ),
            Check("median of real by told", f"{middle:.2f}", 0.5 <= middle <= 2.0, is_of_time=True),
        ]

    def _of_loss(self) -> list[Check]:
        sent = sum(tenant.sent for tenant in self._of.tenants)
        other = Counter(each.status for each in self._answers if each.status not in {200, 429})
        twice = [name for name, count in Counter(each.id for each in self._answers).items() if count > 1]
        good = {each.id for each in self._answers if each.status == 200}
        ours = {name: count for name, count in self._of.at_servers.items() if self._is_ours(name)}
        served_twice = [name for name, count in ours.items() if count > 1]
        astray = good.symmetric_difference(ours)
        return [
            Check("requests without an answer", f"{sent - len(self._answers)} of {sent}", sent == len(self._answers)),
            Check("answers that are neither 200 nor 429", f"{dict(other) or 0}", not other),
            Check("requests answered twice", f"{len(twice)}", not twice),
            Check("requests that servers got twice", f"{len(served_twice)}", not served_twice),
            Check("requests at a server, or answered by one, not both", f"{len(astray)}", not astray),
        ]

    def _is_ours(self, name: str) -> bool:
        return name.rpartition("-")[0] in self._by_name

    def _of_leaks(self) -> list[Check]:
        of = self._of
        third = max(1, len(of.memory) // 3)
        first, last = (max(size for _, size in part) for part in (of.memory[:third], of.memory[-third:]))
        left = {place: count for place, count in of.under_way.items() if count}
        return [
            Check("requests left behind", f"{left or 0}", not left),
            Check("picker's count of requests in flight, as a share", f"{of.saturation:g}", of.saturation == 0),
            Check(
                "memory of the picker, last third by first third",
                f"{last >> 20} MiB / {first >> 20} MiB = {last / first:.2f}",
                last <= _MOST_GROWTH * first,
            ),
            Check(
                "descriptors of the picker, after / before",
                f"{of.after.descriptors} / {of.before.descriptors}",
                of.after.descriptors <= of.before.descriptors + 8,
            ),
            Check(
                "threads of the picker, after / before",
                f"{of.after.threads} / {of.before.threads}",
                of.after.threads <= of.before.threads + 2,
            ),
        ]


def _by(value: float, other: float) -> str:
    return f"{value:.2f} s / {other:.2f} s"
