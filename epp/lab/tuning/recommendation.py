# SPDX-License-Identifier: Apache-2.0
"""The recommendation: the best trials, tried on the part of the trace and on random choices that no trial saw."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from epp.config import LoadedConfig, load_text
from epp.framework.messages import printable
from epp.lab.replay.comparison import Difference, difference
from epp.lab.replay.jobs import JobProgress, run_jobs
from epp.lab.replay.outcome import Outcome, merge
from epp.lab.replay.settings import ReplayOptions
from epp.lab.tuning.objective import SIDE_EFFECTS, Measure
from epp.lab.tuning.space import SearchSpace, Value
from epp.lab.tuning.study import Problem, Tuning, loaded, written

_SEEDS = 3
"""Repetitions with other random choices."""
_FINALISTS = 3
"""Best trials that are repeated before one of them is chosen."""
_MOST_ON_FRONT = 6


@dataclass(frozen=True)
class Change:
    """A figure before and after, on held-out traffic."""

    measure: Measure
    before: float
    after: float
    difference: Difference
    """Of the loss: below 0 is better."""

    @property
    def verdict(self) -> str:
        """`better`, `worse`, or `no difference shown`."""
        if self.difference.high < 0:
            return "better"
        return "worse" if self.difference.low > 0 else "no difference shown"


@dataclass(frozen=True)
class Candidate:
    """A configuration that was tuned."""

    values: Mapping[str, Value]
    """Values that differ from the present ones."""
    text: str
    """The configuration."""
    objectives: Sequence[Change]
    others: Sequence[Change]
    """Changes of figures that were not tuned."""
    outcome: Outcome
    """On held-out traffic."""
    broken: Sequence[str]
    """Conditions that it does not keep on held-out traffic."""

    @property
    def is_better(self) -> bool:
        """Whether held-out traffic shows that it is better, and that it keeps the conditions."""
        return not self.broken and any(change.verdict == "better" for change in self.objectives)


@dataclass(frozen=True)
class Result:
    """The outcome of a study."""

    before: Outcome
    """The configuration as it is, on held-out traffic."""
    candidates: Sequence[Candidate]
    """One, or those of the Pareto front; none if no trial was better in training."""

    @property
    def recommended(self) -> Sequence[Candidate]:
        """Candidates that are better beyond doubt."""
        return [each for each in self.candidates if each.is_better]


def recommend(tuning: Tuning, report: Callable[[JobProgress], None], jobs: int) -> Result:
    """Repeat the best trials with other random choices, and try the best of these on held-out traffic."""
    problem, space = tuning.problem, tuning.space
    current = {each.name: each.current for each in space.dimensions}
    found = [_rounded(space, trial.params) for trial in tuning.found.best if trial.params != current]
    if len(problem.objectives) > 1:
        chosen = found[:_MOST_ON_FRONT]
    else:
        chosen = _best(problem, space, found[:_FINALISTS], report, jobs)
    present = load_text(problem.text, problem.origin)
    configs = [present, *(loaded(problem, space, values) for values in chosen)]
    before, *after = _repeated(problem, configs, replace(problem.options, seed=_FINALISTS + 1), report, jobs)
    before, *after = (each.take(each.columns.at >= problem.held_out_from) for each in (before, *after))
    return Result(before, [_candidate(problem, space, *each, before) for each in zip(chosen, after, strict=True)])


def _rounded(space: SearchSpace, values: Mapping[str, Value]) -> Mapping[str, Value]:
    """Return values with few digits, which a reader of the configuration can compare."""
    return {
        each.name: float(f"{value:.3g}") if isinstance(value := values[each.name], float) else value
        for each in space.dimensions
    }


def _best(
    problem: Problem,
    space: SearchSpace,
    finalists: Sequence[Mapping[str, Value]],
    report: Callable[[JobProgress], None],
    jobs: int,
) -> Sequence[Mapping[str, Value]]:
    """Return the values that are best on training traffic in several repetitions."""
    if len(finalists) <= 1:
        return finalists
    configs = [loaded(problem, space, values) for values in finalists]
    outcomes = _repeated(problem, configs, replace(problem.training, seed=problem.options.seed + 1), report, jobs)
    losses = [problem.measures[0].loss(outcome, problem.targets) for outcome in outcomes]
    return [finalists[int(np.nanargmin(losses))]]


def _repeated(
    problem: Problem,
    configs: Sequence[LoadedConfig],
    options: ReplayOptions,
    report: Callable[[JobProgress], None],
    jobs: int,
) -> list[Outcome]:
    """Return the outcome of each configuration with several seeds."""
    seeds = [replace(options, seed=options.seed + number) for number in range(_SEEDS)]
    outcomes = run_jobs([problem.job(config, each) for config in configs for each in seeds], report, workers=jobs)
    return [merge(outcomes[start : start + _SEEDS]) for start in range(0, len(outcomes), _SEEDS)]


def _candidate(
    problem: Problem, space: SearchSpace, values: Mapping[str, Value], after: Outcome, before: Outcome
) -> Candidate:
    def change(each: Measure) -> Change:
        figures = (each.of(outcome, problem.targets) for outcome in (before, after))
        return Change(each, *figures, difference(before, after, lambda outcome: each.loss(outcome, problem.targets)))

    differing = {each.name: values[each.name] for each in space.dimensions if values[each.name] != each.current}
    candidate = Candidate(
        differing,
        "",
        [change(each) for each in problem.measures],
        [change(each) for each in SIDE_EFFECTS if each.name not in problem.objectives],
        after,
        [each.text for each in problem.limits if each.excess(after, problem.targets) > 0],
    )
    header = "".join(f"# {line}\n" for line in described(problem, candidate, space))
    return replace(candidate, text=header + written(space.with_values(values)))


def described(problem: Problem, candidate: Candidate, space: SearchSpace) -> Iterator[str]:
    """Yield the lines of the comment in a tuned configuration."""
    yield f"Tuned from {printable(problem.origin)} by `epp tune` on {printable(problem.trace.name)}"
    yield f"for {' and '.join(problem.objectives)}{''.join(f', subject to {text}' for text in problem.conditions)}."
    yield "On the last third of the trace, which no trial saw, with other random choices (95 % intervals):"
    for change in candidate.objectives:
        yield f"  {line_of(change)}"
    yield "Other figures there:"
    for change in candidate.others:
        if not math.isnan(change.before):
            yield f"  {line_of(change)}"
    yield "Values that were changed:"
    before = {each.name: each.current for each in space.dimensions}
    for name, value in candidate.values.items():
        yield f"  {name}: {shown(before[name])} -> {shown(value)}"


def line_of(change: Change) -> str:
    """Return a change in words."""
    text, found = change.measure.text, change.difference
    sign = -1 if change.measure.is_better_higher else 1
    low, high = sorted((sign * found.low, sign * found.high))
    interval = "" if math.isnan(low) else f" ({_signed(change.measure, low)} to {_signed(change.measure, high)})"
    return f"{change.measure.name}: {text(change.before)} -> {text(change.after)}{interval}, {change.verdict}"


def _signed(figure: Measure, value: float) -> str:
    return ("+" if value >= 0 else "-") + figure.text(abs(value))


def shown(value: Value) -> str:
    """Return a value with few digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
