"""Whatever arrives in whatever order: an answer or a clean protocol error, and balanced books."""

from bench import (
    BODY,
    new_bench,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.extproc.session import ProtocolError
from epp.extproc.wire import ProcessingRequest

MESSAGES = st.one_of(
    st.builds(request_headers, st.sampled_from(["/v1/chat/completions", "/x", ""]), end=st.booleans()),
    st.builds(request_body, st.sampled_from([BODY, b"", b"{", BODY[:9]]), end=st.booleans()),
    st.builds(request_trailers),
    st.builds(response_headers, st.sampled_from(["200", "503", "", "x"]), end=st.booleans()),
    st.builds(response_body, st.binary(max_size=9), end=st.booleans()),
    st.builds(response_trailers),
    st.builds(ProcessingRequest),
)

BENCH = new_bench()


@settings(max_examples=500, deadline=None)
@given(st.lists(MESSAGES, max_size=12))
def test_any_messages_in_any_order_leave_nothing_in_flight(messages):
    session = BENCH.session()
    try:
        for message in messages:
            if session.done:
                break
            session.receive(message)
    except ProtocolError:
        pass
    finally:
        session.close()
    assert BENCH.in_flight == 0


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=2000), max_size=8), st.integers(1, 5))
def test_body_comes_back_whole_however_it_was_cut(padding, cuts):
    body = BODY[:-1] + b',"pad":"' + b"".join(padding).hex().encode() + b'"}'
    step = max(1, len(body) // cuts)
    parts = [body[i : i + step] for i in range(0, len(body), step)]
    session = BENCH.session()
    session.receive(request_headers())
    replies = []
    for part in parts[:-1]:
        replies += session.receive(request_body(part, end=False))
    replies += session.receive(request_body(parts[-1], end=True))
    session.close()
    sent = [reply.request_body.response.body_mutation.streamed_response for reply in replies[1:]]
    assert b"".join(piece.body for piece in sent) == body
    assert [piece.end_of_stream for piece in sent] == [False] * (len(sent) - 1) + [True]
