# SPDX-License-Identifier: Apache-2.0
"""`make run` says what it installs while it does, and fails where pip fails."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PIP = """\
#!/bin/sh
case "$*" in *--require-hashes*)
  echo 'Collecting numpy==2.4.6 (from -r .lock/run.txt (line 1))'
  echo '  Using cached numpy-2.4.6.whl (1.0 MB)'
  echo 'Collecting rich==15.0.0 (from -r .lock/run.txt (line 2))'
  echo 'Installing collected packages: numpy, rich'
  echo 'Successfully installed numpy rich';;
esac
exit {code}
"""


@pytest.mark.parametrize("code", [0, 3])
def test_install_is_one_line_a_step_and_a_package(tmp_path, code):
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    for name in (
        "pyproject.toml",
        "tools/index_readme.py",
        "proto/build.py",
        "proto/ext_proc.proto",
        ".venv/bin/python",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / ".lock").mkdir()
    (tmp_path / ".lock/run.txt").write_text("numpy==2.4.6\nrich==15.0.0\n")
    pip = tmp_path / "pip"
    pip.write_text(PIP.format(code=code))
    pip.chmod(0o755)
    ended = subprocess.run(
        ["make", f"PIP={pip}", ".venv/run"],  # noqa: S607  the one of the machine
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},  # of `make test`
        capture_output=True,
        text=True,
        check=False,
    )
    steps = ["installing 2 packages into .venv ...", "  numpy 2.4.6", "  rich 15.0.0", "  unpacking ..."]
    if code == 0:
        steps += ["building inference-epp ..."]
    assert (ended.stdout.splitlines(), ended.returncode) == (steps, 0 if code == 0 else 2)
    assert (tmp_path / ".venv/run").exists() is (code == 0)
