# SPDX-License-Identifier: Apache-2.0
"""The effect of received bytes does not depend on how they are cut or interleaved."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.support.http2 import http2_bytes as h2
from tests.support.http2.echo_service import PATH, SMALL, EchoServer, answers_to
from tests.support.http2.frame_mixes import mixed_frames
from tests.support.http2.http2_bytes import Setting, grpc_message
from tests.support.http2.http2_peer import Peer

WIDE = {Setting.INITIAL_WINDOW_SIZE: 2**30}


def opened_wide(server: EchoServer) -> None:
    server.feed(server.peer.grant(2**30))


def in_pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


def outcome(pieces: Sequence[bytes]) -> object:
    """All that a client hears, and all that calls heard."""
    server = EchoServer(greet=False)
    said = bytearray()
    with capture_logs():
        for piece in pieces:
            server.connection.receive(piece, server.now)
            said += b"".join(server.connection.out)
            server.connection.out.clear()
        server.lose()
    server.assert_released()
    frames = [
        frame._replace(payload=frame.payload[:8]) if frame.kind == h2.Kind.GOAWAY else frame  # without the text
        for frame in h2.read_frames(said)
    ]
    assert not said, "the last frame is not whole"
    return frames, [(call.received, call.half_closed) for call in server.calls], server.connection.closed


@given(st.integers(0, 2**32), st.integers(0, 5), st.lists(st.integers(0, 2**20), max_size=30))
def test_any_cutting_gives_the_same_answers(seed, faults, cuts):
    data = b"".join(mixed_frames(seed, frames=40, faults=faults))
    assert outcome(in_pieces(data, cuts)) == outcome([data])


LETTERS = st.sampled_from([b"e", b"n", b"t"])
CONTENTS = st.binary(max_size=300)


@given(
    st.lists(st.lists(st.tuples(LETTERS, CONTENTS), max_size=6), min_size=1, max_size=8),
    st.lists(st.integers(0, 7), max_size=100),
    st.integers(1, 200),
)
def test_any_interleaving_gives_each_stream_its_own_answers_in_order(streams, turns, size):
    server = EchoServer(SMALL, WIDE)
    opened_wide(server)
    calls, frames = [], []
    for messages in streams:
        call, head = server.peer.call(PATH)
        whole = b"".join(grpc_message(letter + content) for letter, content in messages)
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)] or [b""]
        calls.append(call)
        server.feed(head)
        frames.append([(piece, number == len(pieces)) for number, piece in enumerate(pieces, start=1)])
    for turn in [*turns, *(number for number in range(len(streams)) for _ in frames[number])]:
        if turn < len(frames) and frames[turn]:
            piece, end = frames[turn].pop(0)
            server.feed(server.peer.send(calls[turn], piece, end=end))
    for call, messages in zip(calls, streams, strict=True):
        expected = [
            answer
            for number, (letter, content) in enumerate(messages, start=1)
            for answer in answers_to(number, letter + content)
        ]
        assert (call.status, call.messages) == (0, expected)
    server.assert_released()


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=10))
def test_bytes_of_any_kind_end_in_a_goaway_or_in_silence(noise, cuts):
    for start in (b"", Peer().greeting()):
        server = EchoServer(greet=False)
        server.connection.receive(start, server.now)
        for piece in in_pieces(noise, cuts):
            server.connection.receive(piece, server.now)
        server.peer.unacknowledged.extend({} for _ in range(100))
        server.peer.receive(b"".join(server.connection.out))
        assert server.connection.closed == (server.peer.goaway is not None)
        server.connection.out.clear()
        server.lose()
        server.assert_released()
