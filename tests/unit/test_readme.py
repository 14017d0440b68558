# SPDX-License-Identifier: Apache-2.0
"""What README.md says is true: its code runs, its targets and links exist. `test_documents` runs its commands."""

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from epp.config import Builder, assemble, load_text
from epp.framework import ManualClock, Request, RequestBody
from epp.framework.registry import Registry
from epp.framework.testing import candidates
from tests.support.documents import blocks

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text()


def texts(language: str) -> list[str]:
    return [block.text for block in blocks(REPOSITORY / "README.md") if block.language == language]


@pytest.fixture
def spot(tmp_path, monkeypatch) -> ModuleType:
    """The module that README's one Python block is."""
    (source,) = texts("python")
    path = tmp_path / "spot.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("spot", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "spot", module)
    spec.loader.exec_module(module)
    return module


def test_scorer_of_the_readme_scores(spot):
    scorer = spot.SpotScorer(spot.SpotParameters(penalty=0.25))
    pool = candidates(labels=[{"spot": "true"}, {"spot": "false"}, {}])
    assert scorer.score(Request("r"), pool).tolist() == [0.75, 1.0, 1.0]
    assert spot.SpotScorer().score(Request("r"), pool).tolist() == [0.5, 1.0, 1.0]
    assert scorer.score(Request("r"), pool.keep(np.array([False, True, True]))).tolist() == [1.0, 1.0]


def test_scorer_of_the_readme_has_its_vote_in_a_pipeline(spot):
    registry = Registry()
    registry.register(spot.SpotScorer)
    config = load_text(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
        "plugins: [{type: spot-scorer, parameters: {penalty: 0.9}}]"
    )
    scheduler = assemble(config, Builder(registry, ManualClock())).pipeline.scheduler
    pool = candidates(labels=[{"spot": "true"}, {}, {"spot": "true"}])
    result = scheduler.schedule(Request("r", RequestBody(model="m")), pool)
    assert [endpoint.name for endpoint in result.targets] == ["e1"]
    assert result.primary.totals.tolist() == [pytest.approx(0.1), 1.0, pytest.approx(0.1)]


def test_entry_point_of_the_readme_names_its_scorer(spot):
    (text,) = texts("toml")
    ((type_name, target),) = tomllib.loads(text)["project"]["entry-points"]["epp.plugins"].items()
    assert type_name == spot.SpotScorer.plugin_type
    assert target.rpartition(":")[2] == spot.SpotScorer.__name__


def test_make_targets_exist():
    named = {word for text in texts("console") for word in re.findall(r"^\$ make (\w+)", text, re.MULTILINE)}
    rules = re.findall(r"^([\w.-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert {"run", "test"} <= named <= set(rules)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\((?!https?:)([^)#]+)", README))))
def test_link_leads_somewhere(target):
    assert (REPOSITORY / target).exists()
