# SPDX-License-Identifier: Apache-2.0
"""`epp config`: ready-made configurations that need no checkout."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from epp.cli.app import application
from epp.config.load import DIRECTORY

FILES = sorted(DIRECTORY.glob("*.yaml"))


SCHEMA = Path(__file__).parents[3] / "docs/reference/endpointpickerconfig.schema.json"


def run(*arguments: str):
    result = CliRunner().invoke(application(), ["config", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_list_names_every_file_with_its_first_sentence_and_cuts_nothing_on_a_narrow_terminal(monkeypatch):
    code, said, _ = run("list")
    assert code == 0
    assert [line.split()[0] for line in said.splitlines()] == [path.stem for path in FILES]
    assert "random                 No opinion: every endpoint is as likely as any other." in said
    monkeypatch.setenv("COLUMNS", "60")
    assert "heterogeneous-latency" in run("list")[1]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_show_prints_the_file(path):
    assert run("show", path.stem) == run("show", path.name) == (0, path.read_text(), "")


def test_unknown_name_is_refused_with_the_nearest_and_a_path_is_none():
    error = "error: no ready-made configuration 'prefix-heavi'; did you mean 'prefix-heavy'?\n"
    assert run("show", "prefix-heavi") == (1, "", error)
    code, said, complaint = run("show", "../../pyproject")
    assert (code, said) == (1, "")
    assert "no ready-made configuration" in complaint


def test_schema_is_the_one_in_the_package():
    code, said, _ = run("schema")
    assert code == 0
    assert json.loads(said) == json.loads(SCHEMA.read_text())
