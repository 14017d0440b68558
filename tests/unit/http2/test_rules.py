# SPDX-License-Identifier: Apache-2.0
"""Rules of HTTP/2 that a client must keep, and what it gets if it does not."""

import pytest

from epp.extproc.http2 import frames
from epp.extproc.http2.frames import Setting, frame
from epp.extproc.http2.limits import Limits
from epp.extproc.http2.service import ErrorCode
from tests.support.http2.frame_client import HEAD, Client, data, goaway, message, rst

PROTOCOL_ERROR, FRAME_SIZE_ERROR = ErrorCode.PROTOCOL_ERROR, ErrorCode.FRAME_SIZE_ERROR
STREAM_CLOSED = ErrorCode.STREAM_CLOSED
PING = frame(frames.PING, 0, 0, b"12345678")


@pytest.fixture
def client():
    return Client()


def ended(client: Client) -> ErrorCode:
    """Return why the connection has ended."""
    assert client.connection.closed
    return goaway(client.sent()).code


def reset(client: Client) -> tuple[int, ErrorCode]:
    """Return the stream that was reset, and why; the connection goes on."""
    client.send(PING)
    *_, error, pong = client.sent()
    assert (error.kind, pong.kind) == (frames.RST_STREAM, frames.PING)
    return error.stream_id, error.code


def test_greeting_offers_windows_and_limits():
    client = Client(greet=False)
    settings, update = client.sent()
    values = dict(frames.SETTING.iter_unpack(settings.payload))
    assert values[Setting.INITIAL_WINDOW_SIZE] == Limits().stream_window
    assert values[Setting.MAX_CONCURRENT_STREAMS] == Limits().max_streams
    assert frames.word(update.payload) == Limits().connection_window - 65_535


@pytest.mark.parametrize("cut", [1, 3, 24, 30])
def test_preface_may_come_in_pieces(cut):
    client = Client(greet=False)
    greeting = frames.PREFACE + frames.settings_frame({})
    for at in range(0, len(greeting), cut):
        client.send(greeting[at : at + cut])
    assert client.sent()[-1].flags == frames.ACK


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", b"\x16\x03\x01"])
def test_other_protocols_are_told_off(start):
    client = Client(greet=False)
    client.send(start)
    assert ended(client) is PROTOCOL_ERROR


@pytest.mark.parametrize("first", [PING, frame(frames.SETTINGS, frames.ACK, 0), data(1, b"")])
def test_settings_come_first(first):
    client = Client(greet=False)
    client.send(frames.PREFACE, first)
    assert ended(client) is PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("wire", "code"),
    [
        (data(0, b"x"), PROTOCOL_ERROR),
        (data(1, b"x"), PROTOCOL_ERROR),  # never opened
        (frame(frames.HEADERS, frames.END_HEADERS, 0, b"\x82"), PROTOCOL_ERROR),
        (frame(frames.HEADERS, frames.END_HEADERS, 2, b"\x82"), PROTOCOL_ERROR),
        (frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff"), ErrorCode.COMPRESSION_ERROR),
        (frame(frames.HEADERS, frames.END_HEADERS | frames.PADDED, 1, b""), FRAME_SIZE_ERROR),
        (frame(frames.HEADERS, frames.END_HEADERS | frames.PADDED, 1, b"\x06abcde"), PROTOCOL_ERROR),
        (frame(frames.HEADERS, frames.END_HEADERS | frames.PRIORITISED, 1, b"1234"), FRAME_SIZE_ERROR),
        (frame(frames.PRIORITY, 0, 0, b"\0\0\0\0\1"), PROTOCOL_ERROR),
        (frame(frames.RST_STREAM, 0, 0, b"\0\0\0\1"), PROTOCOL_ERROR),
        (frame(frames.RST_STREAM, 0, 1, b"\0\0\0\1"), PROTOCOL_ERROR),
        (frame(frames.RST_STREAM, 0, 1, b"\0\0\0"), FRAME_SIZE_ERROR),
        (frame(frames.SETTINGS, 0, 1), PROTOCOL_ERROR),
        (frame(frames.SETTINGS, 0, 0, b"12345"), FRAME_SIZE_ERROR),
        (frame(frames.SETTINGS, frames.ACK, 0, bytes(6)), FRAME_SIZE_ERROR),
        (frames.settings_frame({Setting.ENABLE_PUSH: 2}), PROTOCOL_ERROR),
        (frames.settings_frame({Setting.INITIAL_WINDOW_SIZE: 2**31}), ErrorCode.FLOW_CONTROL_ERROR),
        (frames.settings_frame({Setting.MAX_FRAME_SIZE: 16_383}), PROTOCOL_ERROR),
        (frames.settings_frame({Setting.MAX_FRAME_SIZE: 2**24}), PROTOCOL_ERROR),
        (frame(frames.PUSH_PROMISE, frames.END_HEADERS, 1, b"\0\0\0\2"), PROTOCOL_ERROR),
        (frame(frames.PING, 0, 1, b"12345678"), PROTOCOL_ERROR),
        (frame(frames.PING, 0, 0, b"1234567"), FRAME_SIZE_ERROR),
        (frame(frames.GOAWAY, 0, 1, bytes(8)), PROTOCOL_ERROR),
        (frame(frames.GOAWAY, 0, 0, bytes(7)), FRAME_SIZE_ERROR),
        (frame(frames.WINDOW_UPDATE, 0, 0, b"\0\0\0"), FRAME_SIZE_ERROR),
        (frame(frames.WINDOW_UPDATE, 0, 1, b"\0\0\0\1"), PROTOCOL_ERROR),
        (frame(frames.CONTINUATION, frames.END_HEADERS, 1, b"\x82"), PROTOCOL_ERROR),
        (frames.HEAD.pack(0, 16_385, frames.DATA, 0, 1), FRAME_SIZE_ERROR),
        (frames.HEAD.pack(1, 0, 77, 0, 1), FRAME_SIZE_ERROR),
    ],
)
def test_broken_frame_ends_the_connection(client, wire, code):
    client.send(wire)
    assert ended(client) is code


def test_broken_frame_in_pieces_ends_the_connection_before_it_is_whole(client):
    head = frames.HEAD.pack(0xFF, 0xFFFF, frames.DATA, 0, 1)
    client.send(head[:4])
    client.send(head[4:])
    assert ended(client) is FRAME_SIZE_ERROR


@pytest.mark.parametrize(
    ("wire", "code"),
    [
        (frame(frames.PRIORITY, 0, 1, b"\0\0\0\0"), FRAME_SIZE_ERROR),
        (frame(frames.PRIORITY, 0, 1, b"\0\0\0\1\0"), PROTOCOL_ERROR),  # depends on itself
        (frame(frames.WINDOW_UPDATE, 0, 1, b"\0\0\0\0"), PROTOCOL_ERROR),
        (frames.window_update_frame(1, frames.MAX_WINDOW), ErrorCode.FLOW_CONTROL_ERROR),
        (frame(frames.HEADERS, frames.END_HEADERS, 1, b""), PROTOCOL_ERROR),  # trailers that end nothing
    ],
)
def test_broken_frame_of_a_stream_ends_that_stream_alone(client, wire, code):
    _, other = client.open(), client.open()
    client.send(wire)
    assert reset(client) == (1, code)
    assert [call.closed for call in client.calls] == [1, 0]
    assert client.ask(other, b"hello") == ([b"hello"], None)


def test_unknown_frames_flags_and_settings_are_ignored(client):
    client.send(frame(77, 0xFF, 1, b"anything"), frame(frames.SETTINGS, 0, 0, b"\xff\xff\0\0\0\1"))
    stream = client.open()
    client.send(frame(frames.DATA, 0xF6, stream, message(b"hello")))
    assert client.answers(stream) == ([b"hello"], None)


def test_reserved_bit_of_a_stream_number_is_ignored(client):
    client.open()
    client.send(frame(frames.DATA, 0, 1 | 1 << 31, message(b"hello")))
    assert client.answers(1) == ([b"hello"], None)


def test_priority_is_accepted_and_has_no_effect(client):
    client.send(frame(frames.PRIORITY, 0, 9, b"\0\0\0\0\xff"))
    flags = frames.END_HEADERS | frames.PRIORITISED | frames.PADDED
    client.send(frame(frames.HEADERS, flags, 1, b"\x02" + b"\x80\0\0\3\x10" + client.block() + b"\0\0"))
    assert client.ask(1, b"hello") == ([b"hello"], None)


def test_header_block_may_be_continued(client):
    block = client.block()
    client.send(frame(frames.HEADERS, 0, 1, block[:10]), frame(frames.CONTINUATION, 0, 1, block[10:12]))
    client.send(frame(frames.CONTINUATION, 0, 1), frame(frames.CONTINUATION, frames.END_HEADERS, 1, block[12:]))
    assert client.ask(1, b"hello") == ([b"hello"], None)


@pytest.mark.parametrize("between", [PING, data(1, message(b"hello")), frame(frames.CONTINUATION, 0, 3)])
def test_nothing_may_come_within_a_header_block(client, between):
    client.open()
    block = client.block()
    client.send(frame(frames.HEADERS, 0, 5, block[:10]), between)
    assert ended(client) is PROTOCOL_ERROR


@pytest.mark.parametrize("piece", [b"", b"\x82"])
def test_endless_header_block_ends_the_connection(client, piece):
    client.send(frame(frames.HEADERS, 0, 1, b"\x82"), frame(frames.CONTINUATION, 0, 1, piece) * 20)
    assert ended(client) is ErrorCode.ENHANCE_YOUR_CALM


def test_small_block_that_unfolds_to_a_large_list_ends_the_connection(client):
    client.send(client.headers(1, ("x-long", "y" * 3000)))
    client.send(frame(frames.HEADERS, frames.END_HEADERS, 3, client.block() + b"\xbe" * 20))
    assert ended(client) is ErrorCode.ENHANCE_YOUR_CALM


MALFORMED = {
    ":method": ["", "CONNECT"], ":path": [""], ":scheme": [""], ":status": ["200"], ":unknown": ["1"],
    "X-Upper": ["1"], "": ["1"], "a b": ["1"], "a:b": ["1"],
    "x-line": ["1\r\n2"], "x-null": ["1\x002"], "x-blank": [" 1", "1\t"],
    "connection": ["close"], "keep-alive": ["1"], "proxy-connection": ["1"], "transfer-encoding": ["chunked"],
    "upgrade": ["h2c"], "te": ["gzip"], "host": ["another"], "content-length": ["-1", "x", "9" * 30],
}  # fmt: skip
"""Fields that no request may have, with their values."""


@pytest.mark.parametrize("field", [(name, value) for name, values in MALFORMED.items() for value in values], ids=repr)
def test_malformed_request_is_reset(client, field):
    client.send(client.headers(1, field))
    assert reset(client) == (1, PROTOCOL_ERROR)
    assert not client.calls


@pytest.mark.parametrize(
    "head",
    [
        HEAD[1:],
        (HEAD[0], HEAD[2]),
        (*HEAD[:4], HEAD[0]),
        (HEAD[4], *HEAD[:4]),
        (*HEAD, ("content-length", "1"), ("content-length", "2")),
    ],
    ids=["no method", "no scheme", "method twice", "pseudo-headers last", "two lengths"],
)
def test_malformed_list_of_fields_is_reset(client, head):
    client.send(frame(frames.HEADERS, frames.END_HEADERS, 1, client.encoder.encode(head)))
    assert reset(client) == (1, PROTOCOL_ERROR)


def test_malformed_request_leaves_the_header_table_in_step(client):
    client.send(client.headers(1, ("x-first", "one"), ("X-Upper", "1")))
    client.send(client.headers(3, ("x-first", "one")))
    assert client.ask(3, b"hello") == ([b"hello"], None)


@pytest.mark.parametrize(
    ("length", "sent", "closed"), [(9, [9], 0), (9, [4, 5], 0), (9, [10], 1), (9, [8], 1), (0, [], 0)]
)
def test_content_length_is_held_to(client, length, sent, closed):
    stream = client.open(("content-length", str(length)))
    content = message(b"stay12345")[: sum(sent)] if sum(sent) > 9 else message(b"stay")[: sum(sent)]
    for size in sent:
        piece, content = content[:size], content[size:]
        client.send(data(stream, piece))
    client.send(data(stream, b"", end=True))
    broken = [f for f in client.sent() if f.kind == frames.RST_STREAM and f.code is PROTOCOL_ERROR]
    assert len(broken) == closed


def test_content_length_of_a_request_without_a_body(client):
    client.send(client.headers(1, ("content-length", "5"), end=True))
    assert reset(client) == (1, PROTOCOL_ERROR)


def test_pseudo_headers_in_trailers_are_malformed(client):
    stream = client.open()
    flags = frames.END_HEADERS | frames.END_STREAM
    client.send(frame(frames.HEADERS, flags, stream, client.block((":path", "/"), head=())))
    assert reset(client) == (stream, PROTOCOL_ERROR)


END_OF_REQUEST = frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1)


@pytest.mark.parametrize("more", [data(1, message(b"more")), END_OF_REQUEST], ids=["data", "headers"])
def test_frames_after_the_end_of_a_request_reset_its_stream(client, more):
    stream = client.open()
    client.say(stream, b"stay", end=True)
    client.send(more)
    assert reset(client) == (stream, STREAM_CLOSED)


def test_data_on_a_stream_that_the_client_reset_is_an_error_of_that_stream_once(client):
    stream = client.open()
    client.send(rst(stream))
    client.say(stream, b"more")
    assert reset(client) == (stream, STREAM_CLOSED)
    client.say(stream, b"more")
    assert not client.sent()


def test_headers_on_a_stream_that_has_ended_end_the_connection(client):
    stream = client.open()
    client.say(stream, b"end", end=True)
    client.sent()
    client.send(client.headers(stream))
    assert ended(client) is STREAM_CLOSED


def test_new_stream_with_a_number_below_others_ends_the_connection(client):
    client.send(client.headers(5), client.headers(3))
    assert ended(client) is PROTOCOL_ERROR


def test_stream_above_the_limit_is_refused_and_may_be_tried_again():
    client = Client(Limits(max_streams=2))
    first, _, third = client.open(), client.open(), client.open()
    assert reset(client) == (third, ErrorCode.REFUSED_STREAM)
    client.send(rst(first))
    fourth = client.open()
    assert client.ask(fourth, b"hello") == ([b"hello"], None)


def test_smaller_header_table_of_the_client_is_acknowledged_in_the_next_block(client):
    client.send(frames.settings_frame({Setting.HEADER_TABLE_SIZE: 0}))
    client.decoder.max_allowed_table_size = 0
    for _ in range(2):
        stream = client.open()
        assert client.ask(stream, b"hello") == ([b"hello"], None)


@pytest.mark.parametrize("size", [2**20, 2**31 - 1])
def test_larger_header_table_of_the_client_is_not_filled(client, size):
    client.send(frames.settings_frame({Setting.HEADER_TABLE_SIZE: size}))
    for _ in range(200):
        stream = client.open(*((f"x-{number}", str(client.now)) for number in range(20)))
        assert client.ask(stream, b"hello") == ([b"hello"], None)
    assert client.decoder.header_table_size <= 4096


def test_header_values_that_are_no_utf_8_are_accepted(client):
    stream = client.open(("x-bytes", b"\xff\xfe\x80"), ("x-latin", "é".encode("latin-1")))
    assert client.ask(stream, b"hello") == ([b"hello"], None)


@pytest.mark.parametrize("changes", [b"\x20", b"\x20\x3f\xe1\x1f"])
def test_header_block_may_change_the_size_of_the_table(client, changes):
    client.send(frame(frames.HEADERS, frames.END_HEADERS, 1, changes + client.block()))
    assert client.ask(1, b"hello") == ([b"hello"], None)


@pytest.mark.parametrize("change", [b"\x20", b"\x3f\xe1\x1f"])
def test_header_block_that_changes_the_size_of_the_table_again_and_again_ends_the_connection(client, change):
    """Each costs a microsecond and one byte, and counts against no limit of the header list."""
    client.send(frame(frames.HEADERS, frames.END_HEADERS, 1, change * 3 + client.block()))
    assert ended(client) is ErrorCode.COMPRESSION_ERROR


def test_nothing_is_read_after_the_end(client):
    client.send(data(0, b""), client.headers(1), data(1, message(b"hello")))
    client.send(client.headers(3))
    assert ended(client) is PROTOCOL_ERROR
    assert not client.calls
