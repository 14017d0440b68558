# SPDX-License-Identifier: Apache-2.0
"""Each format, on samples that we made with the columns of the published traces."""

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from epp.explain.record import Asked, DecisionRecord, Ending, Prefix, Timings
from epp.lab.traces.reading import open_trace
from epp.lab.traces.trace import FileTrace, TraceError, TraceRequest

SAMPLES = Path(__file__).parents[2] / "data" / "traces"


def sample(name: str, **options) -> tuple[FileTrace, list[TraceRequest]]:
    trace = open_trace(SAMPLES / name, **options)
    return trace, list(trace)


def test_mooncake_has_milliseconds_and_full_blocks_of_512_tokens():
    trace, requests = sample("mooncake.jsonl")
    assert (trace.format, trace.block_tokens, len(requests)) == ("mooncake", 512, 20)
    first, second = requests[:2]
    assert (first.prompt_tokens, first.output_tokens) == (4018, 84)
    assert first.blocks == (0, 1, 2, 3, 4, 5, 6)  # 4018 / 512 = 7.8: the eighth block is not full
    assert second.at == 1.0


@pytest.mark.parametrize("year", [2023, 2024])
def test_azure_starts_with_its_first_request(year: int):
    trace, requests = sample(f"azure-{year}.csv")
    assert (trace.format, len(requests)) == ("azure", 20)
    assert requests[0].at == 0
    second = {2023: (1.574632, 374, 29), 2024: (0.404254, 3900, 243)}[year]
    assert (requests[1].at, requests[1].prompt_tokens, requests[1].output_tokens) == pytest.approx(second, abs=2e-6)


def test_burstgpt_leaves_out_failed_requests():
    trace, requests = sample("burstgpt.csv")
    assert (trace.format, len(requests)) == ("burstgpt", 18)
    assert (requests[1].at, requests[1].model, requests[1].prompt_tokens) == (76, "ChatGPT", 411)
    assert trace.problems.skipped == {"without output tokens": 2}
    assert trace.problems.broken == 0


def test_burstgpt_of_version_2_has_sessions(tmp_path: Path):
    file = tmp_path / "trace.csv"
    file.write_text(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "7,42,1.5,GPT-4,10,20,30,Conversation log\n"
    )
    assert [request.session for request in open_trace(file)] == ["42"]


def test_own_csv_and_own_json_lines_are_the_same():
    (lines, from_lines), (table, from_table) = sample("own.jsonl"), sample("own.csv")
    assert (lines.format, table.format, len(from_lines)) == ("jsonl", "csv", 20)
    assert lines.block_tokens == table.block_tokens == 16
    assert from_lines == from_table


def test_sharegpt_needs_a_rate():
    with pytest.raises(TraceError, match="has no times: give --rate"):
        sample("sharegpt.json")
    with pytest.raises(TraceError, match="has its own times: leave --rate out"):
        sample("own.csv", rate=1.0)


def test_sharegpt_turns_follow_each_other_at_the_rate():
    trace, requests = sample("sharegpt.json", rate=10.0, seed=1)
    assert trace.format == "sharegpt"
    assert trace.problems.skipped == {"without an answer": 1}
    assert [request.at for request in requests] == sorted(request.at for request in requests)
    for session in {request.session for request in requests}:
        turns = [request for request in requests if request.session == session]
        for earlier, later in pairwise(turns):
            assert later.prompt_tokens > earlier.prompt_tokens + earlier.output_tokens - 2  # each is rounded up
            assert later.blocks[: len(earlier.blocks)] == earlier.blocks
    for request in requests:
        assert len(request.blocks) in {(request.prompt_tokens - 1) // 64, request.prompt_tokens // 64}
    assert list(trace) == requests
    assert sample("sharegpt.json", rate=10.0, seed=2)[1] != requests


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            '[{"conversations": 1}]',
            r"1 of 1 conversations are broken.*conversation 1: .conversations. is missing or not a list",
        ),
        ('[{"conversations": [{"from": "human"}]}]', 'a message without "from" and "value"'),
        (
            '[{"conversations": []}, {"conv',
            "conversation 2 is not valid JSON of at most 4 MiB, or the file is truncated",
        ),
        ("[" + "[" * 100_000, "conversation 1 is not valid JSON"),
    ],
)
def test_broken_conversations_are_refused(tmp_path: Path, text: str, problem: str):
    file = tmp_path / "trace.json"
    file.write_text(text)
    with pytest.raises(TraceError, match=problem):
        list(open_trace(file, rate=1.0))


def record(number: int, kind: str = "routed", *, ending=None, prefix=None, timings=None, **more) -> DecisionRecord:
    asked = Asked(model="m", target_model="m2", objective="o", fairness_id="t", prompt_tokens=130, **more)
    parts = {"ending": ending, "prefix": prefix, "timings": timings or Timings()}
    at = f"2026-01-01T00:00:{number:02}.500Z"
    return DecisionRecord(version=1, id=str(number), kind=kind, at=at, asked=asked, **parts)


def test_decisions_are_requests_that_ended_with_token_counts(tmp_path: Path):
    file = tmp_path / "decisions.jsonl"
    ended = Ending(cause="natural", prompt_tokens=130, completion_tokens=7)
    prefix = Prefix(block_tokens=64, blocks=(5, 6, 7), session="s")
    records = [
        record(9, ending=ended, timings=Timings(decision=2.5)),
        record(8, ending=ended, prefix=prefix),
        record(10, kind="refused"),
        record(11, ending=Ending(cause="natural")),
        record(12, ending=Ending(cause="natural", completion_tokens=3), ttft_slo=0.5, tpot_slo=1e300),
    ]
    file.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in records))
    trace = open_trace(file)
    first, second, third = trace
    assert trace.format == "decisions"
    assert (first.at, first.blocks) == (0, ())
    assert second == TraceRequest(
        at=1.5, prompt_tokens=130, output_tokens=7, model="m2", tenant="t", session="s", objective="o", blocks=(5, 6)
    )
    assert (third.at, third.prompt_tokens, third.ttft_slo, third.tpot_slo) == (5.5, 130, 0.5, None)
    assert trace.problems.skipped == {"not routed": 1, "without token counts": 1}
