# SPDX-License-Identifier: Apache-2.0
"""`epp tune` as a user runs it."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from epp.lab.traces.formats import own_lines
from tests.support.commands import children, is_running
from tests.unit.replay.conftest import BLOCK, requests

ENDPOINTS = """
endpoints:
- {name: fast, address: 10.0.0.1, port: 8000, accelerator: {class: h100, costPerHour: 4.0}}
- {name: slow, address: 10.0.0.2, port: 8000, accelerator: {class: t4, costPerHour: 0.5}}
"""

PROGRAM = """
import signal
from epp.cli.app import main

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it for background jobs
    main()
"""


@pytest.fixture
def tune(tmp_path: Path):
    (tmp_path / "trace.jsonl").write_bytes(b"".join(own_lines(requests(5.0, 12.0), BLOCK)))
    (tmp_path / "endpoints.yaml").write_text(ENDPOINTS)

    started: list[subprocess.Popen[str]] = []

    def start(*flags: object) -> subprocess.Popen[str]:
        arguments = ("trace.jsonl", "--endpoints", "endpoints.yaml", "--config", "llm-d-default", *map(str, flags))
        command = [sys.executable, "-c", PROGRAM, "tune", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, cwd=tmp_path, start_new_session=True, **pipes))
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also what a failed test left
        process.communicate()


def ended(path: Path) -> int:
    """Return the number of trials in a study that have ended."""
    if not path.exists():
        return 0
    with sqlite3.connect(path) as database:
        try:
            return database.execute("select count(*) from trials where state != 'RUNNING'").fetchone()[0]
        except sqlite3.OperationalError:  # not made yet, or in use
            return 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_interrupted_study_continues_and_leaves_no_process(tune, tmp_path):
    process = tune("--objective", "p90-ttft", "--trials", 1000, "--jobs", 2)
    while ended(tmp_path / "tuned.study.db") < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    offspring = children(process.pid)
    assert len(offspring) >= 2
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command continues the study in tuned.study.db" in errors
    assert "Traceback" not in errors
    while any(map(is_running, offspring)):  # the timeout of the test ends this
        time.sleep(0.05)
    before = ended(tmp_path / "tuned.study.db")
    again = tune("--objective", "p90-ttft", "--trials", before + 2, "--report", "report.html", "--output", "json")
    answer, errors = again.communicate(timeout=240)
    assert again.returncode == 0, errors
    assert json.loads(answer)["trials"] >= before + 2
    assert "<svg" in (tmp_path / "report.html").read_text()
