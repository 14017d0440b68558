# SPDX-License-Identifier: Apache-2.0
"""`epp explain`: the record it finds, and the tree it prints."""

import io
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from rich.console import Console
from typer.testing import CliRunner

from epp.admin.answers import as_json
from epp.admin.simulate import decision_routes
from epp.cli.app import application
from epp.cli.decision_tree import show
from epp.explain.record import (
    Asked,
    CandidateScore,
    DecisionRecord,
    Drop,
    Ending,
    Failure,
    FilterStep,
    Pick,
    ProfileRun,
    ScorerStep,
    Seen,
    ShadowRun,
    Timings,
)
from epp.explain.recorder import Setup, recorder_of
from epp.explain.storage import Kept
from epp.framework import ManualClock, Snapshot
from epp.telemetry.settings import DecisionSettings
from tests.support.admin_client import TOKEN, loop_calls, opened

DROPPED = Drop(endpoint="c", reason="too dear")
RUN = ProfileRun(
    name="default",
    primary=True,
    considered=3,
    filters=(FilterStep(plugin="accelerator-filter", before=3, after=2, kept=("a", "b"), dropped=(DROPPED,)),),
    scorers=(
        ScorerStep(plugin="queue-scorer", weight=2.0, zero_means="has the longest queue"),
        ScorerStep(plugin="kv-scorer", weight=1.0, problem="ValueError: no"),
    ),
    candidates=(
        CandidateScore(endpoint="a", total=2.0, scores=(1.0, 0.0), contributions=(2.0, 0.0), rank=0, in_flight=3),
        CandidateScore(endpoint="b", total=0.0, scores=(0.0, 0.0), contributions=(0.0, 0.0), kv_usage=0.5),
    ),
    picker="max-score-picker",
)
ROUTED = DecisionRecord(
    version=1,
    id="d-1",
    kind="routed",
    request_id="r1",
    at="2026-11-23T06:00:00.000Z",
    recorded_for="sampled",
    asked=Asked(path="/v1/completions", model="m", size_bytes=9),
    seen=Seen(generation=4, age_seconds=0.02, endpoints=5, available=4, eligible=4, screened=3),
    profiles=(RUN,),
    pick=Pick(endpoint="a", address="10.0.0.1:8000", fallbacks=("b",), accelerator="h100", cost_per_hour=2.5),
    ending=Ending(cause="natural", status=200, served_endpoint="b", is_fallback=True),
    timings=Timings(scheduling=0.0004, total=1.5),
    shadows=(ShadowRun(profile="cheap", endpoint="b", score_gap=0.25),),
    why="default: queue-scorer 1.00, best of 2",
)
REFUSED = DecisionRecord(
    version=1,
    id="d-2",
    kind="refused",
    request_id="r2",
    at="2026-11-23T06:00:01.000Z",
    asked=Asked(),
    failure=Failure(type="AllBusyError", status=429, reason="rejected-saturated", detail="default: full 3>0"),
)


def shown(record: DecisionRecord, width: int = 140) -> str:
    text = io.StringIO()
    show(Console(file=text, width=width, highlight=False, emoji=False), record)
    return text.getvalue()


def explained(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(application(), ["explain", *arguments])
    return result.exit_code, result.output


@pytest.fixture
def routes() -> Iterator[list[web.RouteDef]]:
    """Those of an admin port that knows both decisions."""
    recorder = recorder_of(DecisionSettings(), ManualClock(), Setup(dict, int, Snapshot))
    for number, record in enumerate((ROUTED, REFUSED)):
        recorder.ring.add(Kept(record.id, record.request_id, float(number), msgspec.json.encode(record)))
    with loop_calls() as loop:
        yield decision_routes(loop, recorder)


@pytest.fixture
def admin(routes) -> Iterator[str]:
    """The address of such a port."""
    with opened(routes) as port:
        yield f"http://127.0.0.1:{port.port}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(b"\n".join([msgspec.json.encode(ROUTED), b'{"half', b"\xff", msgspec.json.encode(REFUSED), b""]))
    return path


def test_tree_has_the_dropped_with_their_reason_and_the_scores_with_their_sum():
    text = shown(ROUTED)
    assert "accelerator-filter: 3 -> 2" in text
    assert "✗ c: too dear" in text
    rows = dict(re.findall(r"^│   │   (\S.*?) {2,}(.*?) *$", text, re.MULTILINE))
    assert rows["total"].split() == ["2.000", "0.000"]
    assert rows["queue-scorer x2"].split() == ["2.000", "(1.000)", "0.000", "(0.000)"]
    assert rows["kv-scorer"].split() == ["failed", "failed"]
    assert rows["in flight"] == "3"
    assert rows["KV cache"] == "50%"
    assert "0 of queue-scorer: b: has the longest queue" in text
    assert "kv-scorer failed: ValueError: no" in text
    assert "max-score-picker: a" in text


def test_tree_has_the_pick_and_how_it_ended_or_the_status_and_cause_of_a_refusal():
    text = shown(ROUTED)
    assert "a at 10.0.0.1:8000, then b, h100, $2.50/h" in text
    assert "served by b, a fallback" in text
    assert "scheduling 0.4 ms, all 1.500 s" in text
    assert "cheap: b, another, scores +0.250" in text
    assert "5 endpoints, 4 available, 3 considered, snapshot 4, 20 ms old" in text
    text = shown(REFUSED)
    assert "429 AllBusyError, rejected-saturated, default: full 3>0" in text
    assert "picked" not in text


@pytest.mark.parametrize(
    ("reported", "words"), [(288, "320 predicted, 288 reported"), (None, "320 predicted, none reported")]
)
def test_tree_has_predicted_and_reported_cached_tokens(reported, words):
    ending = Ending(cause="natural", status=200, cached_tokens=reported, predicted_cached_tokens=320)
    assert f"cached tokens: {words}" in shown(msgspec.structs.replace(ROUTED, ending=ending))


@pytest.mark.parametrize("width", [40, 80, 200])
def test_tree_fits_a_terminal(width: int):
    assert all(len(line) <= width for line in shown(ROUTED, width).splitlines())


def test_text_of_clients_is_neither_markup_nor_control():
    hostile = msgspec.structs.replace(ROUTED, request_id="[red]r\x1b[2J\n", asked=Asked(model="[/]"))
    text = shown(hostile)
    assert "[red]r\\x1b[2J" in text
    assert "\x1b" not in text
    assert "[/]" in text


@pytest.mark.parametrize(
    ("arguments", "found"),
    [((), "d-2"), (("--last",), "d-2"), (("d-1",), "d-1"), (("--request", "r1"), "d-1"), (("--request=r2",), "d-2")],
)
def test_decision_is_found_at_a_picker_and_in_a_file(admin, file, arguments, found):
    for source in (f"--admin={admin}", f"--file={file}"):
        code, output = explained(*arguments, source)
        assert code == 0, output
        assert output.startswith(f"decision {found}")


def test_json_is_the_record_as_it_came(admin, file):
    for source in (f"--admin={admin}", f"--file={file}"):
        code, output = explained("d-1", source, "--output=json")
        assert code == 0
        assert msgspec.json.decode(output, type=DecisionRecord) == ROUTED


def test_token_is_sent(routes, tmp_path):
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    with opened(routes, token_file=token) as port:
        address = f"--admin=http://127.0.0.1:{port.port}"
        code, output = explained(address, f"--token-file={token}")
        assert (code, output.partition("  ")[0]) == (0, "decision d-2")
        code, output = explained(address)
        assert (code, "give its file with --token-file" in output) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("d-1", "--last"), "ID and --last name different decisions: give one of them"),
        (("--file=missing",), "--file: missing cannot be read: No such file or directory"),
        (
            ("--admin=ftp://x",),
            "'ftp://x' is not the address of an admin port; write one such as http://127.0.0.1:9091",
        ),
        (("--admin=http://127.0.0.1:1",), "no picker responds at http://127.0.0.1:1: "),
        (("--token-file=missing",), "--token-file: missing cannot be read: "),
        (("--file=/dev/zero",), "--file: /dev/zero has a line of more than 64 MiB: no decision is that long"),
    ],
)
def test_what_cannot_be_is_an_error_of_one_line(arguments, problem):
    code, output = explained(*arguments)
    assert code == 1
    assert problem in output
    assert len(output.splitlines()) == 1


def test_decision_is_found_by_the_id_of_its_request_and_one_that_is_not_there_is_said(admin, file):
    assert explained("r1", f"--admin={admin}") == explained("--request=r1", f"--admin={admin}")
    assert explained("r1", f"--file={file}") == explained("--request=r1", f"--file={file}")
    assert explained("r1", f"--file={file}")[0] == 0
    code, output = explained("d-9", f"--admin={admin}")
    assert (code, "has no decision or request 'd-9': later decisions replaced it" in output) == (1, True)
    code, output = explained("--request=r9", f"--admin={admin}")
    assert (code, "--decision-sample-rate" in output) == (1, True)
    code, output = explained("--request=r9", f"--file={file}")
    assert (code, "has no decision of request 'r9'" in output) == (1, True)


def test_record_of_a_later_version_is_refused_as_a_tree_alone(tmp_path):
    path = tmp_path / "later.jsonl"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(ROUTED, version=2)))
    code, output = explained(f"--file={path}")
    assert (code, "has version 2, but this program reads versions up to 1" in output) == (1, True)
    assert explained(f"--file={path}", "--output=json")[0] == 0


def test_answer_that_is_none_of_a_picker_is_said():
    async def odd(_request):
        return as_json({"decisions": 1})

    with opened((web.get("/api/decisions", odd),)) as port:
        code, output = explained(f"--admin=http://127.0.0.1:{port.port}")
    assert (code, "did not answer like a picker" in output) == (1, True)
