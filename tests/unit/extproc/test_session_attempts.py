# SPDX-License-Identifier: Apache-2.0
"""Retries of a gateway: a later attempt supersedes an earlier one."""

import pytest

from epp.routing.director import Cause
from tests.support.exchanges import (
    BODY,
    Bench,
    Exchange,
    request_body,
    request_headers,
    response_body,
    response_headers,
)

ATTEMPT = "x-envoy-attempt-count"
OTHER = BODY.replace(b"hello", b"other")


def ask(bench: Bench, attempt: str | None, body: bytes = BODY, path: str = "/v1/chat/completions", **more) -> Exchange:
    """Send a request of the id r-1; it is routed."""
    session = bench.session()
    headers = more if attempt is None else {ATTEMPT: attempt, **more}
    assert session.receive(request_headers(path, **headers), request_body(body))
    return session


def test_tf_8_retry_releases_the_attempt_before_it_and_its_exchange_ends(bench):
    former = ask(bench, "1")
    ask(bench, "2")
    assert bench.in_flight == 1  # before the former exchange has ended
    assert former.is_to_end
    (answer,) = former.evict()
    refusal = answer.immediate_response
    reasons = [h.header.raw_value for h in refusal.headers.set_headers if h.header.key.endswith("dropped-reason")]
    assert (refusal.status.code, reasons) == (503, [b"superseded"])
    assert (former.done, bench.endings.causes, bench.in_flight) == (True, [Cause.SUPERSEDED], 1)


def test_tf_8_retry_of_a_retry_takes_its_place(bench):
    first = ask(bench, "1")
    first.close()
    second = ask(bench, "2")
    third = ask(bench, "3")
    assert (second.is_to_end, third.is_to_end, bench.in_flight) == (True, False, 1)


def test_tf_8_attempt_that_leaves_by_itself_is_released_once(bench):
    former = ask(bench, "1")
    ask(bench, "2")
    former.close()
    assert former.evict() == []
    assert (bench.in_flight, bench.served) == (1, 1)


def test_tf_8_scorers_do_not_see_the_attempt_before(bench):
    """Of idle endpoints the least recently picked is next: four in turn, all of them with nothing in flight."""
    for attempt in range(1, 5):
        ask(bench, str(attempt))
        assert bench.in_flight == 1


@pytest.mark.parametrize(
    ("before", "attempt"),
    [("2", "2"), *(("1", text) for text in ("1", "0", "", "-2", "2.0", "two", "\u0662", "9999999"))],
)
def test_tf_8_request_that_is_no_retry_ends_nothing(bench, before, attempt):
    former = ask(bench, before)
    ask(bench, attempt)
    assert (former.is_to_end, bench.in_flight) == (False, 2)


def test_tf_8_without_a_count_requests_of_one_id_are_independent(bench):
    sessions = [ask(bench, None) for _ in range(40)]
    assert bench.in_flight == 40
    assert not any(session.is_to_end for session in sessions)


def test_tf_8_requests_of_one_id_that_ask_something_else_are_independent(bench):
    former = ask(bench, "1")
    ask(bench, "2", OTHER)
    ask(bench, "3", BODY.replace(b'"m"', b'"n"'))
    ask(bench, "2", path="/v1/completions", body=b'{"model":"m","prompt":"hello"}')
    ask(bench, "2", **{"x-llm-d-inference-fairness-id": "another"})
    ask(bench, "2", **{"x-request-id": "r-2"})
    assert (former.is_to_end, bench.in_flight) == (False, 6)


def test_tf_8_attempt_that_is_answered_is_not_superseded(bench):
    former = ask(bench, "1")
    former.receive(response_headers())
    ask(bench, "2")
    assert (former.is_to_end, bench.in_flight) == (False, 2)


def test_tf_8_very_many_attempts_of_one_id_cost_no_long_search(bench):
    """The first is forgotten as one that may be superseded, and still counts."""
    sessions = [ask(bench, "1") for _ in range(17)]
    ask(bench, "2")
    assert [session.is_to_end for session in sessions] == [False, True, *[False] * 15]
    assert bench.in_flight == 17


def test_tf_8_request_of_which_no_body_was_seen_supersedes_nothing(bench):
    """Its id alone does not show that it asks the same."""
    sessions = [bench.session() for _ in range(2)]
    for attempt, session in enumerate(sessions, 1):
        assert session.receive(request_headers(end=True, **{":method": "GET", ATTEMPT: str(attempt)}))
    assert (sessions[0].is_to_end, bench.in_flight) == (False, 2)


def test_tf_8_superseded_attempt_that_is_answered_meanwhile_is_cut_all_the_same(bench):
    """Its load counts no more, so it may not go on."""
    former = ask(bench, "1")
    ask(bench, "2")
    former.receive(response_headers(), response_body(b"{"))
    assert len(former.evict()) == 1
    assert (former.done, bench.in_flight) == (True, 1)
