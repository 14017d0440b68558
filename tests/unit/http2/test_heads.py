# SPDX-License-Identifier: Apache-2.0
"""Heads of requests, and the cache of decoded header blocks."""

import contextlib
from urllib.parse import unquote

from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from epp.extproc.http2.service import Status, field, trailers_block
from epp.extproc.http2.streams import HeadReader, MalformedError, leaves_table, read_head

PSEUDO = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a.B/C")]
# An Envoy's first block of a connection, and its later ones: the path is a literal that is never put into the table.
FIRST = bytes.fromhex(
    "8304a560b5773fa5d05b3b98855cbe5315761c8bf7657c1e525b2a1d1aec390a841ec635d8721508418b2d5256735498ab313a96cf864002"
    "7465864d833505b11f5f8b1d75d0620d263d4c4d6564"
)
LATER = bytes.fromhex("8304a560b5773fa5d05b3b98855cbe5315761c8bf7657c1e525b2a1d1aec390a841ec635d8721508c086bfbe")
FIELDS = st.lists(
    st.tuples(
        st.sampled_from(["x-a", "x-b", "user-agent", "grpc-encoding"]),
        st.text("abc", max_size=3),
        st.sampled_from([0, 1]),
    ),
    max_size=4,
)


def test_envoys_later_blocks_are_decoded_once():
    reader = HeadReader(16_384)
    first, second = reader.request(FIRST), reader.request(LATER)
    assert first == second
    assert first.path == "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
    assert first.is_grpc
    assert (leaves_table(FIRST), leaves_table(LATER)) == (False, True)
    assert reader.request(LATER) is second


def test_block_means_something_else_once_the_table_has_changed():
    encoder = Encoder()
    reader = HeadReader(16_384)
    first = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/one"), (b"x-a", b"1")]
    reader.request(encoder.encode(first))
    same = encoder.encode(first)  # indexes 62 and 63: /one and x-a
    assert reader.request(same).path == "/one"
    other = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/two"), (b"x-a", b"1")]
    block = encoder.encode(other)  # puts /two where x-a was
    assert reader.request(block).path == "/two"
    decoder = Decoder()
    for block in (Encoder().encode(first), same):
        decoder.decode(block)
    assert b"\xbe" in same


@given(st.lists(FIELDS, max_size=12))
def test_cached_heads_are_those_that_decoding_gives(requests):
    encoder, decoder, reader = Encoder(), Decoder(), HeadReader(16_384)
    for fields in requests:
        block = encoder.encode(
            [(name.decode(), value.decode(), False) for name, value in PSEUDO]
            + [(name, value, bool(sensitive)) for name, value, sensitive in fields]
        )
        expected = read_head((bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True))
        assert reader.request(block) == expected


@given(st.binary(max_size=40))
def test_block_that_leaves_the_table_does_so(block):
    decoder = Decoder()
    decoder.decode(Encoder().encode([("x-a", "1"), ("x-b", "2")]))
    before = list(decoder.header_table.dynamic_entries), decoder.header_table_size
    if leaves_table(block):
        with contextlib.suppress(Exception):  # which ends the connection
            decoder.decode(block, raw=True)
        assert (list(decoder.header_table.dynamic_entries), decoder.header_table_size) == before


@given(st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=8)), max_size=6))
def test_any_list_of_fields_is_read_or_malformed(fields):
    try:
        head = read_head([*PSEUDO, *fields])
    except MalformedError:
        return
    assert head.path == "/a.B/C"


def test_metadata_has_the_names_that_are_wanted_and_no_long_values():
    reader = HeadReader(16_384, {"traceparent", "baggage", "tracestate"})
    head = reader.request(
        Encoder().encode([*PSEUDO, (b"traceparent", b"00-1"), (b"authorization", b"secret"), (b"baggage", b"b" * 2049)])
    )
    assert head.metadata == {"traceparent": "00-1"}


def test_metadata_of_a_block_that_was_decoded_before_is_its_own():
    encoder, reader = Encoder(), HeadReader(16_384, {"traceparent"})
    sent = ["00-1", "00-1", "00-2", "00-1"]
    told = [reader.request(encoder.encode([*PSEUDO, (b"traceparent", value.encode())])).metadata for value in sent]
    assert told == [{"traceparent": value} for value in sent]


@given(st.text())
def test_any_message_of_a_status_survives_the_wire(text):
    decoded = dict(Decoder().decode(trailers_block(Status.INTERNAL, text)))
    sent = text.encode("utf-8", "replace")[:1024].decode("utf-8", "ignore")
    assert unquote(decoded.get("grpc-message", "")) == sent
    assert decoded.get("grpc-message", "").isascii()


@given(st.binary(min_size=1, max_size=300).map(bytes.hex), st.binary(max_size=300).map(bytes.hex))
def test_field_is_decoded_and_leaves_the_table_as_it_is(name, value):
    decoder = Decoder()
    assert decoder.decode(field(name.encode(), value.encode())) == [(name, value)]
    assert not decoder.header_table.dynamic_entries
