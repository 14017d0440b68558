# SPDX-License-Identifier: Apache-2.0
"""docs/plugins.md from an empty folder to an installed package: its files and commands, exactly as written."""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

GUIDE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def shell(tmp_path):
    """Run a command in an environment where this project is installed, and the packages of its tests are."""
    venv.create(tmp_path / "venv", with_pip=True)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    installed = next(path for path in map(Path, sys.path) if path.name == "site-packages")
    (site / "installed.pth").write_text(f"import site; site.addsitedir({str(installed)!r})\n")
    binaries = tmp_path / "venv" / "bin"
    (binaries / "epp").write_text(f"#!{binaries / 'python'}\nfrom epp.cli.app import main\nmain()\n")
    (binaries / "epp").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads a 0 as "no isolation": the build needs no network
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }

    def run(command: str, directory: Path) -> str:
        done = subprocess.run(
            ["/bin/bash", "-ec", command],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    return run


@pytest.mark.slow
def test_guide_leads_from_an_empty_folder_to_an_installed_package(shell, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    directory = empty / "my-plugins"
    printed = {}
    commands = [line[2:] for kind, text in BLOCKS if kind == "console" for line in text.splitlines()]
    first, *rest = commands
    shell(first, empty)
    for kind, text in BLOCKS:
        if kind != "console":
            name, _, content = text.removeprefix("# ").partition("\n")
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_text(content)
    for command in rest:
        printed[command] = shell(command, directory)
    assert "8 passed" in printed["python -m pytest -q"]
    assert "topology.kubernetes.io/zone" in printed["epp plugins zone-filter"]
    assert "ok" in printed["epp check --strict config.yaml"].splitlines()[0]
    assert "ok" in printed["epp check --strict stages.yaml"].splitlines()[0]
    config = directory / "config.yaml"
    config.write_text(
        config.read_text().replace("type: zone-filter", "type: my_plugins.zones:ZoneFilter\n  name: zone-filter")
    )
    assert "zone-filter" in shell("PYTHONPATH=. epp check --allow-plugin-modules my_plugins config.yaml", directory)


def test_first_line_of_each_file_of_the_guide_names_it():
    names = [text.partition("\n")[0] for kind, text in BLOCKS if kind != "console"]
    assert all(re.fullmatch(r"# [\w/.]+\.(py|toml|yaml)", name) for name in names)
