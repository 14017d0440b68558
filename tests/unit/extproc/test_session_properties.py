# SPDX-License-Identifier: Apache-2.0
"""Messages in any order get an answer or a protocol error, and leave no request in flight."""

import struct
from random import Random

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from epp.extproc.exchange import ProtocolError
from epp.extproc.wire import ProcessingRequest
from epp.routing.director import Cause
from tests.support.exchanges import (
    BODY,
    Bench,
    in_modes,
    new_bench,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
    streamed,
    subset,
)

MODES = ["NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED"]
BODIES = [BODY, b"", b"{", BODY[:9], b'{"model":"other","usage":{"prompt_tokens":"1"}}', b"\xff" * 9]
PATHS = ["/v1/chat/completions", "/v1/messages", "/x", ""]
REWRITE = {"x-llm-d-model-name-rewrite": "other"}
ENDS = [False, True]
KINDS = [
    *(request_headers(path, end=end, **more) for path in PATHS for end in ENDS for more in ({}, REWRITE)),
    *(request_body(body, end=end) for body in BODIES for end in ENDS),
    request_trailers(),
    *(response_headers(status, end=end) for status in ("200", "503", "", "x", "9" * 9) for end in ENDS),
    *(response_body(body, end=end) for body in BODIES for end in ENDS),
    response_trailers(),
    ProcessingRequest(),
    None,
]
"""One message of every kind; None stands for a wait in which nothing came."""


def random_exchange(random: Random) -> list[ProcessingRequest | None]:
    """Up to eight messages in any order, more often than not starting as a gateway would."""
    messages = random.choices(KINDS, k=random.randint(1, 8))
    if random.random() < 0.7:
        messages[:0] = [request_headers(end=random.random() < 0.2), request_body(BODY)][: random.randint(1, 2)]
    first = messages[0]
    if first is None:
        return messages
    messages[0] = first = ProcessingRequest.FromString(first.SerializeToString())
    if random.random() < 0.6:
        in_modes(first, random.choice(MODES), random.choice(MODES))
    if random.random() < 0.2:
        first.metadata_context.CopyFrom(subset(*random.choice([[], ["10.0.0.1:8000"], ["nobody"]])))
    return messages


def play(bench: Bench, messages: list[ProcessingRequest | None], ending: Cause) -> None:
    session = bench.session(max_body_bytes=1000)
    try:
        for message in messages:
            if session.done:
                break
            if message is None:
                session.on_silence()
            else:
                session.receive(message)
    except ProtocolError:
        pass
    finally:
        session.close(ending)


@pytest.mark.slow
@given(st.integers(0, 2**32))
def test_books_balance_after_ten_thousand_endings(seed):
    random = Random(seed)
    bench = new_bench()
    for _ in range(50):
        play(bench, random_exchange(random), random.choice([Cause.CLIENT_DISCONNECT, Cause.ERROR]))
    assert bench.in_flight == 0
    assert bench.served == len(bench.endings.causes) > 0  # each routed request ended exactly once


@pytest.mark.slow
@given(st.integers(0, 2**32))
def test_truncated_or_mangled_messages_are_refused_or_answered(seed):
    random = Random(seed)
    bench = new_bench()
    session = bench.session()
    for message in filter(None, random_exchange(random)):
        wire = bytearray(message.SerializeToString())
        for _ in range(random.randint(0, 3) if wire else 0):
            wire[random.randrange(len(wire))] ^= random.randint(1, 255)
        try:
            session.receive(ProcessingRequest.FromString(bytes(wire[: random.randint(0, len(wire))])))
        except (DecodeError, ProtocolError):
            break
    session.close()
    assert bench.in_flight == 0


@given(st.lists(st.binary(max_size=2000), max_size=8), st.integers(1, 5))
def test_body_comes_back_whole_however_it_was_cut(padding, cuts):
    body = BODY[:-1] + b',"pad":"' + b"".join(padding).hex().encode() + b'"}'
    step = max(1, len(body) // cuts)
    parts = [body[i : i + step] for i in range(0, len(body), step)]
    *before, last = parts
    pieces = [*(request_body(part, end=False) for part in before), request_body(last)]
    sent, ends = streamed(new_bench().session().receive(request_headers(), *pieces), "request_body")
    assert sent == body
    assert ends == [False] * (len(ends) - 1) + [True]


@given(st.permutations(range(4)), st.lists(st.integers(0, 3), min_size=8, max_size=40))
def test_interleaved_streams_never_see_each_others_bodies(order, turns):
    bench = new_bench()
    bodies = [BODY[:-1] + b',"n":' + struct.pack(">I", n).hex().encode().replace(b"0000000", b"") + b"}" for n in order]
    pending = [[request_headers(), *(request_body(bytes([b]), end=False) for b in body[:-1])] for body in bodies]
    for body, messages in zip(bodies, pending, strict=True):
        messages.append(request_body(body[-1:], end=True))
    sessions = [bench.session() for _ in bodies]
    answers: list[list] = [[] for _ in bodies]
    for turn in [*turns, *(n for n in range(4) for _ in range(len(pending[n])))]:
        if pending[turn]:
            answers[turn] += sessions[turn].receive(pending[turn].pop(0))
    for body, replies in zip(bodies, answers, strict=True):
        assert streamed(replies, "request_body")[0] == body
    for session in sessions:
        session.close()
    assert bench.in_flight == 0
