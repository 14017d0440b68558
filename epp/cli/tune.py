# SPDX-License-Identifier: Apache-2.0
"""`epp tune`: search for parameters and weights that serve a trace better, and write the configuration."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from epp.cli.commands import Tune
from epp.cli.input_output import (
    log_of_errors_only,
    new_console,
    plain_table,
    print_json,
    read_named_config,
    split_list,
    write_text,
)
from epp.cli.options import Output
from epp.cli.running import exit_on
from epp.framework import ConfigurationError
from epp.lab.replay.fleet import ReplayOptions, load_fleet
from epp.lab.replay.jobs import TraceFile, available_cpus
from epp.lab.replay.summary import parse_targets
from epp.lab.traces.trace import TraceError
from epp.lab.tuning.problem import condition, figure

if TYPE_CHECKING:
    from epp.lab.tuning.recommendation import Change, Result
    from epp.lab.tuning.study import Found, Problem, Tuning

_MOST_OBJECTIVES = 2
_LEAST_REQUESTS = 50
_INTERRUPTED = 130


def tune(flags: Tune) -> None:
    with exit_on(ConfigurationError, TraceError), log_of_errors_only():
        try:
            from epp.lab.tuning.recommendation import (  # noqa: PLC0415  optuna is an extra
                recommend,
                tuning_report,
                verdict,
            )
            from epp.lab.tuning.study import Tuning  # noqa: PLC0415  the same
        except ImportError as error:
            remedy = "pip install 'inference-epp[tuning]'"
            raise ConfigurationError(f"`epp tune` needs the package {error.name}", remedy=remedy) from error
        problem = _problem(flags)
        study = flags.study or flags.result.with_suffix(".study.db")
        jobs = flags.jobs or available_cpus()
        try:
            tuning = Tuning(problem, study, seed=flags.seed)
            with _progress(flags, problem) as (tick, say):
                say("measuring the current configuration")
                tuning.measure_current()
                say("trials")
                tuning.run(trials=flags.trials, seconds=flags.budget, jobs=jobs, tick=tick)
                say("trying the best on held-out traffic")
                result = recommend(tuning, jobs)
        except KeyboardInterrupt:
            typer.echo(f"stopped; the same command continues the study in {study}", err=True)
            raise typer.Exit(_INTERRUPTED) from None
        paths = _write(flags.result, result)
        if flags.report is not None:
            write_text(flags.report, tuning_report(tuning, result))
    if flags.output is Output.JSON:
        print_json(_as_json(result, tuning, paths))
    else:
        _show(new_console(), result, tuning, verdict(result), paths)


def _problem(flags: Tune) -> "Problem":
    from epp.lab.tuning.study import Problem  # noqa: PLC0415  optuna is an extra

    objectives = tuple(dict.fromkeys(figure(name).name for name in flags.objective))
    if len(objectives) > _MOST_OBJECTIVES:
        raise ConfigurationError(f"--objective: {len(objectives)} figures; choose one, or two for a Pareto front")
    conditions = tuple(condition(text).text for text in flags.subject_to or ())
    config = read_named_config(flags.config)
    last, requests = 0.0, 0
    trace = TraceFile(flags.trace, flags.replayed.trace_format or "", flags.replayed.trace_rate)
    for requests, request in enumerate(trace.open(), 1):  # noqa: B007  only the number is used
        last = request.at
    if requests < _LEAST_REQUESTS or not last:
        problem = f"{flags.trace} has {requests} requests in {last:g} s: too few to tune on"
        raise ConfigurationError(problem, remedy=f"record at least {_LEAST_REQUESTS}, better thousands")
    options = ReplayOptions(
        seed=flags.seed,
        rate_scale=flags.replayed.rate_scale,
        pickers=flags.replayed.pickers,
        experimental=flags.allow_experimental_plugins,
        plugin_modules=split_list(flags.allow_plugin_modules),
    )
    return Problem(
        text=config.text,
        origin=flags.config,
        fleet=load_fleet(flags.endpoints, flags.replayed.profile or (), prices=flags.replayed.prices),
        trace=trace,
        seconds=last,
        options=options,
        targets=parse_targets(flags.replayed.slo),
        objectives=objectives,
        conditions=conditions,
        also=tuple(flags.also or ()),
    )


@contextmanager
def _progress(flags: Tune, problem: "Problem") -> Iterator[tuple[Callable[["Found"], None], Callable[[str], None]]]:
    """Show the number of trials and the best result so far, on a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None, lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f} of {task.total:.0f}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=flags.trials)
        tuned = problem.figures[0]

        def tick(found: "Found") -> None:
            done = sum(trial.state.is_finished() for trial in found.trials)
            best = f"; best {tuned.name} {tuned.text(tuned.of_loss(found.best[0].values[0]))}" if found.best else ""
            bar.update(task, completed=done, description=f"trials{best}")

        yield tick, lambda text: bar.update(task, description=text)


def _write(path: Path, result: "Result") -> Sequence[Path]:
    """Write the recommended configurations, with numbers in their names if there are several."""
    found = result.recommended
    paths = [path.with_stem(f"{path.stem}-{number}") for number in range(1, len(found) + 1)]
    if len(result.candidates) == 1:
        paths = [path] * len(found)
    for each, candidate in zip(paths, found, strict=True):
        write_text(each, candidate.text)
    return paths


def _show(console: Console, result: "Result", tuning: "Tuning", verdict: str, paths: Sequence[Path]) -> None:
    states = [trial.state.name for trial in tuning.found.trials]
    console.print(f"{len(states)} trials, {states.count('PRUNED')} pruned, {states.count('FAIL')} failed")
    for candidate in result.candidates:
        table = plain_table("on held-out traffic", ">before", ">after", "")
        for change in (*candidate.objectives, *candidate.others):
            text = change.figure.text
            table.add_row(change.figure.name, text(change.before), text(change.after), change.difference.verdict)
        console.print()
        console.print(table)
        for condition_ in candidate.broken:
            console.print(f"It does not satisfy {condition_}.", markup=False)
    console.print()
    console.print(verdict, markup=False, style="bold")
    for path in paths:
        console.print(f"written: {path}", markup=False)


def _as_json(result: "Result", tuning: "Tuning", paths: Sequence[Path]) -> object:
    def change(each: "Change") -> object:
        return {
            "figure": each.figure.name,
            "before": each.before,
            "after": each.after,
            "low": each.difference.low,
            "high": each.difference.high,
            "verdict": each.difference.verdict,
        }

    return {
        "trials": len(tuning.found.trials),
        "importance": dict(tuning.importances()),
        "written": [str(path) for path in paths],
        "candidates": [
            {
                "recommended": each.is_better,
                "values": dict(each.values),
                "objectives": [change(one) for one in each.objectives],
                "others": [change(one) for one in each.others],
                "brokenConditions": list(each.broken),
            }
            for each in result.candidates
        ],
    }
