# SPDX-License-Identifier: Apache-2.0
"""Studies: the trials, the file that keeps them, and the recommendation."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from epp.config import load_text
from epp.framework import ConfigurationError
from epp.lab.replay.fleet import ReplayOptions
from epp.lab.replay.jobs import TraceFile
from epp.lab.replay.summary import Targets
from epp.lab.traces.formats import own_lines
from epp.lab.tuning.problem import condition, figure
from epp.lab.tuning.recommendation import recommend, tuning_report, verdict
from epp.lab.tuning.study import Problem, Tuning
from tests.unit.replay.conftest import BLOCK, fleet, requests

TO_THE_SLOW = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: queue-scorer}
- {type: load-aware-scorer, parameters: {threshold: 500}}
- {type: weighted-random-picker, parameters: {temperature: 20}}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 0.1}
  - {pluginRef: load-aware-scorer, weight: 0.1}
  - {pluginRef: weighted-random-picker}
"""
"""A random choice with hardly any regard for load."""


@pytest.fixture
def problem(tmp_path: Path) -> Callable[..., Problem]:
    """Return the problem of a short trace on an H100 and a T4."""

    def make(seconds: float = 3.0, **others) -> Problem:
        path = tmp_path / "trace.jsonl"
        path.write_bytes(b"".join(own_lines(requests(5.0, seconds), BLOCK)))
        given = {"objectives": ("p90-e2e",), "targets": Targets(ttft=0.5, tpot=0.03), "options": ReplayOptions()}
        pool = fleet("h100", "t4")
        given |= {"text": TO_THE_SLOW, "origin": "config.yaml", "fleet": pool, "trace": TraceFile(path)}
        return Problem(seconds=seconds, **{**given, **others})

    return make


def run(problem: Problem, path: Path, trials: int) -> Tuning:
    tuning = Tuning(problem, path)
    tuning.measure_current()
    tuning.run(trials=trials, seconds=300, jobs=1, tick=lambda _: None)
    return tuning


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_study_finds_better_values_and_writes_them_with_the_gain(problem, tmp_path):
    tuning = run(problem(12.0), tmp_path / "study.db", trials=12)
    first, best = tuning.found.trials[0], tuning.found.best[0]
    assert first.params["queue-scorer.weight"] == 0.1
    assert best.values[0] < first.values[0]
    result = recommend(tuning, jobs=1)
    (candidate,) = result.candidates
    assert candidate.objectives[0].figure.name == "p90-e2e"
    assert yaml.safe_load(candidate.text)["kind"] == "EndpointPickerConfig"
    assert "# On the last third of the trace" in candidate.text
    assert load_text(candidate.text).problems == ()
    page = tuning_report(tuning, result)
    assert verdict(result).split(":")[0] in page
    assert "Importance of parameters" in page


def test_a_later_call_continues_a_study_of_the_same_problem_alone(problem, tmp_path):
    run(problem(), tmp_path / "study.db", trials=2)
    tuning = run(problem(), tmp_path / "study.db", trials=3)
    assert len(tuning.found.trials) == 3
    with pytest.raises(ConfigurationError, match="belongs to another trace, configuration, pool or objective"):
        Tuning(problem(objectives=("p90-ttft",)), tmp_path / "study.db")


def test_a_file_that_is_no_study_is_refused(problem, tmp_path):
    path = tmp_path / "study.db"
    path.write_text("not a database\n" * 100)
    with pytest.raises(ConfigurationError, match="cannot be used"):
        Tuning(problem(), path)


def test_two_objectives_give_a_front(problem, tmp_path):
    tuning = run(problem(objectives=("p90-ttft", "dollars")), tmp_path / "study.db", trials=4)
    front = [tuple(trial.values) for trial in tuning.found.best]
    assert front == sorted(front)
    assert [cost for _, cost in front] == sorted((cost for _, cost in front), reverse=True)


@pytest.mark.slow
def test_trials_that_break_a_condition_are_not_the_best(problem, tmp_path):
    tuning = run(problem(conditions=("p50 ttft <= 1us",)), tmp_path / "study.db", trials=3)
    assert tuning.found.best == []
    result = recommend(tuning, jobs=1)
    assert verdict(result) == "Keep the current configuration: no trial was better."


def test_an_objective_that_is_not_known_is_refused_at_once(problem, tmp_path):
    tuning = Tuning(problem(objectives=("goodput",), targets=Targets()), tmp_path / "study.db")
    with pytest.raises(ConfigurationError, match=r"goodput is not known.*give targets with --slo"):
        tuning.measure_current()


@pytest.mark.parametrize(
    ("text", "limit", "is_least"),
    [
        ("p99 ttft <= 1s", 1.0, False),
        ("p90-tpot<=50ms", 0.05, False),
        ("goodput >= 95%", 0.95, True),
        ("dollars <= $2.5", 2.5, False),
        ("refused <= 0.01", 0.01, False),
    ],
)
def test_a_condition_is_a_figure_with_a_limit(text, limit, is_least):
    assert (condition(text).limit, condition(text).is_least) == (pytest.approx(limit), is_least)


@pytest.mark.parametrize(
    ("text", "error"),
    [("p99 ttft", "write a figure"), ("p98 ttft <= 1s", "no figure 'p98 ttft'"), ("p99 ttft <= 1", "is not valid"),
     ("goodput >= high", "is not valid")],
)  # fmt: skip
def test_a_condition_that_cannot_be_read_is_refused(text, error):
    with pytest.raises(ConfigurationError, match=error):
        condition(text)


def test_figures_are_shown_with_their_unit():
    assert figure("p90 ttft").text(0.0123) == "12.3 ms"
    assert figure("goodput").text(0.951) == "95.1%"
    assert figure("dollars").text(1.5) == "$1.5"
    assert figure("p90-ttft").text(None) == "unknown"
