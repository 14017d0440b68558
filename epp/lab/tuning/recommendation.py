# SPDX-License-Identifier: Apache-2.0
"""Recommendation of a study: its best trials on held-out traffic, the tuned configuration, and the report."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from optuna.trial import TrialState

from epp.config import LoadedConfig, load_text
from epp.framework.messages import printable
from epp.lab.html import (
    Bar,
    Series,
    bars,
    code,
    curves,
    figure,
    legend,
    page,
    paragraph,
    pareto,
    points,
    section,
    steps_down,
    table,
)
from epp.lab.replay.comparison import Comparison, Difference, compare, plots
from epp.lab.replay.fleet import ReplayOptions
from epp.lab.replay.jobs import Job, run_jobs
from epp.lab.replay.outcome import Outcome, Timeline, merge
from epp.lab.tuning.problem import SIDE_EFFECTS, Figure, SearchSpace, Value
from epp.lab.tuning.study import Problem, Tuning, loaded, written

_SEEDS = 3
"""Number of repetitions with different random choices."""
_FINALISTS = 3
"""Number of best trials to repeat before one of them is chosen."""
_MOST_ON_FRONT = 6
_CURRENT = "current"


@dataclass(frozen=True)
class Change:
    """A figure before and after, on held-out traffic; None if it is unknown or infinite."""

    figure: Figure
    before: float | None
    after: float | None
    difference: Difference

    @property
    def text(self) -> str:
        text, low, high = self.figure.text, self.difference.low, self.difference.high
        interval = "" if low is None or high is None else f" ({self._signed(low)} to {self._signed(high)})"
        return f"{self.figure.name}: {text(self.before)} -> {text(self.after)}{interval}, {self.difference.verdict}"

    def _signed(self, value: float) -> str:
        return ("+" if value >= 0 else "-") + self.figure.text(abs(value))


@dataclass(frozen=True)
class Candidate:
    values: Mapping[str, Value]
    """Values that differ from the current ones."""
    text: str
    objectives: Sequence[Change]
    others: Sequence[Change]
    """Changes of figures that were not tuned."""
    outcome: Outcome
    """Outcome on held-out traffic."""
    broken: Sequence[str]
    """Conditions that it violates on held-out traffic."""

    @property
    def is_better(self) -> bool:
        """Whether it is better on held-out traffic and satisfies the conditions."""
        return not self.broken and any(change.difference.verdict == "better" for change in self.objectives)


@dataclass(frozen=True)
class Result:
    before: Outcome
    """Outcome of the current configuration on held-out traffic."""
    candidates: Sequence[Candidate]
    """One candidate, or those of the Pareto front; none if no trial was better in training."""

    @property
    def recommended(self) -> Sequence[Candidate]:
        return [each for each in self.candidates if each.is_better]


def recommend(tuning: Tuning, jobs: int) -> Result:
    """Repeat the best trials with different random choices, and replay the best of these on held-out traffic."""
    problem, space = tuning.problem, tuning.space
    found = [_rounded(space, trial.params) for trial in tuning.found.best if trial.params != space.current]
    if len(problem.objectives) > 1:
        chosen: Sequence[Mapping[str, Value]] = found[:_MOST_ON_FRONT]
    else:
        chosen = _best(problem, space, found[:_FINALISTS], jobs)
    configs = [load_text(problem.text, problem.origin), *(loaded(problem, space, values) for values in chosen)]
    before, *after = _repeated(problem, configs, replace(problem.options, seed=_FINALISTS + 1), jobs)
    held_out = [_held_out(problem, outcome) for outcome in (before, *after)]
    compared = compare(held_out, problem.targets)
    candidates = [
        _candidate(tuning, values, outcome, compared[0], found)
        for values, outcome, found in zip(chosen, held_out[1:], compared[1:], strict=True)
    ]
    return Result(held_out[0], candidates)


def _held_out(problem: Problem, outcome: Outcome) -> Outcome:
    """Return the requests of held-out traffic, with times since its start."""
    start = problem.held_out_from
    kept = outcome.take(outcome.columns.at >= start)
    columns = replace(kept.columns, at=kept.columns.at - start)
    line = outcome.timeline
    later = line.times >= start
    timeline = Timeline(line.times[later] - start, line.running[later], line.waiting[later], line.kv_usage[later])
    return replace(kept, seconds=outcome.seconds - start, columns=columns, timeline=timeline)


def _rounded(space: SearchSpace, values: Mapping[str, Value]) -> Mapping[str, Value]:
    """Return the values with three significant digits, for readability."""
    return {
        each.name: float(f"{value:.3g}") if isinstance(value := values[each.name], float) else value
        for each in space.dimensions
    }


def _best(
    problem: Problem, space: SearchSpace, finalists: Sequence[Mapping[str, Value]], jobs: int
) -> Sequence[Mapping[str, Value]]:
    """Return the values that are best in several repetitions on training traffic."""
    if len(finalists) <= 1:
        return finalists
    configs = [loaded(problem, space, values) for values in finalists]
    outcomes = _repeated(problem, configs, replace(problem.training, seed=problem.options.seed + 1), jobs)
    losses = [problem.figures[0].loss(outcome, problem.targets) for outcome in outcomes]
    return [finalists[int(np.nanargmin(losses))]]


def _repeated(problem: Problem, configs: Sequence[LoadedConfig], options: ReplayOptions, jobs: int) -> list[Outcome]:
    seeds = [replace(options, seed=options.seed + number) for number in range(_SEEDS)]
    replays = [Job(config, problem.fleet, problem.trace, each) for config in configs for each in seeds]
    outcomes = run_jobs(replays, workers=jobs)
    return [merge(outcomes[start : start + _SEEDS]) for start in range(0, len(outcomes), _SEEDS)]


def _candidate(
    tuning: Tuning, values: Mapping[str, Value], outcome: Outcome, first: Comparison, found: Comparison
) -> Candidate:
    problem, space = tuning.problem, tuning.space

    def changes(figures: Iterable[Figure]) -> Sequence[Change]:
        return [
            Change(each, first.figures[each.key].value, found.figures[each.key].value, found.differences[each.key])
            for each in figures
            if each.key in found.differences
        ]

    candidate = Candidate(
        {each.name: values[each.name] for each in space.dimensions if values[each.name] != each.current},
        "",
        changes(problem.figures),
        changes(each for each in SIDE_EFFECTS if each.name not in problem.objectives),
        outcome,
        [each.text for each in problem.limits if each.excess(outcome, problem.targets) > 0],
    )
    header = "".join(f"# {line}\n" for line in _comment(problem, candidate, space))
    return replace(candidate, text=header + written(space.with_values(values)))


def _comment(problem: Problem, candidate: Candidate, space: SearchSpace) -> Iterator[str]:
    yield f"Tuned by `epp tune` from {printable(problem.origin)}, on {printable(problem.trace.path.name)},"
    yield f"for {' and '.join(problem.objectives)}{''.join(f', subject to {text}' for text in problem.conditions)}."
    yield ""
    yield "On the last third of the trace, which was held out, with different random choices (95 % intervals):"
    for change in (*candidate.objectives, *candidate.others):
        yield f"  {change.text}"
    yield "Changed values:"
    for name, value in candidate.values.items():
        yield f"  {name}: {shown(space.current[name])} -> {shown(value)}"


def shown(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def tuning_report(tuning: Tuning, result: Result) -> str:
    problem, found = tuning.problem, tuning.found
    several = len(result.candidates) > 1
    names = [f"tuned {number}" if several else "tuned" for number in range(1, len(result.candidates) + 1)]
    subtitle = (
        f"{', '.join(problem.objectives)}; {found.count(TrialState.COMPLETE)} trials and "
        f"{found.count(TrialState.PRUNED)} that were pruned, on the first two thirds of the trace; all other figures "
        "are from the last third"
    )
    parts = [section("Result", paragraph(verdict(result)))]
    parts += [_section(tuning, name, each) for name, each in zip(names, result.candidates, strict=True)]
    parts.append(section("Trials", _trials(tuning), note="On the first two thirds of the trace."))
    if important := tuning.importances():
        rows = [
            Bar(name, share, math.nan, math.nan, f"{share:.0%}")
            for name, share in sorted(important.items(), key=lambda item: -item[1])
        ]
        parts.append(section("Importance of parameters", figure(bars(rows, "share of the variation between trials"))))
    outcomes = [result.before, *(each.outcome for each in result.candidates)]
    parts += plots([_CURRENT, *names], outcomes, problem.targets)
    return page(f"Tuning of {problem.origin} on {problem.trace.path.name}", subtitle, parts)


def verdict(result: Result) -> str:
    if not result.candidates:
        return "Keep the current configuration: no trial was better."
    if not result.recommended:
        return "Keep the current configuration: held-out traffic does not show that a tuned configuration is better."
    if len(result.candidates) == 1:
        return f"Use the tuned configuration: {result.candidates[0].objectives[0].text} on held-out traffic."
    return f"{len(result.recommended)} of {len(result.candidates)} configurations are better on held-out traffic."


def _section(tuning: Tuning, name: str, candidate: Candidate) -> str:
    rows = [
        [
            change.figure.name,
            change.figure.text(change.before),
            change.figure.text(change.after),
            change.difference.verdict,
        ]
        for change in (*candidate.objectives, *candidate.others)
    ]
    before = tuning.space.current
    values = [[key, shown(before[key]), shown(value)] for key, value in candidate.values.items()]
    return section(
        f"The {name} configuration",
        *(paragraph(f"It does not satisfy {text}.") for text in candidate.broken),
        table(["held-out traffic", "before", "after", ""], rows),
        table(["value", "before", "after"], values),
        code(candidate.text),
    )


def _trials(tuning: Tuning) -> str:
    """Return the trials in order, or in the plane of two objectives."""
    figures = tuning.problem.figures
    complete = [each for each in tuning.found.trials if each.state is TrialState.COMPLETE]
    signs = [-1 if each.is_better_higher else 1 for each in figures]
    labels = [each.name for each in figures]
    if len(figures) > 1:
        places = [(signs[0] * each.values[0], signs[1] * each.values[1]) for each in complete]
        front = steps_down(pareto(places)) if signs == [1, 1] else []
        marks = [Series("", *zip(*places, strict=True))] if places else []
        return figure(points(marks, labels[0], labels[1], front))
    best: list[float] = []
    for trial in complete:
        best.append(min([trial.values[0], *best[-1:]]))
    numbers = [float(trial.number) for trial in complete]
    series = [
        Series("trial", numbers, [signs[0] * trial.values[0] for trial in complete]),
        Series("best so far", numbers, [signs[0] * value for value in best]),
    ]
    return figure(curves(series, "trial", labels[0]), above=legend([each.label for each in series]))
