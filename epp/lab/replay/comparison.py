# SPDX-License-Identifier: Apache-2.0
"""Confidence intervals of figures, and differences between configurations, by moving-block bootstrap."""

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from epp.framework.arrays import Floats
from epp.lab.replay.outcome import Outcome
from epp.lab.replay.summary import NO_TARGETS, Quantiles, Targets, summarise

RESAMPLES = 200
_TAILS = (0.025, 0.975)
_LONGEST_SHARE, _BLOCK_SECONDS, _BLOCK_SHARE = 1 / 5, 30.0, 1 / 20
_HIGHER_IS_BETTER = frozenset({"goodput", "cached_share", "fairness", "served"})
_COUNTS = ("requests", "unfinished")

Verdict = Literal["better", "worse", "no difference shown"]


class Interval(msgspec.Struct, frozen=True):
    """A figure with its 95 % interval; None for infinite or unknown."""

    value: float | None
    low: float | None
    high: float | None


class Difference(msgspec.Struct, frozen=True):
    """A figure minus that of the first configuration, with its 95 % interval; None for infinite or unknown."""

    value: float | None
    low: float | None
    high: float | None
    verdict: Verdict
    """Better or worse only if the interval is on one side of zero."""


class Comparison(msgspec.Struct, frozen=True):
    """Figures of the requests of one configuration, by name, and differences to the first."""

    figures: dict[str, Interval]
    differences: dict[str, Difference]
    """Empty for the first."""


def figures(outcome: Outcome, targets: Targets = NO_TARGETS) -> Mapping[str, float]:
    """Return the figures of a summary by name, such as `ttft.p90`; infinite or NaN where they are None there.

    Numbers of served, refused, timed out and evicted requests become shares.
    """
    summary = summarise(outcome, targets)
    found: dict[str, float] = {}
    for name in summary.__struct_fields__:
        value = getattr(summary, name)
        if isinstance(value, Quantiles):
            for part in value.__struct_fields__:
                seconds = getattr(value, part)
                found[f"{name}.{part}"] = math.inf if seconds is None else seconds
        elif isinstance(value, int):
            found[name] = value / max(1, summary.requests)
        else:
            found[name] = math.nan if value is None else value
    return MappingProxyType({name: value for name, value in found.items() if name not in _COUNTS})


def compare(
    outcomes: Sequence[Outcome], targets: Targets = NO_TARGETS, *, resamples: int = RESAMPLES, seed: int = 0
) -> list[Comparison]:
    """Return the figures of outcomes of one trace, each compared with the first.

    Each resample draws seeds, and for each of them blocks of consecutive requests from random times, until they cover
    the length of the trace; requests that follow each other depend on each other, and blocks keep that. All outcomes
    get the same blocks: differences are paired. Intervals hold 95 % of the resampled figures.
    """
    names = [name for name, value in figures(outcomes[0], targets).items() if not math.isnan(value)]
    values = [_row(figures(outcome, targets), names) for outcome in outcomes]
    drawn = np.empty((resamples, len(outcomes), len(names)))
    for number, blocks in enumerate(_draws(outcomes[0], resamples, seed)):
        for place, outcome in enumerate(outcomes):
            drawn[number, place] = _row(figures(outcome.take(_in_blocks(outcome, blocks)), targets), names)
    found = []
    for place in range(len(outcomes)):
        intervals = {
            name: Interval(_known(values[place][column]), *_bounds(drawn[:, place, column]))
            for column, name in enumerate(names)
        }
        differences = {
            name: _difference(
                name,
                _minus(values[place][column], values[0][column]),
                _minus(drawn[:, place, column], drawn[:, 0, column]),
            )
            for column, name in enumerate(names)
            if place
        }
        found.append(Comparison(intervals, differences))
    return found


def _draws(outcome: Outcome, resamples: int, seed: int) -> Iterator[list[tuple[int, float, float]]]:
    """Yield blocks of a seed, a start and an end."""
    generator = np.random.default_rng(seed)
    seeds = int(outcome.seed.max(initial=0)) + 1
    seconds = max(outcome.seconds, 1e-9)
    length = max(_BLOCK_SHARE * seconds, min(_BLOCK_SECONDS, _LONGEST_SHARE * seconds))
    count = math.ceil(seconds / length)
    for _ in range(resamples):
        yield [
            (chosen, start, start + length)
            for chosen in generator.integers(seeds, size=seeds).tolist()
            for start in generator.uniform(0.0, seconds - length, size=count).tolist()
        ]


def _in_blocks(outcome: Outcome, blocks: Sequence[tuple[int, float, float]]) -> NDArray[np.intp]:
    """Return the positions of the requests in blocks; those of a seed are in order of time."""
    at = outcome.columns.at
    firsts = np.searchsorted(outcome.seed, np.arange(int(outcome.seed.max(initial=0)) + 2))
    found = []
    for seed, start, end in blocks:
        first, last = firsts[seed], firsts[seed + 1]
        low, high = first + np.searchsorted(at[first:last], (start, end))
        found.append(np.arange(low, high))
    return np.concatenate(found)


def _row(found: Mapping[str, float], names: Sequence[str]) -> list[float]:
    return [found[name] for name in names]


def _minus(one: Floats | float, other: Floats | float) -> Floats:
    """Return the difference; 0 of two infinite numbers."""
    one, other = np.asarray(one), np.asarray(other)
    with np.errstate(invalid="ignore"):
        found: Floats = np.where(np.isinf(one) & (one == other), 0.0, one - other)
    return found


def _bounds(drawn: Floats) -> tuple[float | None, float | None]:
    low, high = _quantiles(drawn)
    return _known(low), _known(high)


def _quantiles(drawn: Floats) -> tuple[float, float]:
    """Return the bounds of the interval; NaN if too many figures are unknown."""
    known = np.sort(drawn[~np.isnan(drawn)])
    if len(known) < _TAILS[1] * len(drawn):
        return math.nan, math.nan
    low, high = (known[min(len(known) - 1, int(tail * len(known)))] for tail in _TAILS)
    return float(low), float(high)


def _difference(name: str, value: Floats, drawn: Floats) -> Difference:
    low, high = _quantiles(drawn)
    verdict: Verdict = "no difference shown"
    if low > 0 or high < 0:
        verdict = "better" if (low > 0) == (name in _HIGHER_IS_BETTER) else "worse"
    return Difference(_known(float(value)), _known(low), _known(high), verdict)


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
