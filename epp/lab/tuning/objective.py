# SPDX-License-Identifier: Apache-2.0
"""Objectives and conditions: figures of an outcome by name, such as `p90-ttft`, and limits such as `p99 ttft <= 1s`."""

import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

from epp.framework import ConfigurationError
from epp.framework.messages import hint_at
from epp.framework.quantities import parse_duration
from epp.lab.replay.comparison import figures
from epp.lab.replay.outcome import Outcome, Status
from epp.lab.replay.summary import Targets

_CONDITION = re.compile(r"(?P<figure>[a-z0-9 -]+?)\s*(?P<sign><=|>=)\s*(?P<limit>\S+)")
_UNANSWERED = 1e6
"""Seconds that stand for an infinite quantile, and more for more requests without an answer."""
_FARTHEST = 1e9


class Figure(NamedTuple):
    """A figure that may be tuned or limited."""

    name: str
    key: str
    """Name among the `figures` of an outcome."""
    unit: Literal["s", "$", "%"]
    is_better_higher: bool = False

    def value(self, found: Mapping[str, float]) -> float:
        """Return the value among figures; NaN if it is not known."""
        return found.get(self.key, math.nan)

    def loss(self, outcome: Outcome, targets: Targets) -> float:
        """Return the figure so that lower is better; finite if it is known."""
        value = self.value(figures(outcome, targets))
        if math.isinf(value):
            return _UNANSWERED * (1 + float((outcome.columns.status != Status.SERVED).mean()))
        return -value if self.is_better_higher else value

    def of_loss(self, loss: float) -> float:
        """Return the value of a loss."""
        return -loss if self.is_better_higher else loss

    def text(self, value: float | None) -> str:
        """Return a value with its unit."""
        if value is None or math.isnan(value):
            return "unknown"
        if self.unit == "%":
            return f"{value:.1%}"
        if self.unit == "$":
            return f"${value:.4g}"
        if abs(value) >= _UNANSWERED:
            return "no answer"
        return f"{value:.3f} s" if abs(value) >= 1 else f"{value * 1000:.1f} ms"


FIGURES: Mapping[str, Figure] = MappingProxyType(
    {
        each.name: each
        for each in (
            *(
                Figure(f"{quantile}-{short}", f"{time}.{quantile}", "s")
                for short, time in (("ttft", "ttft"), ("tpot", "tpot"), ("e2e", "total"))
                for quantile in ("p50", "p90", "p99")
            ),
            Figure("goodput", "goodput", "%", is_better_higher=True),
            Figure("dollars", "dollars_per_1000_requests", "$"),
            Figure("dollars-per-million-tokens", "dollars_per_million_tokens", "$"),
            Figure("cached", "cached_share", "%", is_better_higher=True),
            Figure("fairness", "fairness", "%", is_better_higher=True),
            Figure("refused", "refused", "%"),
            Figure("timed-out", "timed_out", "%"),
            Figure("regret", "mean_regret", "s"),
        )
    }
)
"""By name: time to the first token (ttft), between tokens (tpot), to the last token (e2e), and others."""


class Condition(NamedTuple):
    """A limit on a figure."""

    text: str
    figure: Figure
    limit: float
    is_least: bool

    def excess(self, outcome: Outcome, targets: Targets) -> float:
        """Return by how much the figure is beyond the limit; 0 or less where it holds."""
        value = self.figure.value(figures(outcome, targets))
        if not math.isfinite(value):
            return _FARTHEST
        return self.limit - value if self.is_least else value - self.limit


def figure(name: str) -> Figure:
    """Return the figure of that name; a space may stand for the hyphen. Raises ConfigurationError."""
    found = FIGURES.get("-".join(name.lower().split()))
    if found is None:
        raise ConfigurationError(
            f"there is no figure {name!r}; {hint_at(name, FIGURES)}", remedy=f"choose one of {', '.join(FIGURES)}"
        )
    return found


def condition(text: str) -> Condition:
    """Return a condition such as `p99 ttft <= 1s` or `goodput >= 95%`; raises ConfigurationError."""
    found = _CONDITION.fullmatch(text.strip())
    if found is None:
        raise ConfigurationError(f"--subject-to {text!r}: write a figure, <= or >=, and a limit: p99 ttft <= 1s")
    limited = figure(found["figure"])
    try:
        limit = _limit(limited, found["limit"])
    except ValueError as error:
        raise ConfigurationError(f"--subject-to {text!r}: the limit of {limited.name} is not valid: {error}") from error
    return Condition(text.strip(), limited, limit, found["sign"] == ">=")


def _limit(limited: Figure, written: str) -> float:
    match limited.unit:
        case "%":
            return float(written.removesuffix("%")) / (100 if written.endswith("%") else 1)
        case "$":
            return float(written.removeprefix("$"))
        case "s":
            return parse_duration(written)


SIDE_EFFECTS: Sequence[Figure] = tuple(
    FIGURES[name]
    for name in ("p50-ttft", "p90-ttft", "p99-ttft", "p90-tpot", "p90-e2e", "goodput", "dollars", "refused", "cached")
)
"""Figures that are shown beside those of the objective."""
