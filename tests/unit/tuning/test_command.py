# SPDX-License-Identifier: Apache-2.0
"""`epp tune` as a command: its errors."""

import pytest
from typer.testing import CliRunner

from epp.cli.app import application
from epp.lab.traces.formats import own_lines
from tests.unit.replay.conftest import BLOCK, requests

ENDPOINTS = "endpoints: [{name: only, address: 10.0.0.1, port: 8000, accelerator: {class: h100, costPerHour: 4.0}}]"


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (("--objective", "p98-ttft"), "there is no figure 'p98-ttft'"),
        (("--objective", "dollars", "--subject-to", "p99 ttft"), "write a figure, <= or >=, and a limit"),
        (("--objective", "dollars", "--also", "queue=none"), "did you mean 'queue-scorer'"),
        (("--objective", "goodput"), "goodput is not known for this trace and pool; give targets with --slo"),
    ],
)
def test_what_cannot_be_tuned_is_said(tmp_path, monkeypatch, flags, error):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.jsonl").write_bytes(b"".join(own_lines(requests(5.0, 12.0), BLOCK)))
    (tmp_path / "endpoints.yaml").write_text(ENDPOINTS)
    given = ["tune", "trace.jsonl", "--endpoints", "endpoints.yaml", "--config", "llm-d-default", *flags]
    result = CliRunner().invoke(application(), given)
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert error in " ".join(result.stderr.split())
