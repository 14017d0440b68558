# SPDX-License-Identifier: Apache-2.0
"""Programs appear whole or not at all, once, and it is said how to get them."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kube import build_assets
from tests.kube.build_assets import ASSETS

GO = """\
#!{python}
import os, sys, time
output = sys.argv[sys.argv.index("-o") + 1]
with open("{calls}", "a") as calls:
    calls.write(os.path.basename(output) + "\\n")
with open(output, "w") as file:
    file.write("half")
    file.flush()
    while os.path.exists("{hold}"):
        time.sleep(0.01)
    file.write(" whole")
os.chmod(output, 0o755)
sys.exit({code})
"""


class Builder:
    """The script with a compiler of the test's own, which writes half a program, waits, and writes the rest."""

    def __init__(self, directory: Path) -> None:
        self.place = directory / "assets"
        self.calls = directory / "calls"
        self.hold = directory / "hold"
        self.said = directory / "said"
        self._go = directory / "bin" / "go"
        self._go.parent.mkdir()
        self.write_go()

    def write_go(self, code: int = 0) -> None:
        self._go.write_text(GO.format(python=sys.executable, calls=self.calls, hold=self.hold, code=code))
        self._go.chmod(0o755)

    def start(self, **environment: str) -> subprocess.Popen:
        given = {
            "PATH": str(self._go.parent),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "KUBEBUILDER_ASSETS": str(self.place),
            **environment,
        }
        with self.said.open("w") as said:
            return subprocess.Popen([sys.executable, build_assets.__file__], env=given, stdout=said, stderr=said)

    def wait_for_calls(self, count: int) -> None:
        while not self.calls.exists() or len(self.calls.read_text().split()) < count:
            time.sleep(0.01)

    def built(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.place.iterdir() if not path.name.startswith(".")}


WHOLE = {program.name: "half whole" for program in ASSETS.programs}


@pytest.fixture
def builder(tmp_path):
    return Builder(tmp_path)


def test_two_builders_at_once_build_each_program_once(builder):
    builder.hold.touch()
    first = builder.start()
    builder.wait_for_calls(1)
    second = builder.start()
    assert builder.built() == {}
    builder.hold.unlink()
    assert (first.wait(), second.wait()) == (0, 0)
    assert builder.built() == WHOLE
    assert sorted(builder.calls.read_text().split()) == sorted(WHOLE)


def test_killed_builder_leaves_nothing_that_the_next_one_uses(builder):
    builder.hold.touch()
    killed = builder.start()
    builder.wait_for_calls(1)
    killed.kill()
    killed.wait()
    assert builder.built() == {}
    builder.hold.unlink()
    assert builder.start().wait() == 0
    assert builder.built() == WHOLE
    assert list(builder.place.glob(".building-*")) == []


def test_failed_compiler_fails_the_build_and_leaves_no_program(builder):
    builder.write_go(code=1)
    assert builder.start().wait() != 0
    assert builder.built() == {}


def test_programs_that_are_there_are_not_built_again(builder):
    assert [builder.start().wait(), builder.start().wait()] == [0, 0]
    assert len(builder.calls.read_text().split()) == len(WHOLE)


@pytest.mark.parametrize(("environment", "code"), [({}, 0), ({"CI": "true"}, 1)])
def test_without_go_one_line_says_how_to_get_the_programs_and_only_ci_fails(builder, tmp_path, environment, code):
    assert builder.start(PATH=str(tmp_path / "empty"), **environment).wait() == code
    (line,) = builder.said.read_text().splitlines()
    assert "make kube-assets" in line
    assert "KUBEBUILDER_ASSETS" in line


def test_directory_is_the_one_given_or_else_one_of_the_versions_in_the_cache():
    assert ASSETS.directory({"KUBEBUILDER_ASSETS": "/given"}) == Path("/given")
    cache = ASSETS.directory({"XDG_CACHE_HOME": "/cache"})
    assert cache.is_relative_to("/cache/inference-epp")
    assert all(program.version in cache.name for program in ASSETS.programs)


@pytest.mark.parametrize("program", ASSETS.programs, ids=lambda program: program.name)
def test_module_of_a_program_requires_its_version(program):
    module = (program.module / "go.mod").read_text()
    assert f"\ntool {program.package}\n" in module
    required = re.findall(r"^(?:require )?\s*(\S+) (v\S+)", module, re.MULTILINE)
    assert any(program.package.startswith(name) and version == program.version for name, version in required)


def test_programs_are_of_the_versions_that_are_named(programs):
    if "KUBEBUILDER_ASSETS" in os.environ:
        pytest.skip("KUBEBUILDER_ASSETS may have others")
    for program, flag in (("etcd", "--version"), ("helm", "version"), ("kube-apiserver", "--version")):
        version = next(each.version for each in ASSETS.programs if each.name == program)
        said = subprocess.run([programs / program, flag], capture_output=True, text=True, check=True).stdout
        assert version.removeprefix("v") in said
