# SPDX-License-Identifier: Apache-2.0
"""Comparison of replays: confidence intervals by moving-block bootstrap, and the HTML report."""

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from epp.framework.arrays import Floats
from epp.lab.html import (
    COLOURS,
    Series,
    curves,
    figure,
    legend,
    matrix,
    page,
    pareto,
    points,
    section,
    steps_down,
    table,
)
from epp.lab.replay.outcome import Outcome
from epp.lab.replay.summary import NO_TARGETS, Quantiles, Targets, finite, latencies, quantile, summarise

_RESAMPLES = 200
_TAILS = (0.025, 0.975)
_LONGEST_SHARE, _BLOCK_SECONDS, _BLOCK_SHARE = 1 / 5, 30.0, 1 / 20
_HIGHER_IS_BETTER = frozenset({"goodput", "cached_share", "fairness", "served"})
_COUNTS = ("requests", "unfinished")

Verdict = Literal["better", "worse", "no difference shown"]
_WINDOWS = 60
_TIMES = (("ttft", "Time to first token"), ("tpot", "Time between tokens"), ("total", "Whole request"))
_LENGTHS = (0, 256, 1024, 4096, 16384)
"""Lower ends of classes of prompts, in tokens."""
_NO_SERVER = "none"


class Interval(msgspec.Struct, frozen=True):
    """A figure with its 95 % interval; None if infinite or unknown."""

    value: float | None
    low: float | None
    high: float | None


class Difference(Interval, frozen=True):
    """A figure minus that of the first configuration."""

    verdict: Verdict
    """Better or worse only if the interval does not contain zero."""


class Comparison(msgspec.Struct, frozen=True):
    """Figures of one configuration by name, and their differences to the first configuration."""

    figures: dict[str, Interval]
    differences: dict[str, Difference]
    """Empty for the first configuration."""


def figures(outcome: Outcome, targets: Targets = NO_TARGETS) -> Mapping[str, float]:
    """Return the figures of a summary by name, such as `ttft.p90`; None becomes infinity (times) or NaN.

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


def compare(outcomes: Sequence[Outcome], targets: Targets = NO_TARGETS) -> list[Comparison]:
    """Return the figures of outcomes of one trace, each compared with the first.

    Each resample draws seeds, and for each seed random blocks of consecutive requests with the total length of the
    trace. Blocks preserve the correlation between successive requests. All outcomes use the same blocks, so differences
    are paired. Intervals contain 95 % of the resampled figures.
    """
    names = [name for name, value in figures(outcomes[0], targets).items() if not math.isnan(value)]

    def row(outcome: Outcome) -> list[float]:
        found = figures(outcome, targets)
        return [found[name] for name in names]

    values = [row(outcome) for outcome in outcomes]
    drawn = np.empty((_RESAMPLES, len(outcomes), len(names)))
    for number, blocks in enumerate(_draws(outcomes[0])):
        for place, outcome in enumerate(outcomes):
            drawn[number, place] = row(outcome.take(_in_blocks(outcome, blocks)))
    compared = []
    for place, own in enumerate(values):
        intervals: dict[str, Interval] = {}
        differences: dict[str, Difference] = {}
        for column, name in enumerate(names):
            resampled = drawn[:, place, column]
            intervals[name] = Interval(finite(own[column]), *map(finite, _quantiles(resampled)))
            if place:
                apart = _minus(resampled, drawn[:, 0, column])
                differences[name] = _difference(name, own[column] - values[0][column], apart)
        compared.append(Comparison(intervals, differences))
    return compared


def _draws(outcome: Outcome) -> Iterator[list[tuple[int, float, float]]]:
    """Yield the blocks of each resample: seed, start and end."""
    generator = np.random.default_rng(0)
    seeds = int(outcome.seed.max(initial=0)) + 1
    seconds = max(outcome.seconds, 1e-9)
    length = max(_BLOCK_SHARE * seconds, min(_BLOCK_SECONDS, _LONGEST_SHARE * seconds))
    count = math.ceil(seconds / length)
    for _ in range(_RESAMPLES):
        yield [
            (chosen, start, start + length)
            for chosen in generator.integers(seeds, size=seeds).tolist()
            for start in generator.uniform(0.0, seconds - length, size=count).tolist()
        ]


def _in_blocks(outcome: Outcome, blocks: Sequence[tuple[int, float, float]]) -> NDArray[np.intp]:
    """Return the positions of the requests in the blocks; the requests of a seed are sorted by time."""
    at = outcome.columns.at
    firsts = np.searchsorted(outcome.seed, np.arange(int(outcome.seed.max(initial=0)) + 2))
    found = []
    for seed, start, end in blocks:
        first, last = firsts[seed], firsts[seed + 1]
        low, high = first + np.searchsorted(at[first:last], (start, end))
        found.append(np.arange(low, high))
    return np.concatenate(found)


def _minus(one: Floats, other: Floats) -> Floats:
    """Return the differences; 0 for two equal infinities, so that other resamples decide the verdict."""
    with np.errstate(invalid="ignore"):
        found: Floats = np.where(np.isinf(one) & (one == other), 0.0, one - other)
    return found


def _quantiles(drawn: Floats) -> tuple[float, float]:
    """Return the bounds of the interval; NaN if too many figures are unknown."""
    known = np.sort(drawn[~np.isnan(drawn)])
    if len(known) < _TAILS[1] * len(drawn):
        return math.nan, math.nan
    low, high = (known[min(len(known) - 1, int(tail * len(known)))] for tail in _TAILS)
    return float(low), float(high)


def _difference(name: str, value: float, drawn: Floats) -> Difference:
    verdict: Verdict = "no difference shown"
    if math.isnan(value):  # for example, both times are infinite
        return Difference(None, None, None, verdict)
    low, high = _quantiles(drawn)
    if low > 0 or high < 0:
        verdict = "better" if (low > 0) == (name in _HIGHER_IS_BETTER) else "worse"
    return Difference(finite(value), finite(low), finite(high), verdict)


def replay_report(
    trace: str, names: Sequence[str], outcomes: Sequence[Outcome], figures: Sequence[Sequence[str]], targets: Targets
) -> str:
    """Return the HTML report; each row of `figures` has a name and a cell for each configuration."""
    first = outcomes[0]
    title = f"Replay of {trace}"
    requests = len(first) // (int(first.seed.max(initial=0)) + 1)
    subtitle = f"{requests:,} requests in {first.seconds:,.0f} s, {len(first.servers)} servers, in virtual time"
    return page(title, subtitle, [section("Figures", table(["", *names], figures)), *plots(names, outcomes, targets)])


def plots(names: Sequence[str], outcomes: Sequence[Outcome], targets: Targets) -> Iterator[str]:
    names_above = legend(names) if len(names) > 1 else ""
    for column, heading in _TIMES:
        series = [_distribution(name, each, column) for name, each in zip(names, outcomes, strict=True)]
        yield section(heading, figure(curves(series, "seconds", "share of requests", log_x=True), above=names_above))
    over_time = [_over_time(name, each) for name, each in zip(names, outcomes, strict=True)]
    plot = curves(over_time, "seconds since the start", "p90, seconds")
    yield section("Time to first token over time", figure(plot, above=names_above))
    costs = [
        (name, summarise(each, targets).dollars_per_1000_requests, quantile(latencies(each, "ttft"), 0.9))
        for name, each in zip(names, outcomes, strict=True)
    ]
    known = [(name, cost, time) for name, cost, time in costs if cost is not None and math.isfinite(time)]
    if known:
        front = steps_down(pareto([(cost, time) for _, cost, time in known]))
        marks = [Series(name, [cost], [time]) for name, cost, time in known]
        plot = points(marks, "dollars for 1,000 requests", "p90 time to first token, seconds", front)
        yield section("Dollars against latency", figure(plot))
    for name, outcome in zip(names, outcomes, strict=True):
        yield _servers(name, outcome)
        yield _routing(name, outcome)


def _distribution(name: str, outcome: Outcome, column: str) -> Series:
    times = np.sort(latencies(outcome, column))
    share = np.arange(1, len(times) + 1) / max(1, len(times))
    return Series(name, times.tolist(), share.tolist())


def _over_time(name: str, outcome: Outcome) -> Series:
    """Return the p90 of the requests that arrived in each window."""
    columns = outcome.columns
    times = np.where(np.isnan(columns.ttft), np.inf, columns.ttft)
    width = max(outcome.seconds, 1e-9) / _WINDOWS
    window = np.minimum((columns.at / width).astype(np.int64), _WINDOWS - 1)
    found = [quantile(times[window == number], 0.9) for number in range(_WINDOWS)]
    return Series(name, [(number + 0.5) * width for number in range(_WINDOWS)], found)


def _servers(name: str, outcome: Outcome) -> str:
    """Return plots of queues and KV usage by server, or by accelerator class if there are more servers than colours."""
    line = outcome.timeline
    groups = [(server, [place]) for place, server in enumerate(outcome.servers)]
    note = ""
    if len(groups) > COLOURS:
        classes = dict.fromkeys(outcome.classes)
        groups = [(each, [at for at, one in enumerate(outcome.classes) if one == each]) for each in classes][:COLOURS]
        note = "Means over the servers of an accelerator class."
    above = legend([group for group, _ in groups])

    def plot(values: Floats, label: str) -> str:
        series = [Series(group, line.times.tolist(), values[:, at].mean(axis=1).tolist()) for group, at in groups]
        return figure(curves(series, "seconds since the start", label), above=above)

    shown = (plot(line.waiting, "requests waiting"), plot(line.kv_usage, "KV cache in use, share"))
    return section(f"Servers with {name}", *shown, note=note)


def _routing(name: str, outcome: Outcome) -> str:
    """Return a heat map of the accelerator classes that requests went to, by length of the prompt."""
    columns = outcome.columns
    classes = list(dict.fromkeys(outcome.classes))
    place = np.array([classes.index(each) for each in outcome.classes], dtype=np.int64)
    target = np.where(columns.server >= 0, place[np.maximum(columns.server, 0)], len(classes))
    length = np.searchsorted(_LENGTHS, columns.prompt_tokens, side="right") - 1
    rows, shares = [], []
    for number, low in enumerate(_LENGTHS):
        counts = np.bincount(target[length == number], minlength=len(classes) + 1)
        if counts.sum():
            high = f" to {_LENGTHS[number + 1] - 1:,}" if number + 1 < len(_LENGTHS) else " and more"
            rows.append(f"{low:,}{high} tokens ({counts.sum():,})")
            shares.append((counts / counts.sum()).tolist())
    if not any(row[-1] for row in shares):
        shares = [row[:-1] for row in shares]
    columns_shown = classes if shares and len(shares[0]) == len(classes) else [*classes, _NO_SERVER]
    note = "Share of the requests with prompts of each length that went to each accelerator class."
    return section(f"Routing with {name}", figure(matrix(rows, columns_shown, shares)), note=note)
