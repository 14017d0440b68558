# SPDX-License-Identifier: Apache-2.0
"""Reading of traces: order, broken lines, compression, and bounds."""

import contextlib
import gzip
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epp.lab.traces.formats import own_lines
from epp.lab.traces.reading import FORMAT_NAMES, open_trace
from epp.lab.traces.trace import FileTrace, TraceError, TraceRequest

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SAMPLES = Path(__file__).parents[2] / "data" / "traces"
REQUESTS = [
    TraceRequest(at=0.0, prompt_tokens=200, output_tokens=5, model="m", tenant="t", session="s", blocks=(1, 2, 3)),
    TraceRequest(at=0.5, prompt_tokens=10, output_tokens=1, objective="o", ttft_slo=0.5, tpot_slo=0.05),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def line(at: float, *, prompt: int = 100, output: int = 10) -> str:
    return f'{{"at": {at}, "prompt_tokens": {prompt}, "output_tokens": {output}}}\n'


def trace_of(file: Path, text: str) -> FileTrace:
    file.write_text(text)
    return open_trace(file)


def times(trace: FileTrace) -> list[float]:
    return [request.at for request in trace]


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstd.compress])
def test_own_form_is_read_as_it_was_written_and_again(file: Path, compress) -> None:
    file.write_bytes(compress(b"".join(own_lines(REQUESTS, 32))))
    trace = open_trace(file)
    assert trace.block_tokens == 32
    assert list(trace) == REQUESTS
    assert list(trace) == REQUESTS


def test_blocks_have_64_tokens_without_a_header(file: Path) -> None:
    assert trace_of(file, line(0)).block_tokens == 64


def test_comments_at_the_start_are_left_out(file: Path) -> None:
    trace = trace_of(file, '# a trace\n{"block_tokens": 32}\n' + line(0) + "# another comment\n" + line(1) * 100)
    assert (trace.block_tokens, len(times(trace)), trace.problems.broken) == (32, 101, 0)


def test_requests_are_sorted_by_time(file: Path) -> None:
    assert times(trace_of(file, line(2) + line(0.5) + line(1))) == [0.5, 1, 2]


def test_a_request_that_comes_too_late_is_broken(file: Path, monkeypatch) -> None:
    monkeypatch.setattr("epp.lab.traces.reading.SORTED_REQUESTS", 2)
    trace = trace_of(file, "".join(line(n) for n in range(200)) + line(3))
    assert times(trace) == list(range(200))
    assert trace.problems.named == ["line 201: the time is too far before those of earlier lines"]


def test_one_broken_line_of_a_hundred_is_counted_and_named(file: Path) -> None:
    trace = trace_of(file, "".join(line(n) for n in range(99)) + line(99, prompt=0))
    assert len(times(trace)) == 99
    assert trace.problems.broken == 1
    assert trace.problems.named == ["line 100: prompt_tokens must be 1 to 10,000,000, not 0"]
    assert len(times(trace)) == 99
    assert trace.problems.broken == 1


def test_two_broken_lines_of_a_hundred_refuse(file: Path) -> None:
    trace = trace_of(file, "".join(line(n) for n in range(98)) + "junk\n" + line(98, output=10**8))
    problem = r"trace.jsonl: 2 of 100 lines are broken.*: correct or remove them; line 99: "
    with pytest.raises(TraceError, match=problem):
        times(trace)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ('{"at": -1, "prompt_tokens": 1, "output_tokens": 1}', "before the start"),
        ('{"at": 1e9, "prompt_tokens": 1, "output_tokens": 1}', "more than 366 days"),
        ('{"at": 0, "prompt_tokens": 64, "output_tokens": 1, "blocks": [1, 2]}', "2 blocks of 64 tokens do not fit"),
        ('{"at": 0, "prompt_tokens": 64, "output_tokens": 1, "blocks": [-1]}', "a block id is negative"),
        ('{"at": 0, "prompt_tokens": 64, "output_tokens": 1, "blocks": [18446744073709551616]}', "more than 64 bits"),
        ('{"at": 0, "prompt_tokens": 1, "output_tokens": 1, "ttft_slo": 0}', "ttft_slo must be above 0 seconds"),
        (f'{{"at": 0, "prompt_tokens": 1, "output_tokens": 1, "model": "{"m" * 257}"}}', "model has more than 256"),
        ('{"at": 0, "prompt_tokens": 1, "output_tokens": 1, "colour": 1}', "unknown field `colour`"),
        ('{"at": 0, "prompt_tokens": ' + "9" * 400 + ', "output_tokens": 1}', "number"),
        ("[" * 100_000, "Expected `object`"),
        (" " * 5_000_000 + "x", "more than 4 MiB"),
    ],
)
def test_broken_lines_have_a_reason(file: Path, bad: str, reason: str) -> None:
    trace = trace_of(file, line(0) * 150 + bad + "\n" + line(1))
    assert len(times(trace)) == 151
    assert trace.problems.broken == 1
    assert trace.problems.named[0].startswith("line 151: ")
    assert reason in trace.problems.named[0]


def test_a_truncated_gzip_file_ends_with_an_error(file: Path) -> None:
    whole = gzip.compress("".join(line(n / 7) for n in range(5000)).encode())
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match="truncated or damaged"):
        times(open_trace(file))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"hello\n", "is not in a known format: formats are jsonl"),
        (bytes(range(256)), "not in a known format"),
    ],
)
def test_a_file_in_no_format_is_refused(file: Path, content: bytes, problem: str) -> None:
    file.write_bytes(content)
    with pytest.raises(TraceError, match=problem):
        open_trace(file)


def test_64_mib_are_read_in_little_memory(file: Path) -> None:
    padded = line(0).encode().rjust(2**20)
    with gzip.open(file, "wb", compresslevel=1) as packed:
        for _ in range(64):
            packed.write(padded)
    trace = open_trace(file)
    tracemalloc.start()
    try:
        assert len(times(trace)) == 64
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()


LINES = st.one_of(
    st.binary(max_size=80),
    st.sampled_from([b"{", b"[", b'{"at":', b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xef\xbb\xbf"]),
    st.sampled_from([line for path in SAMPLES.iterdir() for line in path.read_bytes().splitlines()[:4]]),
)


@given(
    lines=st.lists(LINES, max_size=12),
    form=st.sampled_from(["", *FORMAT_NAMES]),
    compress=st.sampled_from([bytes, gzip.compress, zstd.compress]),
    kept=st.floats(0.5, 1),
)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_read_or_refused(file: Path, lines, form, compress, kept) -> None:
    content = compress(b"\n".join(lines))
    file.write_bytes(content[: round(len(content) * kept)])
    with contextlib.suppress(TraceError):
        at = times(open_trace(file, format=form, rate=1.0 if form == "sharegpt" else None))
        assert at == sorted(at)


TEXT = st.text(max_size=20)
TOKENS = st.integers(1, 10_000_000)
SLO = st.none() | st.floats(0.001, 1000)


@st.composite
def requests(draw) -> TraceRequest:
    tokens = draw(TOKENS)
    blocks = draw(st.lists(st.integers(0, 2**64 - 1), max_size=min(tokens // 64, 5)))
    names = {name: draw(TEXT) for name in ("model", "tenant", "session", "objective")}
    at, output, ttft, tpot = draw(st.floats(0, 1e6)), draw(TOKENS), draw(SLO), draw(SLO)
    return TraceRequest(
        at=at, prompt_tokens=tokens, output_tokens=output, blocks=tuple(blocks), ttft_slo=ttft, tpot_slo=tpot, **names
    )


@given(st.lists(requests(), min_size=1, max_size=8))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_requests_survive_the_own_form(file: Path, given: list[TraceRequest]) -> None:
    file.write_bytes(b"".join(own_lines(given, 64)))
    assert list(open_trace(file)) == sorted(given, key=lambda request: request.at)


@pytest.mark.parametrize(
    ("content", "form", "problem"),
    [
        (None, "", "cannot be read: No such file"),
        (line(0), "azure", "is not in the format azure: no column ContextTokens"),
        (
            "at,prompt_tokens,output_tokens,modle",
            "",
            "is not in the format csv: there is no field 'modle'; did you mean 'model'",
        ),
        (line(0), "jsnl", "no trace format 'jsnl': did you mean 'jsonl'"),
    ],
)
def test_a_missing_file_and_an_unknown_format_are_refused(file: Path, content, form, problem) -> None:
    if content is not None:
        file.write_text(content)
    with pytest.raises(TraceError, match=problem):
        open_trace(file, format=form)
    with pytest.raises(TraceError, match="not a regular file"):
        open_trace(file.parent)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_trace_tells_how_much_of_its_file_has_been_read(tmp_path, pack):
    path = tmp_path / "trace.jsonl"
    requests = (TraceRequest(at=at, prompt_tokens=at * at % 997 + 1, output_tokens=1) for at in range(40_000))
    path.write_bytes(pack(b"".join(own_lines(requests, 64))))
    trace = open_trace(path)
    seen = [trace.bytes_read for _ in trace]
    assert seen == sorted(seen)
    assert 0 < seen[0] < seen[-1]
    # the last requests are sorted when the end has been read; by then, no more than the buffer is left
    assert path.stat().st_size - 128 * 1024 <= seen[-1] <= path.stat().st_size
