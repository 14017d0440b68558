# SPDX-License-Identifier: Apache-2.0
"""The report of a study: the recommendation, its trials, what mattered, and the replays before and after."""

import math

from optuna.trial import TrialState

from epp.lab.report.page import code, figure, page, paragraph, section, table
from epp.lab.report.plots import Bar, Series, bars, curves, legend, pareto, points, steps_down
from epp.lab.report.replays import plots
from epp.lab.tuning.recommendation import Candidate, Result, shown
from epp.lab.tuning.study import Tuning

_PRESENT = "as it is"


def tuning_report(tuning: Tuning, result: Result) -> str:
    """Return the page."""
    problem, found = tuning.problem, tuning.found
    several = len(result.candidates) > 1
    names = [f"tuned {number}" if several else "tuned" for number in range(1, len(result.candidates) + 1)]
    subtitle = (
        f"{', '.join(problem.objectives)}; {found.count(TrialState.COMPLETE)} trials and "
        f"{found.count(TrialState.PRUNED)} that were pruned, on the first two thirds of the trace; all other figures "
        "are from the last third"
    )
    parts = [section("Result", paragraph(verdict(result)))]
    parts += [_candidate(tuning, name, each) for name, each in zip(names, result.candidates, strict=True)]
    parts.append(section("Trials", _trials(tuning), note="Each on the first two thirds of the trace."))
    if important := tuning.importances():
        rows = [
            Bar(name, share, math.nan, math.nan, f"{share:.0%}")
            for name, share in sorted(important.items(), key=lambda item: -item[1])
        ]
        parts.append(section("Importance of parameters", figure(bars(rows, "share of the variation between trials"))))
    outcomes = [result.before, *(each.outcome for each in result.candidates)]
    parts += plots([_PRESENT, *names], outcomes, problem.targets)
    return page(f"Tuning of {problem.origin} on {problem.trace.path.name}", subtitle, parts)


def verdict(result: Result) -> str:
    """Return the recommendation in a sentence."""
    if not result.candidates:
        return "Keep what you have: no trial was better."
    if not result.recommended:
        return "Keep what you have: held-out traffic does not show that a tuned configuration is better."
    if len(result.candidates) == 1:
        return f"Use the tuned configuration: {result.candidates[0].objectives[0].text} on held-out traffic."
    return f"{len(result.recommended)} of {len(result.candidates)} configurations are better on held-out traffic."


def _candidate(tuning: Tuning, name: str, candidate: Candidate) -> str:
    rows = [
        [change.figure.name, change.figure.text(change.before), change.figure.text(change.after), change.verdict]
        for change in (*candidate.objectives, *candidate.others)
    ]
    before = {each.name: each.current for each in tuning.space.dimensions}
    values = [[key, shown(before[key]), shown(value)] for key, value in candidate.values.items()]
    return section(
        f"The {name} configuration",
        *(paragraph(f"It does not keep {text}.") for text in candidate.broken),
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
