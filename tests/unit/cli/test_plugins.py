# SPDX-License-Identifier: Apache-2.0
"""`epp plugins`: what there is, for people and for programs."""

import json
import re

import pytest
from typer.testing import CliRunner

from epp.cli.app import application
from epp.framework.registry import Registry


@pytest.fixture
def plugins():
    """Run the command without a terminal; give the exit code, what was printed, and what was complained of."""

    def plugins(*arguments):
        result = CliRunner().invoke(application(), ["plugins", *arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    return plugins


def entry_of(said: str, kind: str) -> str:
    """The line of a type, and those that are indented below it."""
    (entry,) = [entry for entry in re.split(r"\n(?=\S)", said) if f" {kind} " in f"{entry.splitlines()[0]} "]
    return " ".join(entry.split())


def test_all_types_are_listed_with_role_and_defaults(plugins):
    code, said, _ = plugins()
    assert code == 0
    for kind in Registry().types:
        entry_of(said, kind)
    picker = "Picker random-picker maxNumOfEndpoints=1, closeScoreEpsilon=null, topN=0"
    assert entry_of(said, "random-picker") == picker
    assert entry_of(said, "joint-aggregator").startswith("Aggregator joint-aggregator (Alpha) ")
    assert "(Deprecated)" in entry_of(said, "by-label")
    assert "attributeKey=required, algorithm=required, producer=null" in entry_of(said, "endpoint-attribute-scorer")


def test_list_and_texts_fit_into_80_columns_without_a_word_cut(monkeypatch):
    monkeypatch.setattr("epp.cli.input_output._PIPED_WIDTH", 80)
    everything = CliRunner().invoke(application(), ["plugins"]).stdout
    in_full = CliRunner().invoke(application(), ["plugins", "endpoint-rates-producer"]).stdout
    for said in (everything, in_full):
        assert max(map(len, said.splitlines())) <= 80
        assert "…" not in said
    assert "prefixMatchInfoProducerName: string; default" in in_full


def test_one_type_is_shown_in_full_with_nested_parameters(plugins):
    code, said, _ = plugins("topology-affinity-scorer")
    assert code == 0
    assert said.startswith("topology-affinity-scorer (Scorer; Beta)\nThe weight of the closest level ")
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert lines[lines.index("weights.host: float, between 0 and 1; default 1.0") + 1] == "Score on the peer's host."
    assert any(line.startswith("weights: object; default {") for line in lines)
    assert "queue-scorer" not in said


def test_texts_of_all_types_asked_for_are_shown_as_they_are_written(plugins):
    _, said, _ = plugins("tokenizer", "work-seconds-scorer")
    assert "requires the extra `tokenizers`" in said
    assert "work-seconds-scorer (Scorer" in said
    assert sum(line.startswith("- `") for line in said.splitlines()) >= 8  # items of a list begin lines


def test_unknown_type_is_refused_with_the_nearest_one_or_three(plugins):
    nearest = "did you mean 'queue-scorer'?; `epp plugins` lists all types"
    assert plugins("queue-scorrer") == (1, "", f"error: no plugin type 'queue-scorrer'; {nearest}\n")
    code, said, complaint = plugins("nope")
    assert (code, said) == (1, "")
    assert re.search(r"the nearest of \d+ are [\w-]+, [\w-]+, [\w-]+; `epp plugins` lists all types\n$", complaint)


def test_json_is_for_programs(plugins):
    code, said, _ = plugins("random-picker", "--output", "json")
    assert code == 0
    (entry,) = json.loads(said)
    assert (entry["type"], entry["roles"], entry["stability"]) == ("random-picker", ["Picker"], "Beta")
    parameter = [entry["parameters"][0][key] for key in ("name", "type", "default")]
    assert parameter == ["maxNumOfEndpoints", "int, at least 1, the default otherwise", "1"]
    assert [entry["type"] for entry in json.loads(plugins("--output", "json")[1])].count("queue-scorer") == 1


def test_markdown_has_a_heading_for_each_type_and_a_row_for_each_parameter(plugins):
    code, said, _ = plugins("topology-affinity-scorer", "by-label", "--output", "markdown")
    assert code == 0
    assert said.startswith("# Plugins\n")
    assert "\n## Filters\n\n### by-label\n\n*deprecated*\n" in said
    assert "\n| `label` | string | required | " in said
    assert "\n## Scorers\n\n### topology-affinity-scorer\n" in said
    assert "\n| `weights.host` | float, between 0 and 1 | `1.0` | Score on the peer's host. |\n" in said
