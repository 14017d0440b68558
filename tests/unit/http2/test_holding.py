# SPDX-License-Identifier: Apache-2.0
"""Buffered bytes of a connection, timeouts of its calls, and fair scheduling of its input."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from epp.extproc.http2 import frames
from epp.extproc.http2.fair_scheduler import MOST_ENDINGS
from epp.extproc.http2.limits import GRACE_SECONDS, BufferedBytes, Limits
from epp.extproc.http2.service import ErrorCode, Status
from tests.support.http2.frame_client import Client, data, message, parse

MIB = 1024 * 1024
LIMITS = Limits(max_message_bytes=MIB)
HALF = message(b"x" * MIB)[: MIB // 2]


def pour(client: Client, stream_id: int, content: bytes) -> None:
    for at in range(0, len(content), 16_000):
        client.send(data(stream_id, content[at : at + 16_000]))


def test_call_for_whose_message_there_is_no_room_ends_and_says_so():
    held = BufferedBytes("bytes", 800_000)
    client = Client(LIMITS, capacity=held)
    first, second = client.open(), client.open()
    pour(client, first, HALF)
    pour(client, second, HALF)
    said, trailers = client.answers(second)
    assert client.calls[1].given_way == [Status.RESOURCE_EXHAUSTED]
    assert said == [b"given way"]
    assert trailers["grpc-status"] == str(Status.RESOURCE_EXHAUSTED)
    assert held.used == len(HALF) - 5


def test_oldest_call_ends_for_another_in_a_turn_of_its_own():
    now = [0.0]
    held = BufferedBytes("bytes", 800_000, clock=lambda: now[0])
    client = Client(LIMITS, capacity=held)
    first, second = client.open(), client.open()
    pour(client, first, HALF)
    now[0] = 2 * GRACE_SECONDS
    pour(client, second, HALF)
    assert [call.given_way for call in client.calls] == [[], []]
    client.pass_time(0)
    assert [call.given_way for call in client.calls] == [[Status.RESOURCE_EXHAUSTED], []]
    assert client.answers(first)[1]["grpc-status"] == str(Status.RESOURCE_EXHAUSTED)


def test_answers_that_the_client_does_not_take_are_counted():
    held = BufferedBytes("bytes", 8 * MIB)
    client = Client(LIMITS, capacity=held)
    stream = client.open()
    pour(client, stream, message(b"y" * 300_000))
    client.sent()
    unsent = 300_005 - frames.DEFAULT_WINDOW
    assert held.used == unsent
    client.send(frames.window_update_frame(0, MIB), frames.window_update_frame(stream, 100_000))
    assert held.used == unsent - 100_000
    client.send(frames.window_update_frame(stream, MIB))
    assert held.used == 0


def test_call_of_which_nothing_more_comes_is_ended_in_time_and_no_other():
    client = Client(Limits(stall_seconds=60, keepalive_seconds=10_000))
    half, waiting, idle = client.open(), client.open(), client.open()
    client.send(data(half, message(b"hello")[:6]))
    client.calls[1].awaits_more = True
    client.now += 59
    client.say(waiting, b"on time")
    client.connection.check(client.now)
    assert [call.given_way for call in client.calls] == [[], [], []]
    client.now += 2
    client.connection.check(client.now)
    assert [call.given_way for call in client.calls] == [[Status.DEADLINE_EXCEEDED], [], []]
    client.now += 60
    client.connection.check(client.now)
    assert client.calls[1].given_way == [Status.DEADLINE_EXCEEDED]
    assert client.calls[2].given_way == []
    assert idle


def test_call_whose_answers_are_not_read_is_reset_in_time():
    client = Client(Limits(write_stall_seconds=60, keepalive_seconds=10_000))
    stream = client.open()
    pour(client, stream, message(b"y" * 300_000))
    client.sent()
    for seconds, expected in ((0, []), (30, []), (31, [ErrorCode.CANCEL])):
        client.now += seconds
        client.connection.check(client.now)
        resets = [frame.code for frame in client.sent() if frame.kind == frames.RST_STREAM]
        assert resets == expected


def test_thousands_of_late_calls_end_in_portions():
    client = Client(Limits(stall_seconds=60, keepalive_seconds=10_000))
    for _ in range(2 * MOST_ENDINGS + 1):
        client.open()
        client.calls[-1].awaits_more = True
    client.now += 61
    assert [client.connection.check(client.now) for _ in range(3)] == [0, 0, 10]  # seconds until the next check
    assert client.connection.open_streams == 0


def test_thousands_of_calls_of_a_lost_connection_are_closed_in_portions():
    client = Client()
    for _ in range(2 * MOST_ENDINGS + 1):
        client.open()
    client.connection.lose()
    assert 0 < client.connection.open_streams < 2 * MOST_ENDINGS + 1
    client.pass_time(0)
    client.pass_time(0)
    assert client.connection.open_streams == 0
    assert all(call.closed == 1 for call in client.calls)


@given(turns=st.lists(st.integers(0, 6), min_size=1, max_size=12), cuts=st.lists(st.integers(1, 400), max_size=8))
def test_what_is_handled_in_turns_has_the_answers_of_all_at_once(turns, cuts):
    sent = b""
    for number in range(1, 31, 2):
        sent += Client().headers(number) + data(number, message(b"hi %d" % number)) + data(number, b"", end=True)
    at_once, in_turns = Client(), Client()
    at_once.send(sent)
    for cut in [*cuts, len(sent)]:
        piece, sent = sent[:cut], sent[cut:]
        while piece:
            left = [turns[0]]
            turns = [*turns[1:], turns[0]]

            def is_over(left=left) -> bool:
                left[0] -= 1
                return left[0] < 0

            piece = in_turns.connection.receive(piece, in_turns.now, is_over)
    assert parse(b"".join(in_turns.connection.out)) == parse(b"".join(at_once.connection.out))
    assert [call.received for call in in_turns.calls] == [call.received for call in at_once.calls]


class Holding(RuleBasedStateMachine):
    """Streams begin, go on, end, are reset and give way in any order; the account of all is what they hold."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.held = BufferedBytes("bytes", MIB, clock=lambda: self.now)
        self.client = Client(Limits(max_message_bytes=MIB, stall_seconds=60, keepalive_seconds=1e6), capacity=self.held)
        self.rest: dict[int, bytes] = {}

    @rule(size=st.integers(0, 200_000))
    def begin(self, size: int) -> None:
        stream = self.client.open()
        self.rest[stream] = message(b"z" * size)

    @precondition(lambda self: self.rest)
    @rule(choice=st.randoms(use_true_random=False), size=st.integers(1, 60_000))
    def go_on(self, choice, size: int) -> None:
        stream = choice.choice(list(self.rest))
        pour(self.client, stream, self.rest[stream][:size])
        self.rest[stream] = self.rest[stream][size:]
        self._forget_ended()

    @precondition(lambda self: self.rest)
    @rule(choice=st.randoms(use_true_random=False))
    def reset(self, choice) -> None:
        stream = choice.choice(list(self.rest))
        del self.rest[stream]
        self.client.send(frames.rst_stream_frame(stream, ErrorCode.CANCEL))

    @rule(size=st.integers(1, 100_000))
    def widen(self, size: int) -> None:
        open_streams = list(self.client.connection._streams)  # noqa: SLF001  the windows of those that are there
        self.client.send(
            frames.window_update_frame(0, size), *(frames.window_update_frame(s, size) for s in open_streams)
        )

    @rule(seconds=st.floats(0, 70))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.client.pass_time(seconds)
        self.client.connection.check(self.client.now)
        self._forget_ended()

    def _forget_ended(self) -> None:
        self.client.sent()
        there = self.client.connection._streams  # noqa: SLF001  the same
        self.rest = {stream: rest for stream, rest in self.rest.items() if stream in there}

    @invariant()
    def every_byte_is_counted(self) -> None:
        streams = self.client.connection._streams.values()  # noqa: SLF001  the same
        assert self.held.used == sum(s.inbox.size + s.unsent for s in streams if not s.account.closed)
        assert self.held.used <= MIB + 200_005  # answers are there, room or not

    def teardown(self) -> None:
        self.client.connection.lose()
        while self.client.connection.open_streams:
            self.client.pass_time(0)
        assert self.held.used == 0


TestHolding = Holding.TestCase
