# SPDX-License-Identifier: Apache-2.0
"""A study: trials of different parameters on the first part of a trace, in several processes, stored in a file."""

import logging
import math
import multiprocessing
import signal
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic
from typing import Any

import optuna
import yaml
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.study import MaxTrialsCallback, Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from epp.config import LoadedConfig, load_text
from epp.framework import ConfigurationError
from epp.framework.registry import Registry
from epp.lab.replay.fleet import Fleet, ReplayOptions
from epp.lab.replay.jobs import TraceFile, replay
from epp.lab.replay.outcome import Outcome
from epp.lab.replay.simulation import Simulation
from epp.lab.replay.summary import Targets
from epp.lab.tuning.problem import Condition, Dimension, Figure, SearchSpace, Value, condition, figure

TRAINING_SHARE = 2 / 3
"""Share of the trace for trials; the rest is held out."""
_STEPS = 10
"""Number of times that a trial is compared with others, and may be pruned."""
_STARTUP_TRIALS = 5
_WARM_UP_STEPS = 2
_POLL_SECONDS = 0.2
_END_SECONDS = 5.0
_NAME = "epp-tune"
_DONE = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


@dataclass(frozen=True)
class Problem:
    """A configuration, the trace and fleet to tune it for, and the objectives. Can be pickled."""

    text: str
    origin: str
    fleet: Fleet
    trace: TraceFile
    seconds: float
    """Length of the trace, from its first request to its last."""
    options: ReplayOptions
    targets: Targets
    objectives: tuple[str, ...]
    """One objective, or two for a Pareto front."""
    conditions: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    @property
    def figures(self) -> Sequence[Figure]:
        return [figure(name) for name in self.objectives]

    @property
    def limits(self) -> Sequence[Condition]:
        return [condition(text) for text in self.conditions]

    @property
    def space(self) -> SearchSpace:
        """Parameters to tune; raises ConfigurationError."""
        registry = Registry(modules=self.options.plugin_modules)
        return SearchSpace(load_text(self.text, self.origin), registry, self.also)

    @property
    def training(self) -> ReplayOptions:
        return replace(self.options, duration=self.held_out_from, report_seconds=self.held_out_from / _STEPS)

    @property
    def held_out_from(self) -> float:
        """Time in a replay at which the held-out part of the trace begins."""
        return self.seconds * TRAINING_SHARE / self.options.rate_scale

    @property
    def fingerprint(self) -> str:
        """Digest of everything that comparable trials have in common."""
        parts = (self.text, self.fleet, self.trace, self.seconds, self.options, self.targets)
        rest = (self.objectives, self.conditions, self.also)
        return sha256(repr((parts, rest)).encode()).hexdigest()


def written(content: Mapping[str, Any]) -> str:
    return yaml.safe_dump(content, sort_keys=False, width=120)


def loaded(problem: Problem, space: SearchSpace, values: Mapping[str, Value]) -> LoadedConfig:
    return load_text(written(space.with_values(values)), problem.origin)


@dataclass(frozen=True)
class Found:
    trials: Sequence[FrozenTrial]
    best: Sequence[FrozenTrial]
    """Best trials that satisfy the conditions, best first; for two objectives, the Pareto front."""

    def count(self, state: TrialState) -> int:
        return sum(trial.state is state for trial in self.trials)


class Tuning:
    """A study in a file; several processes and later runs add trials to it."""

    def __init__(self, problem: Problem, path: Path, *, seed: int = 0) -> None:
        """Open or create the file; raises ConfigurationError if it is not a study, or one of another problem."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.problem = problem
        self.space = problem.space
        self._path, self._seed = path, seed
        try:
            self._study = _study(path, problem)
            known = self._study.user_attrs.get("fingerprint")
        except Exception as error:  # SQLite, SQLAlchemy and Optuna raise errors of their own
            reason = str(error).partition("\n")[0]
            raise ConfigurationError(f"--study {path} cannot be used: {reason}", remedy="name another file") from error
        if known is None:
            self._study.set_user_attr("fingerprint", problem.fingerprint)
        elif known != problem.fingerprint:
            raise ConfigurationError(
                f"--study {path} belongs to another trace, configuration, pool or objective",
                remedy="name another file, or remove this one",
            )
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self._study.tell(trial.number, state=TrialState.FAIL)  # its process was killed

    @property
    def found(self) -> Found:
        trials = self._study.get_trials(deepcopy=False)
        complete = [each for each in trials if each.state is TrialState.COMPLETE]
        best = [each for each in complete if all(excess <= 0 for excess in each.constraints.values())]
        if len(self.problem.objectives) > 1:
            best = [one for one in best if not any(_dominates(other, one) for other in best)]
        return Found(trials, sorted(best, key=lambda trial: (trial.values[0], trial.number)))

    def importances(self) -> Mapping[str, float]:
        """Return the importance of each parameter for the first objective, 0..1; empty with too few trials."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warns that low values are assumed to be better; they are
            try:
                evaluator = PedAnovaImportanceEvaluator()
                return get_param_importances(self._study, evaluator=evaluator, target=lambda trial: trial.values[0])
            except (RuntimeError, ValueError):
                return {}

    def measure_current(self) -> None:
        """Add the current configuration as the first trial; raises ConfigurationError if it cannot be replayed."""
        if self._study.get_trials(deepcopy=False):
            return
        problem = self.problem
        outcome = replay(load_text(problem.text, problem.origin), problem.fleet, problem.trace.open(), problem.training)
        losses = [each.loss(outcome, problem.targets) for each in problem.figures]
        for each, loss in zip(problem.figures, losses, strict=True):
            if not math.isfinite(loss):
                remedy = "give targets with --slo" if each.name == "goodput" else "choose another --objective"
                raise ConfigurationError(f"{each.name} is not known for this trace and pool", remedy=remedy)
        trial = create_trial(
            values=losses,
            params=self.space.current,
            distributions={each.name: _distribution(each) for each in self.space.dimensions},
            constraints=_excesses(problem, outcome),
        )
        self._study.add_trial(trial)

    def run(self, *, trials: int, seconds: float, jobs: int, tick: Callable[[Found], None]) -> None:
        """Run trials until there are `trials` in total, or the time is up; `tick` is called regularly.

        All processes have ended when this returns or raises.
        """
        spawn = multiprocessing.get_context("spawn")
        ends = monotonic() + seconds
        done = len(self._study.get_trials(deepcopy=False))
        workers: list[BaseProcess] = [
            spawn.Process(
                target=_work, args=(self.problem, self._path, self._seed + done + number, trials, seconds), daemon=True
            )
            for number in range(jobs)
        ]
        try:
            for worker in workers:
                worker.start()
            while any(worker.is_alive() for worker in workers) and monotonic() < ends:
                workers[0].join(_POLL_SECONDS)
                tick(self.found)
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.join(_END_SECONDS)
                worker.kill()
        failed = [worker.exitcode for worker in workers if worker.exitcode not in {0, -signal.SIGTERM, -signal.SIGKILL}]
        if failed:
            raise ConfigurationError(f"a process of the study ended with code {failed[0]}; its error is above")
        tick(self.found)


def _work(problem: Problem, path: Path, seed: int, trials: int, seconds: float) -> None:
    """Run trials in a child process; only the parent handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.WARNING)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space, figures = problem.space, problem.figures
    study = _study(path, problem, seed)
    distributions = {each.name: _distribution(each) for each in space.dimensions}

    def losses(trial: Trial) -> Sequence[float]:
        values = {name: _suggest(trial, name, one) for name, one in distributions.items()}

        def report(progress: Simulation) -> bool:
            if len(figures) > 1:
                return True
            step = round(progress.seconds / problem.training.report_seconds)
            loss = figures[0].loss(progress.outcome(), problem.targets)
            if math.isfinite(loss):
                trial.report(loss, step)
            return not trial.should_prune()

        config = loaded(problem, space, values)
        outcome = replay(config, problem.fleet, problem.trace.open(), problem.training, report)
        if outcome.stopped:
            raise optuna.TrialPruned
        for text, excess in _excesses(problem, outcome).items():
            trial.set_constraint(text, excess)
        return [each.loss(outcome, problem.targets) for each in figures]

    enough = MaxTrialsCallback(trials, states=_DONE)
    study.optimize(losses, timeout=seconds, callbacks=[enough], catch=(ConfigurationError,))


def _study(path: Path, problem: Problem, seed: int = 0) -> Study:
    return optuna.create_study(
        storage=f"sqlite:///{path}",
        study_name=_NAME,
        load_if_exists=True,
        directions=["minimize"] * len(problem.objectives),
        sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=_STARTUP_TRIALS, multivariate=True),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=_STARTUP_TRIALS, n_warmup_steps=_WARM_UP_STEPS),
    )


def _excesses(problem: Problem, outcome: Outcome) -> dict[str, float]:
    return {each.text: min(each.excess(outcome, problem.targets), 1e9) for each in problem.limits}


def _distribution(dimension: Dimension) -> BaseDistribution:
    if dimension.range is None:
        return CategoricalDistribution(dimension.choices)
    if dimension.is_int:
        return IntDistribution(int(dimension.range.low), int(dimension.range.high), log=dimension.range.log)
    return FloatDistribution(dimension.range.low, dimension.range.high, log=dimension.range.log)


def _suggest(trial: Trial, name: str, distribution: BaseDistribution) -> Value:
    match distribution:
        case IntDistribution(low=low, high=high, log=log):
            return trial.suggest_int(name, low, high, log=log)
        case FloatDistribution(low=low, high=high, log=log):
            return trial.suggest_float(name, low, high, log=log)
        case CategoricalDistribution(choices=choices):
            return str(trial.suggest_categorical(name, choices))
    raise TypeError(distribution)


def _dominates(one: FrozenTrial, other: FrozenTrial) -> bool:
    pairs = list(zip(one.values, other.values, strict=True))
    return all(a <= b for a, b in pairs) and (any(a < b for a, b in pairs) or one.number < other.number)
