# SPDX-License-Identifier: Apache-2.0
"""What docs/security.md names exists: flags and their values, metrics, parameters of plugins, links."""

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from epp.cli.app import application
from epp.extproc.exchange import Fault
from tests.support.documents import blocks, commands

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "security.md").read_text()
COMMANDS = typer.main.get_command(application()).commands
FLAGS = {flag for command in COMMANDS.values() for each in command.params for flag in each.opts}


@pytest.mark.parametrize("flag", sorted(set(re.findall(r"`[^`]*?(--[a-z][a-z-]+)", PAGE))))
def test_flag_exists(flag):
    assert flag in FLAGS


@pytest.mark.parametrize("metric", sorted(set(re.findall(r"llm_d_epp_\w+", PAGE))))
def test_metric_exists(metric):
    assert f"`{metric}`" in (REPOSITORY / "docs" / "metrics.md").read_text()


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\((?!https?:)([^)]+)\)", PAGE))))
def test_link_leads_somewhere(target):
    path, _, heading = target.partition("#")
    text = (REPOSITORY / "docs" / (path or "security.md")).read_text()
    headings = [line.lstrip("#").strip().lower().replace(" ", "-") for line in text.splitlines() if line[:1] == "#"]
    assert not heading or heading in headings


@pytest.mark.parametrize("name", ["apiKeys", "highestPriority", "removeApiKey", "insecureSkipVerify", "maxBytes"])
def test_parameter_is_one_of_the_references(name):
    references = [REPOSITORY / "docs/reference/PLUGINS.md", *(REPOSITORY / "docs").glob("*.md")]
    assert any(f"`{name}`" in path.read_text() for path in references if path.name != "security.md")


def test_every_kind_of_protocol_error_has_its_row():
    assert re.findall(r"^\| `([a-z-]+)` \| `(?:INV|RES|INT)", PAGE, re.MULTILINE) == [fault.value for fault in Fault]


def test_commands_are_read_as_they_are_written():
    found = [line for block in blocks(REPOSITORY / "docs/security.md") for line in commands(block) if "epp " in line]
    assert len(found) >= 3
    for line in found:
        _, name, *arguments = shlex.split(line.replace("\\\n", " ").removesuffix("&"))
        COMMANDS[name].make_context(name, arguments)


def test_page_is_reached_from_the_readme_and_the_policy():
    assert "(docs/security.md)" in (REPOSITORY / "README.md").read_text()
    assert "(docs/security.md)" in (REPOSITORY / "SECURITY.md").read_text()
