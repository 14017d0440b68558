# SPDX-License-Identifier: Apache-2.0
"""`epp trace`: one screen about a trace, and traces that are made."""

import gzip
import json
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from typer.testing import CliRunner

from epp.cli import input_output
from epp.cli.app import application
from epp.cli.commands import TraceMake, TraceShow
from epp.lab.traces.making import WORKLOADS
from epp.lab.traces.reading import FORMAT_NAMES, open_trace

SAMPLES = Path(__file__).parents[2] / "data" / "traces"
OWN = SAMPLES / "own.jsonl"


def run(*arguments: str | Path, expect: int = 0) -> str:
    result = CliRunner().invoke(application(), ["trace", *map(str, arguments)])
    assert result.exit_code == expect, result.output
    return result.stderr if expect else result.stdout


def make(*arguments: str | Path) -> str:
    return run("make", "--like=chat", "--rate=5", "--duration=10s", *arguments)


def test_flags_name_every_format_and_every_kind_of_traffic():
    hints = get_type_hints(TraceShow) | get_type_hints(TraceMake)
    (formats,) = (each for each in get_args(hints["format"]) if each is not type(None))
    assert set(get_args(formats)) == set(FORMAT_NAMES)
    assert set(get_args(hints["like"])) == set(WORKLOADS)


def test_show_is_one_screen_for_people_and_json_for_programs():
    said = run("show", OWN).splitlines()
    assert said[0] == f"{OWN}: 20 requests in 5.4 s (jsonl)"
    assert "models     small 50%, large 50%" in said
    assert said[-3].split() == ["prompt", "tokens", "49.5", "49", "57", "59", "59"]
    assert len(said) < 24
    found = json.loads(run("show", OWN, "--output=json"))
    assert (found["requests"], found["format"], found["prefixes"]["blockTokens"]) == (20, "jsonl", 16)


def test_show_fits_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(input_output, "_PIPED_WIDTH", 80)  # pipes have more columns
    assert max(map(len, run("show", SAMPLES / "mooncake.jsonl").splitlines()[1:])) <= 80


def test_show_counts_broken_and_skipped_lines(tmp_path: Path):
    file = tmp_path / "trace.csv"
    file.write_text("at,prompt_tokens,output_tokens\n" + "0,1,1\n" * 150 + "0,0,1\n")
    assert "1 of 151 lines are broken: line 152: prompt_tokens must be 1 to 10,000,000, not 0" in run("show", file)
    assert "2 left out: without output tokens" in run("show", SAMPLES / "burstgpt.csv")


def test_show_refuses_a_trace_without_times_or_without_requests(tmp_path: Path):
    assert "give --rate" in run("show", SAMPLES / "sharegpt.json", expect=1)
    assert "16 requests" in run("show", SAMPLES / "sharegpt.json", "--rate=5")
    file = tmp_path / "trace.jsonl"
    file.write_text('{"block_tokens": 64}\n')
    assert run("show", file, expect=1) == f"error: {file} has no requests\n"


def test_make_prints_the_same_for_the_same_seed(tmp_path: Path):
    said = make("--seed=3")
    assert make("--seed=3") == said != make("--seed=4")
    file = tmp_path / "trace.jsonl"
    file.write_text(said)
    assert 20 < sum(1 for _ in open_trace(file)) < 80  # 50 in the mean


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_make_writes_a_file(tmp_path: Path, suffix: str):
    file, again = tmp_path / f"trace.jsonl{suffix}", tmp_path / f"again{suffix}"
    assert make("--output", file) == make("--output", again) == ""
    assert file.read_bytes() == again.read_bytes()
    assert set(tmp_path.iterdir()) == {file, again}
    assert "\n".join(map(str, open_trace(file))) == "\n".join(map(str, open_trace(again)))
    if suffix == ".gz":
        assert gzip.decompress(file.read_bytes()).decode() == make()


def test_make_refuses_a_place_that_cannot_be_written(tmp_path: Path):
    arguments = ("make", "--like=chat", "--rate=5", "--output", tmp_path / "none" / "trace.jsonl")
    assert "cannot be written: No such file or directory" in run(*arguments, expect=1)
    assert "rate times duration must be above 0" in run("make", "--like=chat", "--rate=0", expect=1)
