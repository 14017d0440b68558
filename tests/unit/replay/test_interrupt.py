# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends a replay without a traceback, and leaves no process behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from epp.lab.traces.formats import own_lines
from tests.unit.replay.conftest import BLOCK, requests

_PROGRAM = """
import signal
import sys
from epp.lab.replay import jobs

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it for background jobs
from epp.cli.app import application

run = jobs.run_jobs

def told(found, report, **settings):
    def first(job, seconds):
        print("running", flush=True)
        report(job, seconds)
    return run(found, first, **settings)

jobs.run_jobs = told
import epp.cli.replay
epp.cli.replay.run_jobs = told
application()(["replay", *sys.argv[1:]])
"""


def living(group: int) -> list[str]:
    """Return the processes of a group; those that have ended may still be waited for by their parent."""
    ps = ["/bin/ps", "-e", "-o", "pgid=,stat=,args="]
    listed = subprocess.run(ps, capture_output=True, text=True, check=True).stdout
    found = [line.split(maxsplit=2) for line in listed.splitlines()]
    return [args for pgid, stat, args in found if int(pgid) == group and not stat.startswith("Z")]


@pytest.mark.skipif(sys.platform == "win32", reason="no process groups")
@pytest.mark.parametrize("configs", [pytest.param(["adaptive"], marks=pytest.mark.slow), ["adaptive", "random"]])
def test_interrupt_ends_all_processes(tmp_path: Path, endpoints_file, configs: list[str]):
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(b"".join(own_lines(requests(5.0, 6000.0), BLOCK)))
    flags = [flag for name in configs for flag in ("--config", name)]
    command = [sys.executable, "-c", _PROGRAM, str(trace), "--endpoints", str(endpoints_file("h100", "h100")), *flags]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "Traceback" not in errors
    until = time.monotonic() + 10
    while (left := living(process.pid)) and time.monotonic() < until:
        time.sleep(0.05)  # the tracker of multiprocessing ends when it notices that its parent has ended
    assert left == []
