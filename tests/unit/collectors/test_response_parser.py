# SPDX-License-Identifier: Apache-2.0
"""Answers to GET requests, however their bytes are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.pool.collectors.sources.response_parser import InvalidResponseError, Reading, ResponseParser, WholePage

LIMIT = 1000


def read(*pieces: bytes, closed: bool = False) -> ResponseParser:
    reader = ResponseParser(LIMIT, WholePage(Reading()))
    for piece in pieces:
        reader.feed(piece)
    if closed:
        reader.feed_end()
    return reader


def cut(message: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({min(place, len(message)) for place in places}), len(message)]
    return [message[start:end] for start, end in pairwise(edges) if start < end]


def with_length(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def chunked(body: bytes, size: int) -> bytes:
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    coded = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in [*chunks, b""])
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + coded


@given(
    st.binary(max_size=300), st.integers(1, 50), st.lists(st.integers(0, 700)), st.sampled_from(["length", "chunks"])
)
def test_body_is_the_same_however_it_is_coded_and_cut(body, size, places, coding):
    message = with_length(body) if coding == "length" else chunked(body, size)
    reader = read(*cut(message, places))
    assert (reader.done, reader.status, reader.body(), reader.keeps_connection) == (True, 200, body, True)
    assert not reader.excess


@given(st.binary(max_size=100), st.lists(st.integers(0, 200)))
def test_body_of_no_given_length_ends_with_the_connection(body, places):
    pieces = cut(b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\n" + body, places)
    assert not read(*pieces).done
    reader = read(*pieces, closed=True)
    assert (reader.done, reader.body(), reader.keeps_connection) == (True, body, False)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200)))
def test_any_bytes_are_read_or_refused(junk, places):
    for message in (junk, b"HTTP/1.1 200 OK\r\n" + junk, with_length(b"page") + junk):
        try:
            reader = read(*cut(message, places), closed=True)
        except InvalidResponseError:
            continue
        assert reader.done


def test_answers_follow_one_another_on_a_connection():
    reader = read(with_length(b"one"))
    reader.next()
    assert not reader.begun
    reader.feed(chunked(b"two", 1))
    assert (reader.done, reader.body()) == (True, b"two")


def test_status_reason_and_encoding_are_those_of_the_final_answer():
    reader = read(b"HTTP/1.1 404 Not Found\r\ncontent-encoding: GZIP\r\nContent-Length: 0\r\n\r\n")
    assert (reader.status, reader.reason, reader.encoding, reader.body()) == (404, "Not Found", "gzip", b"")
    reader = read(b"HTTP/1.1 103 Early Hints\r\nContent-Encoding: gzip\r\n\r\n", with_length(b"page"))
    assert (reader.status, reader.reason, reader.encoding, reader.body()) == (200, "OK", "", b"page")


@pytest.mark.parametrize("more", [with_length(b"another"), b"junk"])
def test_more_than_an_answer_is_excess(more):
    assert read(with_length(b"page") + more).excess


@pytest.mark.parametrize(
    ("head", "keeps"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", True),
    ],
)
def test_server_says_whether_it_keeps_the_connection(head, keeps):
    reader = read(head + b"Content-Length: 1\r\n\r\nx")
    assert (reader.done, reader.keeps_connection) == (True, keeps)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (b"SSH-2.0-server\r\n", "is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "is not HTTP"),
        (b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", "upgrade"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\npage", "closed before the end"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npage\r\n", "closed before the end"),
        (b"HTTP/1.1 200 OK\r\nContent-", "closed before the end"),
        (with_length(bytes(LIMIT + 1)), "larger than 1000 bytes"),
        (chunked(bytes(LIMIT + 1), 10), "larger than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000, "head of the answer is larger than 16384 bytes"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(message, problem):
    with pytest.raises(InvalidResponseError, match=problem):
        read(*cut(message, list(range(0, len(message), 4096))), closed=True)
