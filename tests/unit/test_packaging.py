# SPDX-License-Identifier: Apache-2.0
"""The wheel: its top-level packages, and a module in it for every plugin type."""

import re
from configparser import ConfigParser
from email.parser import Parser
from pathlib import PurePath
from zipfile import ZipFile

import pytest

from tests.support.wheels import REPOSITORY, build_wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> ZipFile:
    path = build_wheel(tmp_path_factory.mktemp("built"))
    with ZipFile(path) as opened:
        yield opened


def plugin_modules(wheel: ZipFile) -> set[str]:
    """Return the paths in the wheel that the entry points lead to."""
    (name,) = (name for name in wheel.namelist() if name.endswith("/entry_points.txt"))
    points = ConfigParser(delimiters="=")
    points.read_string(wheel.read(name).decode())
    return {target.partition(":")[0].replace(".", "/") + ".py" for target in points["epp.plugins"].values()}


def test_wheel_installs_no_package_of_a_general_name(wheel):
    names = {name.partition("/")[0] for name in wheel.namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"epp", "epp_scorers"}


def test_wheel_holds_the_compiled_messages_and_the_type_marker_of_both_packages(wheel):
    assert {"epp/extproc/ext_proc.binpb", "epp/py.typed", "epp_scorers/py.typed"} <= set(wheel.namelist())


def test_every_plugin_type_has_a_module_in_the_wheel(wheel):
    assert plugin_modules(wheel) <= set(wheel.namelist())


def test_every_file_among_the_scorers_is_a_scorer(wheel):
    modules = {name for name in wheel.namelist() if name.startswith("epp_scorers/") and name.endswith(".py")}
    assert modules - plugin_modules(wheel) == {"epp_scorers/__init__.py"}


def test_wheel_holds_the_ready_made_configurations(wheel):
    inside = {path.name for name in wheel.namelist() if (path := PurePath(name)).match("epp/ready_made/*.yaml")}
    assert inside == {path.name for path in (REPOSITORY / "config").iterdir()}
    assert "adaptive.yaml" in inside


def test_description_on_a_package_index_has_no_link_that_leads_nowhere(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(wheel.read(name).decode())
    text = metadata.get_payload()
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert text.startswith("# inference-epp\n")
    assert "| look up a flag, metric, header, error or product | flags, metrics" in text
    assert [target for target in re.findall(r"\]\(([^)]+)\)", text) if not target.startswith("https://")] == []
    assert "![" not in text
