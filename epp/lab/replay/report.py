# SPDX-License-Identifier: Apache-2.0
"""The report of replays: figures, distributions, load of servers, cost and routing of one or several configurations."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

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
from epp.lab.replay.summary import Targets, latencies, quantile, summarise

_WINDOWS = 60
_TIMES = (("ttft", "Time to first token"), ("tpot", "Time between tokens"), ("total", "Whole request"))
_LENGTHS = (0, 256, 1024, 4096, 16384)
"""Lower ends of classes of prompts, in tokens."""
_NO_SERVER = "none"


def replay_report(
    trace: str, names: Sequence[str], outcomes: Sequence[Outcome], figures: Sequence[Sequence[str]], targets: Targets
) -> str:
    """Return the page; `figures` are rows with a name and a cell for each configuration."""
    first = outcomes[0]
    title = f"Replay of {trace}"
    requests = len(first) // (int(first.seed.max(initial=0)) + 1)
    subtitle = f"{requests:,} requests in {first.seconds:,.0f} s, {len(first.servers)} servers, in virtual time"
    return page(title, subtitle, [section("Figures", table(["", *names], figures)), *plots(names, outcomes, targets)])


def plots(names: Sequence[str], outcomes: Sequence[Outcome], targets: Targets) -> Iterator[str]:
    """Yield the sections with plots."""
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
    """Return the queues and KV caches of the servers, or of their classes if there are more than colours."""
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
    """Return the share of requests with prompts of each length that each accelerator class got."""
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
