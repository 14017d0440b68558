"""The wheel: its top-level packages, and a module in it for every plugin type."""

import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from zipfile import ZipFile

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> ZipFile:
    """A wheel built from a copy: the build writes into the source tree."""
    source = tmp_path_factory.mktemp("source")
    for name in ("epp", "scorers", "proto"):
        shutil.copytree(REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "ext_proc*pb*"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    subprocess.run(build, cwd=source, check=True, capture_output=True, timeout=60)
    (path,) = (source / "dist").glob("*.whl")
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
