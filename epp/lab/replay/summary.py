# SPDX-License-Identifier: Apache-2.0
"""Figures of an outcome: latency, goodput, dollars, cache hits and fairness, of all requests and by group."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from epp.framework import ConfigurationError
from epp.framework.arrays import Floats, Mask
from epp.framework.quantities import parse_duration
from epp.lab.replay.outcome import Outcome, Status

_QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Targets:
    """Latency targets in seconds of requests without their own targets; None for no target."""

    ttft: float | None = None
    tpot: float | None = None


NO_TARGETS = Targets()


def parse_targets(text: str) -> Targets:
    """Return the targets of --slo; raises ConfigurationError."""
    found: dict[str, float] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, value = part.partition("=")
        if name not in {"ttft", "tpot"}:
            raise ConfigurationError(f"--slo: {part!r} is not a target: write ttft=500ms,tpot=50ms")
        try:
            found[name] = parse_duration(value)
        except ValueError as error:
            raise ConfigurationError(f"--slo: {name}: {error}") from error
    return Targets(**found)


class Quantiles(msgspec.Struct, frozen=True):
    """Quantiles in seconds; None if infinite (too many requests without an answer) or without requests."""

    p50: float | None
    p90: float | None
    p99: float | None


class Summary(msgspec.Struct, frozen=True):
    """Figures of requests; None for unknown ones."""

    requests: int
    ttft: Quantiles
    """Time to the first token; requests without an answer count as infinite."""
    tpot: Quantiles
    """Mean time between two tokens of a request; requests without an answer count as infinite."""
    total: Quantiles
    """Time to the last token; requests without an answer count as infinite."""
    goodput: float | None
    """Share of the requests with targets that met them."""
    dollars_per_1000_requests: float | None
    dollars_per_million_tokens: float | None
    """Price of a million tokens of served prompts and answers."""
    cached_share: float | None
    """Share of the prompt tokens of served requests that engines had cached."""
    session_pace_spread: float | None
    """Mean coefficient of variation of the time between tokens within a session; 0 for a constant pace."""
    fairness: float | None
    """Jain's index over tenants of the share of their requests' tokens that were served; 1 is fair."""
    served: int
    refused: int
    timed_out: int
    evicted: int
    unfinished: int
    mean_regret: float | None
    """Seconds; see `Columns.regret`."""
    p90_regret: float | None


class Groups(msgspec.Struct, frozen=True):
    """Figures of all requests, and by group."""

    all: Summary
    models: dict[str, Summary]
    tenants: dict[str, Summary]
    classes: dict[str, Summary]
    """Summary by accelerator class of the server; requests that did not reach a server are left out."""


_MOST_GROUPS = 50


def latencies(outcome: Outcome, name: str) -> Floats:
    """Return a column of times with infinity for requests without an answer; unfinished requests are left out."""
    columns = outcome.columns
    known = columns.status != Status.UNFINISHED
    values: Floats = getattr(columns, name)
    if name == "tpot":
        known = known & ((columns.output_tokens > 1) | (columns.status != Status.SERVED))
    unanswered = (columns.status != Status.SERVED) | np.isnan(values)
    found: Floats = np.where(unanswered, np.inf, values)[known]
    return found


def quantile(values: Floats, share: float) -> float:
    """Return the smallest value with `share` of the values at or below it; NaN without values."""
    if not len(values):
        return math.nan
    rank = min(len(values) - 1, max(0, math.ceil(share * len(values)) - 1))
    return float(np.partition(values, rank)[rank])


def within_targets(outcome: Outcome, targets: Targets = NO_TARGETS) -> tuple[Mask, Mask]:
    """Return masks of the requests that have a target, and of those that met it."""
    columns = outcome.columns
    finished = columns.status != Status.UNFINISHED
    has = np.zeros(len(outcome), dtype=np.bool_)
    kept = columns.status == Status.SERVED
    for values, own, default in (
        (columns.ttft, columns.ttft_target, targets.ttft),
        (columns.tpot, columns.tpot_target, targets.tpot),
    ):
        limit = own if default is None else np.where(np.isnan(own), default, own)
        limited = ~np.isnan(limit)
        has |= limited
        kept &= ~limited | np.isnan(values) | (values <= limit)
    return has & finished, kept & has & finished


def summarise(outcome: Outcome, targets: Targets = NO_TARGETS) -> Summary:
    columns = outcome.columns
    status = columns.status
    served = status == Status.SERVED
    prompt = int(columns.prompt_tokens[served].sum())
    tokens = prompt + int(columns.output_tokens[served].sum())
    has, kept = within_targets(outcome, targets)
    regret = columns.regret[~np.isnan(columns.regret)]
    dollars = float(outcome.dollars.sum())
    found: dict[str, Any] = {each.name.lower(): int((status == each).sum()) for each in Status}
    found |= {name: _quantiles(latencies(outcome, name)) for name in ("ttft", "tpot", "total")}
    return Summary(
        **found,
        requests=len(outcome),
        goodput=_ratio(int(kept.sum()), int(has.sum())),
        dollars_per_1000_requests=finite(_ratio(1000 * dollars, int(served.sum()))),
        dollars_per_million_tokens=finite(_ratio(1e6 * dollars, tokens)),
        cached_share=_ratio(int(columns.cached_tokens[served].sum()), prompt),
        session_pace_spread=finite(pace_spread(outcome)),
        fairness=finite(jain(outcome)),
        mean_regret=float(regret.mean()) if len(regret) else None,
        p90_regret=quantile(regret, 0.9) if len(regret) else None,
    )


def groups(outcome: Outcome, targets: Targets = NO_TARGETS) -> Groups:
    """Return the figures of all requests, and of the largest groups by model, tenant and accelerator class."""
    columns = outcome.columns
    classes = tuple(dict.fromkeys(outcome.classes))
    places = np.array([classes.index(name) for name in outcome.classes])
    by_class = np.where(columns.server >= 0, places[np.maximum(columns.server, 0)], -1)
    return Groups(
        summarise(outcome, targets),
        _by(outcome, columns.model, outcome.models, targets),
        _by(outcome, columns.tenant, outcome.tenants, targets),
        _by(outcome, by_class, classes, targets),
    )


def _by(outcome: Outcome, column: Floats, names: Sequence[str], targets: Targets) -> dict[str, Summary]:
    counts = np.bincount(column[column >= 0], minlength=len(names))
    largest = sorted(range(len(names)), key=lambda place: (-counts[place], names[place]))[:_MOST_GROUPS]
    return {
        names[place]: summarise(outcome.take(column == place), targets)
        for place in sorted(largest, key=lambda place: names[place])
        if counts[place]
    }


def pace_spread(outcome: Outcome) -> float:
    """Return the mean coefficient of variation of the time between tokens within a session; NaN without sessions."""
    columns = outcome.columns
    paces = columns.tpot
    counted = (columns.status == Status.SERVED) & (columns.session >= 0) & ~np.isnan(paces)
    paces = paces[counted]
    _, session = np.unique(columns.session[counted] + outcome.seed[counted], return_inverse=True)
    counts, sums, squares = (np.bincount(session, weights=each) for each in (np.ones(len(paces)), paces, paces**2))
    several = (counts > 1) & (sums > 0)
    means = sums[several] / counts[several]
    variances = np.maximum(squares[several] / counts[several] - means**2, 0.0)
    return float((np.sqrt(variances) / means).mean()) if len(means) else math.nan


def jain(outcome: Outcome) -> float:
    """Return Jain's index over tenants of the share of their requests' tokens that were served; NaN for one tenant."""
    columns = outcome.columns
    count = len(outcome.tenants)
    tokens = columns.prompt_tokens + columns.output_tokens
    asked = np.bincount(columns.tenant, weights=tokens, minlength=count)
    served = np.bincount(columns.tenant, weights=tokens * (columns.status == Status.SERVED), minlength=count)
    shares = served[asked > 0] / asked[asked > 0]
    if len(shares) < 2 or not shares.any():  # noqa: PLR2004
        return math.nan
    return float(shares.sum() ** 2 / (len(shares) * (shares**2).sum()))


def _quantiles(values: Floats) -> Quantiles:
    return Quantiles(*(finite(quantile(values, share)) for share in _QUANTILES))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def finite(value: float | None) -> float | None:
    """Return the value; None if it is infinite or unknown."""
    return value if value is not None and math.isfinite(value) else None
