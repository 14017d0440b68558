# SPDX-License-Identifier: Apache-2.0
"""Installed packages whose plugins cannot be used: each concerns only what names it."""

import json
import sys

import pytest
from typer.testing import CliRunner

from epp.cli.app import application
from epp.framework.registry import Registry

GOOD = """
from epp.framework import Scorer

class Good(Scorer):
    '''Likes all.'''
    plugin_type = "good-scorer"

    def score(self, request, candidates):
        return [1.0] * len(candidates)

class Unfinished(Scorer):
    plugin_type = "unfinished-scorer"

class Nameless(Scorer):
    def score(self, request, candidates):
        return [1.0] * len(candidates)

def function():
    pass
"""
MODULES = {
    "third_party": GOOD,
    "third_party_absent": "import a_module_that_nobody_has",
    "third_party_broken": "SETTINGS = {}\n\n\nMODE = SETTINGS['mode']\n",
    "third_party_exits": "raise SystemExit('run me as a script')",
    "third_party_misspelt": "def (:",
}
POINTS = {
    "good-scorer": "third_party:Good",
    "unfinished-scorer": "third_party:Unfinished",
    "nameless-scorer": "third_party:Nameless",
    "function-scorer": "third_party:function",
    "other-name-scorer": "third_party:Good",
    "lost-scorer": "third_party:Lost",
    "absent-scorer": "third_party_absent:Absent",
    "broken-scorer": "third_party_broken:Broken",
    "exiting-scorer": "third_party_exits:Exiting",
    "misspelt-scorer": "third_party_misspelt:Misspelt",
    "queue-scorer": "third_party:Good",
    "twice-scorer": "third_party:Good",
}
REASONS = {
    "unfinished-scorer": "lacks score",
    "nameless-scorer": "has no plugin_type",
    "function-scorer": "is not a subclass of Plugin",
    "other-name-scorer": "whose type is 'good-scorer': make them equal",
    "lost-scorer": "AttributeError: module 'third_party' has no attribute 'Lost'",
    "absent-scorer": "No module named 'a_module_that_nobody_has' (third_party_absent.py:1)",
    "broken-scorer": "KeyError: 'mode' (third_party_broken.py:4)",
    "exiting-scorer": "SystemExit: run me as a script (third_party_exits.py:1)",
    "misspelt-scorer": "SyntaxError: invalid syntax (third_party_misspelt.py, line 1)",
    "queue-scorer": "belongs to inference-epp itself: rename the type of third-party",
    "twice-scorer": "registered twice, by fourth-party (third_party:Other) and third-party (third_party:Good)",
}


@pytest.fixture(autouse=True)
def packages(tmp_path, monkeypatch):
    """Install the two packages."""
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    for package, points in (("third-party", POINTS), ("fourth-party", {"twice-scorer": "third_party:Other"})):
        info = tmp_path / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = "\n".join(f"{name} = {value}" for name, value in points.items())
        (info / "entry_points.txt").write_text(f"[epp.plugins]\n{lines}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def epp(*arguments):
    return CliRunner().invoke(application(), arguments)


def test_all_others_are_listed_and_the_broken_ones_with_their_reasons():
    result = epp("plugins")
    assert result.exit_code == 0
    assert "Scorer good-scorer\n" in result.stdout
    assert "Scorer kv-cache-utilization-scorer\n" in result.stdout
    broken = {line.split()[1]: line for line in result.stderr.splitlines()}
    assert broken.keys() == REASONS.keys()
    for kind, reason in REASONS.items():
        assert reason in broken[kind], kind
        assert "-party)" in broken[kind]


def test_programs_get_them_too():
    entries = json.loads(epp("plugins", "--output=json").stdout)
    broken = {entry["type"]: entry["broken"] for entry in entries if "broken" in entry}
    assert broken.keys() == REASONS.keys()
    assert {"good-scorer", "queue-scorer"} <= {entry["type"] for entry in entries if "roles" in entry}


@pytest.mark.parametrize("command", ["plugins --output=markdown", "plugins --output=data"])
def test_generated_texts_have_all_others(command):
    result = epp(*command.split())
    assert result.exit_code == 0
    assert "broken-scorer" not in result.stdout
    assert "broken-scorer" in result.stderr


def test_broken_type_that_is_asked_for_is_an_error_with_its_reason():
    result = epp("plugins", "broken-scorer")
    assert result.exit_code == 1
    assert REASONS["broken-scorer"] in result.stderr


def naming(*types):
    plugins = "".join(f"\n- type: {kind}" for kind in types)
    return f"apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:{plugins}\n"


def test_configuration_that_names_none_of_them_is_not_concerned(check):
    code, said = check(a=naming("queue-scorer", "good-scorer"))
    assert code == 0, said
    assert Registry().find("queue-scorer").__module__ == "epp_scorers.load"


@pytest.mark.parametrize("kind", sorted(REASONS.keys() - {"queue-scorer"}))
def test_configuration_that_names_one_is_refused_with_its_reason(check, kind):
    code, said = check(a=naming("queue-scorer", kind))
    assert code == 1
    assert "1 error" in said
    assert REASONS[kind] in said
