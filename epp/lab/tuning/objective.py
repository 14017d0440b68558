# SPDX-License-Identifier: Apache-2.0
"""Objectives and conditions: figures of an outcome by name, such as `p90-ttft`, and limits such as `p99 ttft <= 1s`."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from epp.framework import ConfigurationError
from epp.framework.messages import hint_at
from epp.framework.quantities import parse_duration
from epp.lab.replay.outcome import Outcome, Status
from epp.lab.replay.summary import Summary, Targets, latencies, quantile, summarise

_TIMES = MappingProxyType({"ttft": "ttft", "tpot": "tpot", "e2e": "total"})
"""Names of times to columns of an outcome."""
_TIME = re.compile(rf"(?:p(?P<percent>[1-9]\d?)|mean)[- ](?P<time>{'|'.join(_TIMES)})")
_CONDITION = re.compile(r"(?P<measure>[a-z0-9 -]+?)\s*(?P<sign><=?|>=?)\s*(?P<limit>\S+)")
_UNANSWERED = 1e6
"""Seconds that stand for the time of requests without an answer, so that fewer of them are better."""


@dataclass(frozen=True)
class Measure:
    """A figure of an outcome."""

    name: str
    unit: str
    """`s`, `$`, `%` or `tokens`."""
    is_better_higher: bool
    of: Callable[[Outcome, Targets], float]
    """NaN where it is not known."""

    def loss(self, outcome: Outcome, targets: Targets) -> float:
        """Return the figure so that lower is better."""
        value = self.of(outcome, targets)
        return -value if self.is_better_higher else value

    def text(self, value: float) -> str:
        """Return a value with its unit."""
        if math.isnan(value):
            return "unknown"
        if self.unit == "%":
            return f"{value:.1%}"
        if self.unit == "$":
            return f"${value:.4g}"
        return "no answer" if value >= _UNANSWERED else f"{value:.3f} s" if value >= 1 else f"{value * 1000:.1f} ms"


@dataclass(frozen=True)
class Condition:
    """A limit on a figure."""

    text: str
    measure: Measure
    limit: float
    is_least: bool

    def excess(self, outcome: Outcome, targets: Targets) -> float:
        """Return by how much the figure is beyond the limit; 0 or less where it holds."""
        value = self.measure.of(outcome, targets)
        if math.isnan(value):
            return math.inf
        return self.limit - value if self.is_least else value - self.limit


def _time(column: str, percent: int | None) -> Callable[[Outcome, Targets], float]:
    def of(outcome: Outcome, _: Targets) -> float:
        values = latencies(outcome, column)
        found = quantile(values, percent / 100) if percent else float(values.mean()) if len(values) else math.nan
        unanswered = (outcome.columns.status != Status.SERVED).mean() if math.isinf(found) else 0.0
        return _UNANSWERED * (1 + float(unanswered)) if math.isinf(found) else found

    return of


def _of_summary(read: Callable[[Summary], float | None]) -> Callable[[Outcome, Targets], float]:
    def of(outcome: Outcome, targets: Targets) -> float:
        value = read(summarise(outcome, targets))
        return math.nan if value is None else value

    return of


_OTHERS: Mapping[str, Measure] = MappingProxyType(
    {
        each.name: each
        for each in (
            Measure("goodput", "%", is_better_higher=True, of=_of_summary(lambda found: found.goodput)),
            Measure("dollars", "$", is_better_higher=False, of=_of_summary(lambda s: s.dollars_per_1000_requests)),
            Measure(
                "dollars-per-million-tokens",
                "$",
                is_better_higher=False,
                of=_of_summary(lambda found: found.dollars_per_million_tokens),
            ),
            Measure(
                "refused",
                "%",
                is_better_higher=False,
                of=_of_summary(lambda found: found.refused / found.requests if found.requests else None),
            ),
            Measure("cached", "%", is_better_higher=True, of=_of_summary(lambda found: found.cached_share)),
            Measure("fairness", "%", is_better_higher=True, of=_of_summary(lambda found: found.fairness)),
            Measure("regret", "s", is_better_higher=False, of=_of_summary(lambda found: found.mean_regret)),
        )
    }
)


def measure(name: str) -> Measure:
    """Return the figure of that name; raises ConfigurationError."""
    written = name.strip().lower()
    if (time := _TIME.fullmatch(written)) is not None:
        percent = time["percent"]
        of = _time(_TIMES[time["time"]], int(percent) if percent else None)
        return Measure(written.replace(" ", "-"), "s", is_better_higher=False, of=of)
    if written in _OTHERS:
        return _OTHERS[written]
    known = ("p90-ttft", "p99-tpot", "mean-e2e", *_OTHERS)
    raise ConfigurationError(
        f"there is no figure {name!r}; {hint_at(name, known)}",
        remedy=f"write pN or mean with {', '.join(_TIMES)}, such as p90-ttft, or one of {', '.join(_OTHERS)}",
    )


def condition(text: str) -> Condition:
    """Return a condition such as `p99 ttft <= 1s` or `goodput >= 95%`; raises ConfigurationError."""
    found = _CONDITION.fullmatch(text.strip())
    if found is None:
        raise ConfigurationError(f"--subject-to {text!r}: write a figure, <= or >=, and a limit: p99 ttft <= 1s")
    figure = measure(found["measure"])
    return Condition(text.strip(), figure, _limit(figure, found["limit"], text), found["sign"].startswith(">"))


def _limit(figure: Measure, written: str, text: str) -> float:
    try:
        match figure.unit:
            case "%":
                return float(written.removesuffix("%")) / (100 if written.endswith("%") else 1)
            case "$":
                return float(written.removeprefix("$"))
            case _:
                return parse_duration(written)
    except ValueError as error:
        raise ConfigurationError(f"--subject-to {text!r}: {written!r} is not a limit for {figure.name}") from error


SIDE_EFFECTS: Sequence[Measure] = tuple(
    map(measure, ("p50-ttft", "p90-ttft", "p99-ttft", "p90-tpot", "p90-e2e", "goodput", "dollars", "refused", "cached"))
)
"""Figures that are shown beside those of the objective."""
