# SPDX-License-Identifier: Apache-2.0
"""What `make bench` measures inside of the program still fits the program; figures are told, none is judged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", ["bodies", "decision", "filters", "observers", "pool", "prefix_index", "quotas", "session"]
)
def test_each_short_part_tells_figures(part):
    ended = subprocess.run(
        [sys.executable, f"bench/inner/{part}.py", "--quick"],
        cwd=TESTS,
        env=os.environ | {"PYTHONPATH": f"{TESTS}:{TESTS / 'bench'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout.splitlines()[-1])
    assert figures
    assert all(isinstance(figure, float) for figure in figures.values())
