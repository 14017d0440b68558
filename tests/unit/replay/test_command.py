# SPDX-License-Identifier: Apache-2.0
"""`epp replay` as a command: its output, and its errors."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from epp.cli.app import application
from epp.lab.replay.fleet import ReplayOptions
from epp.lab.replay.jobs import Job, TraceFile, run_jobs
from epp.lab.traces.formats import own_lines
from tests.unit.replay.conftest import BLOCK, config, fleet, requests


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(own_lines(requests(6.0, 10.0), BLOCK)))
    return path


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(application(), ["replay", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_output_is_the_same_in_each_run(trace_file: Path, endpoints_file: Callable[..., Path]):
    arguments = (trace_file, "--endpoints", endpoints_file("h100", "t4"), "--config", "adaptive", "--seeds", 1)
    first, second = (run(*arguments, "--slo", "ttft=500ms", "--output", "json") for _ in range(2))
    assert first[0] == 0
    assert first[1] == second[1]
    (found,) = json.loads(first[1])["replays"]
    assert found["figures"]["all"]["goodput"] == 1.0
    assert found["figures"]["all"]["dollars_per_1000_requests"] > 0
    assert "h100" in found["figures"]["classes"]


def test_requests_that_no_server_can_hold_are_named(tmp_path: Path, endpoints_file: Callable[..., Path]):
    trace = tmp_path / "long.csv"
    trace.write_text("at,prompt_tokens,output_tokens\n0,9000,10\n1,100,10\n")
    code, _, text = run(trace, "--endpoints", endpoints_file("h100"), "--config", "adaptive", "--seeds", 1)
    assert code == 0
    assert "1 of 2 requests are refused" in text
    assert "longer than the context of every server, 8,192 tokens: raise max_model_len" in text


def test_configurations_and_seeds_run_side_by_side(trace_file: Path, endpoints_file: Callable[..., Path]):
    configs = ("--config", "adaptive", "--config", "random", "--seeds", 2)
    code, text, _ = run(trace_file, "--endpoints", endpoints_file("a100", "a100"), *configs)
    assert code == 0
    assert text.split()[:2] == ["adaptive", "random"]
    assert "team-a" in text


def test_a_process_that_gets_no_further_job_ends_in_silence(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(b"".join(own_lines(requests(6.0, 60.0), BLOCK)))
    short, long = (
        Job(config("random"), fleet("h100"), TraceFile(trace), ReplayOptions(limit=limit)) for limit in (3, 500)
    )
    outcomes = run_jobs([short, long], workers=2)
    assert [len(outcome.columns.ttft) > 3 for outcome in outcomes] == [False, True]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("classes", "arguments", "error"),
    [
        (["h100"], ["--config", "adaptiv"], "no file or ready-made configuration 'adaptiv'"),
        (["h100"], ["--config", "adaptive", "--slo", "latency=1s"], "--slo: 'latency=1s' is not a target"),
        (["h100"], ["--config", "adaptive", "--profile", "h100=rtx"], "there is no preset and no file 'rtx'"),
        (["h100"], ["--config", "adaptive", "--profile", "b200=h100"], "no endpoint or accelerator class 'b200'"),
        (["h100"], ["--config", "adaptive", "--trace-rate", "2"], "has its own times"),
        (["h100", "abacus"], ["--config", "adaptive"], "endpoint 's1' has no server profile"),
        (["h100", "abacus"], ["--config", "adaptive"], "--profile abacus="),
        ([], ["--config", "adaptive"], "--endpoints is missing"),
    ],
)
def test_errors_name_the_flag(trace_file: Path, endpoints_file: Callable[..., Path], classes, arguments, error):
    endpoints = ["--endpoints", endpoints_file(*classes)] if classes else []
    code, _, text = run(trace_file, *endpoints, *arguments)
    assert code == 1
    assert error in " ".join(text.split())


def test_a_profile_in_a_file_counts_for_its_class(trace_file: Path, endpoints_file, tmp_path: Path):
    profile = tmp_path / "fast.yaml"
    profile.write_text("name: fast\nprefill_tokens_per_second: 1000000\nseconds_per_output_token: 0.001\n")
    arguments = (trace_file, "--endpoints", endpoints_file("mi300x"), "--config", "adaptive", "--output", "json")
    _, text, _ = run(*arguments, "--seeds", 1, "--profile", f"mi300x={profile}")
    assert json.loads(text)["replays"][0]["figures"]["all"]["ttft"]["p90"] < 0.01
