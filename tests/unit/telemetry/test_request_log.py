# SPDX-License-Identifier: Apache-2.0
"""The log lines of requests: none, one each, or every step, by verbosity."""

import json

import pytest
import structlog

from epp.framework.datalayer import Report
from epp.framework.snapshot import WAITING
from epp.routing.director import Observers, PoolPolicies, Rewrite
from epp.telemetry.request_log import RequestLog, request_as_text, request_log
from tests.support.exchanges import new_bench, request_body, request_headers, response_body, response_headers

SECRET = "tell nobody"  # noqa: S105  a prompt
ANSWER = (
    b'{"model":"m","usage":{"prompt_tokens":300,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":64}}}'
)
FIELDS = {
    "address", "cached_share", "cached_tokens", "completion_tokens", "duration_seconds", "endpoint", "event",
    "fairness_id", "log_level", "model", "objective", "outcome", "priority", "profile", "prompt_tokens",
    "queue_outcome", "queue_seconds", "reason", "request_id", "rewrite", "scores", "status", "target_model",
    "ttft_seconds", "unlogged_requests", "why",
}  # fmt: skip


def body(model: str = "m", text: str = SECRET * 30) -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": text}]}).encode()


@pytest.fixture
def bench():
    """A bench whose requests are logged, timed by the bench's own clock."""
    return new_bench(observe=RequestLog)


def routed(bench, sent: bytes | None = None, **headers: str):
    session = bench.session()
    session.receive(request_headers(**headers))
    session.receive(request_body(body() if sent is None else sent))
    return session


def answered(bench, *pieces: bytes, whole: bool = True) -> None:
    """Route a request and show these pieces of its response; a client that does not see the end leaves."""
    session = routed(bench)
    session.receive(response_headers())
    for number, piece in enumerate(pieces, 1):
        session.receive(response_body(piece, end=whole and number == len(pieces)))
    if not whole:
        session.close()


def lines_of(act) -> list[dict[str, object]]:
    with structlog.testing.capture_logs() as lines:
        act()
    return lines


def one_line(act) -> dict[str, object]:
    (line,) = lines_of(act)
    assert set(line) == FIELDS
    assert SECRET not in json.dumps(line)
    return line


def test_answered_request(bench):
    def act() -> None:
        session = routed(bench)
        bench.clock.advance(0.25)
        session.receive(response_headers())
        session.receive(response_body(ANSWER[:9]))
        bench.clock.advance(0.5)
        session.receive(response_body(ANSWER[9:], end=True))

    line = one_line(act)
    assert line.pop("endpoint") in {"a", "b", "b2", "c"}
    assert line.pop("address").endswith((":8000", ":8001"))
    assert line == {
        "event": "request", "log_level": "info", "request_id": "r-1", "model": "m", "target_model": None,
        "rewrite": None, "objective": None, "priority": 0, "fairness_id": "default-flow",
        "queue_seconds": None, "queue_outcome": None, "status": 200, "outcome": "natural", "reason": None,
        "why": "default: equal scores of 4; 0% cached", "profile": "default",
        "scores": {}, "cached_share": 0.0, "ttft_seconds": 0.25, "duration_seconds": 0.75, "prompt_tokens": 300,
        "cached_tokens": 64, "completion_tokens": 7, "unlogged_requests": 0,
    }  # fmt: skip


def test_successful_requests_above_the_limit_have_no_line_and_are_counted_in_the_next():
    bench = new_bench(observe=lambda clock: RequestLog(clock, most_per_second=2))

    def answer_some(count: int) -> None:
        for _ in range(count):
            answered(bench, b"{}")

    assert [line["unlogged_requests"] for line in lines_of(lambda: answer_some(30))] == [0] * 20
    bench.clock.advance(0.5)
    assert [line["unlogged_requests"] for line in lines_of(lambda: answer_some(3))] == [10]
    refused, left = lines_of(lambda: (routed(bench, b""), routed(bench).close()))
    assert (refused["outcome"], refused["unlogged_requests"]) == ("refused", 2)
    assert (left["outcome"], left["unlogged_requests"]) == ("client-disconnect", 0)


def test_same_prompt_again_is_cached_and_the_scorer_is_named(bench):
    answered(bench, b"{}")
    again = one_line(lambda: routed(bench).close())
    assert again["cached_share"] == 1.0
    assert again["scores"]["prefix-cache-scorer"] == 1.0
    assert again["why"] == "default: prefix-cache-scorer 1.00, best of 4; 100% cached"


def test_client_that_left_during_the_response(bench):
    line = one_line(lambda: answered(bench, b"data: 1\n\n", whole=False))
    assert (line["status"], line["outcome"], line["ttft_seconds"]) == (200, "client-disconnect", 0.0)


def test_client_that_left_before_its_request_was_complete(bench):
    def act() -> None:
        session = bench.session()
        session.receive(request_headers())
        session.receive(request_body(body()[:20], end=False))
        session.close()

    line = one_line(act)
    assert (line["status"], line["outcome"], line["endpoint"]) == (None, "client-disconnect", None)
    assert line["reason"] == "rejected-context-cancelled"


@pytest.mark.parametrize(
    ("sent", "status", "reason", "why"),
    [
        (b'{"model":"' + SECRET.encode(), 400, "BadRequest", "the request body is not valid JSON: it ends at "),
        (b'{"model":"m","messages":[{"role":"user","content":"tell nobody" x}]}', 400, "BadRequest", "the request b"),
        (b'{"prompt":"' + SECRET.encode() + b'"}', 400, "BadRequest", '"messages" is missing or empty: '),
        (b"", 400, "BadRequest", "the request has no body: "),
    ],
)
def test_refused_request(bench, sent, status, reason, why):
    line = one_line(lambda: routed(bench, sent))
    assert (line["status"], line["outcome"], line["reason"]) == (status, "refused", reason)
    assert line["why"].startswith(why)


POLICIES = PoolPolicies({"batch": -1}, {"m": Rewrite("canary", models=("m-v2",), weights=(1,))})
OBJECTIVE = "x-llm-d-inference-objective"


def test_request_with_an_objective_and_another_model(bench):
    bench.director.use_policies(POLICIES)
    line = one_line(lambda: routed(bench, **{OBJECTIVE: "batch"}).close())
    assert (line["model"], line["target_model"], line["rewrite"]) == ("m", "m-v2", "canary")
    assert (line["objective"], line["priority"]) == ("batch", -1)
    assert line["why"].endswith("; model chosen by canary")
    assert " m->m-v2 " in on_terminal(line)


def test_request_with_an_unknown_objective(bench):
    bench.director.use_policies(POLICIES)
    line = one_line(lambda: routed(bench, body("other"), **{OBJECTIVE: "unknown"}).close())
    assert (line["objective"], line["priority"]) == ("unknown", 0)
    assert line["why"].endswith("; unknown objective")


def test_sheddable_request_at_a_saturated_pool(bench):
    bench.director.use_policies(POLICIES)
    for endpoint in bench.store.endpoints:
        bench.store.report(endpoint, Report({WAITING: 5.0}))
    line = one_line(lambda: routed(bench, **{OBJECTIVE: "batch"}))
    assert (line["status"], line["reason"], line["priority"]) == (429, "rejected-saturated", -1)
    assert (line["target_model"], line["rewrite"]) == ("m-v2", "canary")


def test_rule_that_chose_the_model_is_a_step():
    bench = new_bench(observe=lambda _: Observers(*request_log(4)))
    bench.director.use_policies(POLICIES)
    step, *_ = lines_of(lambda: routed(bench).close())
    assert step == {
        "event": "model rewritten", "log_level": "debug", "request_id": "r-1", "rewrite": "canary", "generic": False,
        "model": "m", "target_model": "m-v2",
    }  # fmt: skip


def test_operator_is_told_which_filter_left_nothing_and_which_plugin_failed():
    pool = "dataLayer: {injectDefaults: false}\nschedulingProfiles: [{name: p, plugins: [{pluginRef: x}]}]\nplugins: "
    head = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
    saturated = new_bench(f"{head}{pool}[{{type: 'tests.support.refusing:KeepsNone', name: x}}]", observe=RequestLog)
    assert one_line(lambda: routed(saturated))["why"] == "p: x 4>0"
    broken = new_bench(f"{head}{pool}[{{type: 'tests.support.refusing:BrokenFilter', name: x}}]", observe=RequestLog)
    assert one_line(lambda: routed(broken))["why"] == "plugin 'x' failed"


HOSTILE = "\x1b]0;owned\x07\u202e\r\n" + "x" * 60_000


def test_hostile_names_are_short_and_printable_everywhere(bench):
    headers = dict.fromkeys(("x-request-id", OBJECTIVE, "x-llm-d-inference-fairness-id"), HOSTILE)
    line = one_line(lambda: routed(bench, body(model=HOSTILE), **headers).close())
    for name in ("model", "request_id", "objective", "fairness_id"):
        assert line[name].isprintable()
        assert len(line[name]) <= 64
    text = on_terminal(line)
    assert text.isprintable()
    refused = one_line(lambda: routed(bench, b"{", **{"x-request-id": HOSTILE}))
    assert on_terminal(refused).isprintable()


def on_terminal(line: dict[str, object]) -> str:
    event = {**line, "timestamp": "2026-01-01T00:00:00.000000Z", "level": "info"}
    return structlog.dev.ConsoleRenderer(colors=False)(None, "info", request_as_text(None, "info", event))


def test_line_of_a_terminal_fits_two_lines_of_120_columns():
    longest = {
        "event": "request", "request_id": "i" * 64, "model": "m" * 64, "target_model": "t" * 64, "endpoint": "e" * 200,
        "status": 200, "outcome": "client-disconnect", "reason": None, "why": "w" * 160, "ttft_seconds": 1234.567891,
        "queue_seconds": 1234.567891,
        "duration_seconds": 12345.678912, "prompt_tokens": 1_000_000, "completion_tokens": 1_000_000,
        "unlogged_requests": 1_000_000,
    }  # fmt: skip
    assert len(on_terminal(longest)) <= 240
    refused = {"outcome": "refused", "reason": "rejected-no-endpoints", "status": 503, "endpoint": None}
    assert len(on_terminal({**longest, **refused, "ttft_seconds": None, "prompt_tokens": None})) <= 240


def test_line_of_a_terminal_reads_as_a_sentence(bench):
    line = one_line(lambda: answered(bench, ANSWER)) | {"endpoint": "a"}
    assert on_terminal(line).split("] ")[1] == (
        "200 a m 0.000s ttft 0.000s 300+7 tokens | default: equal scores of 4; 0% cached | r-1"
    )
    assert on_terminal(one_line(lambda: routed(bench, b""))).split("] ")[1] == (
        "400 refused, BadRequest 0.000s | the request has no body: send a JSON object | r-1"
    )


def test_line_of_a_terminal_tells_a_client_that_left_from_a_response_that_never_came(bench):
    def leaves_during_the_request() -> None:
        session = bench.session()
        session.receive(request_headers())
        session.close()

    said = [lambda: answered(bench, whole=False), lambda: routed(bench).close(), leaves_during_the_request]
    starts = ["200 client left ", "- closed without a response ", "- client left "]
    for act, start in zip(said, starts, strict=True):
        assert on_terminal(one_line(act)).split("] ")[1].startswith(start)


def test_other_events_of_a_terminal_stay_as_they_are():
    event = {"event": "ready", "endpoints": 2}
    assert request_as_text(None, "info", event) is event


@pytest.mark.parametrize(("verbosity", "lines"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_lines_by_verbosity(verbosity, lines):
    bench = new_bench(observe=lambda _: Observers(*request_log(verbosity)))
    assert len(lines_of(lambda: routed(bench).close())) == lines


def test_every_step_is_logged_at_verbosity_4():
    bench = new_bench(observe=lambda _: Observers(*request_log(4)))
    lines = lines_of(lambda: answered(bench, b"{", b"}"))
    assert [line["event"] for line in lines] == [
        "candidates", "scorer", "scorer", "scorer", "picker", "destination", "response started", "first piece",
        "last piece", "request",
    ]  # fmt: skip
    assert {line["request_id"] for line in lines} == {"r-1"}
    assert SECRET not in json.dumps(lines)
    first, scorer, *_ = lines
    assert [first[name] for name in ("pool", "reachable", "in_subset", "after_screeners")] == [4] * 4
    assert (scorer["plugin"], scorer["weight"], len(scorer["top"])) == ("queue-scorer", 2.0, 3)
    picker, destination = lines[4:6]
    assert picker["plugin"] == "max-score-picker"
    assert destination["aggregator"] == "single-profile-handler"
    assert destination["endpoints"] == picker["picked"]


def test_error_of_a_plugin_is_named_without_its_text():
    bench = new_bench(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
        "plugins: [{type: 'tests.support.refusing:Chatty', name: x}]",
        observe=lambda _: Observers(*request_log(4)),
    )
    lines = lines_of(lambda: routed(bench).close())
    (scorer,) = [line for line in lines if line["event"] == "scorer"]
    assert (scorer["plugin"], scorer["problem"]) == ("x", "ValueError")
    assert SECRET not in json.dumps(lines)
