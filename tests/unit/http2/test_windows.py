# SPDX-License-Identifier: Apache-2.0
"""Both flow-control windows, both ways, under any sequence of steps of a client that keeps the rules.

The peer of these tests holds the server to its windows on every frame.
"""

from collections import deque

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.http2.echo_service import PATH, SMALL, EchoServer, Hold, answers_to
from tests.support.http2.http2_bytes import Setting, grpc_message, ping
from tests.support.http2.http2_peer import Call

MOST_CALLS = 6
CONTENT = st.binary(min_size=1, max_size=40)
MESSAGES = st.one_of(
    st.builds(lambda content: b"e" + content, CONTENT),
    st.builds(lambda content: b"e" + content * 1_000, CONTENT),
    st.builds(lambda content: b"n" + content * 1_000, CONTENT),
    st.builds(lambda content: b"t" + content * 100, CONTENT),
    st.builds(lambda content: b"b" + content[:8], CONTENT),
    st.builds(lambda content: b"h" + content, CONTENT),
)


class Sender:
    """What a client still has to send on one call, and what it has sent."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.sent: list[bytes] = []
        self.pending: deque[bytes] = deque()
        self.ending = False

    @property
    def expected(self) -> list[bytes]:
        return [answer for n, message in enumerate(self.sent, start=1) for answer in answers_to(n, message)]


class Conversation(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.server = EchoServer()
        self.peer = self.server.peer
        self.senders: list[Sender] = []

    def pick(self, data: st.DataObject) -> Sender:
        return data.draw(st.sampled_from([sender for sender in self.senders if not sender.call.finished]))

    @property
    def unfinished(self) -> bool:
        return any(not sender.call.finished for sender in self.senders)

    @precondition(lambda self: len(self.senders) < MOST_CALLS)
    @rule(count=st.integers(1, MOST_CALLS))
    def open(self, count: int) -> None:
        for _ in range(min(count, MOST_CALLS - len(self.senders))):
            call, opened = self.peer.call(PATH)
            self.senders.append(Sender(call))
            self.server.feed(opened)

    @precondition(lambda self: self.unfinished)
    @rule(
        data=st.data(),
        messages=st.lists(MESSAGES, min_size=1, max_size=5),
        size=st.integers(1, 20_000),
        frames=st.integers(1, 20),
        pad=st.none() | st.integers(0, 255),
    )
    def send(self, data: st.DataObject, messages: list[bytes], size: int, frames: int, pad: int | None) -> None:
        sender = self.pick(data)
        if not sender.ending:
            sender.sent += messages
            sender.pending += map(grpc_message, messages)
        for _ in range(frames):
            self.push(sender, size, pad)

    @precondition(lambda self: self.unfinished)
    @rule(data=st.data(), size=st.integers(1, 20_000))
    def send_more(self, data: st.DataObject, size: int) -> None:
        self.push(self.pick(data), size, None)

    @precondition(lambda self: self.unfinished)
    @rule(data=st.data(), rarely=st.integers(0, 9))
    def end(self, data: st.DataObject, rarely: int) -> None:
        if rarely == 0:
            sender = self.pick(data)
            sender.ending = True
            self.push(sender, 20_000, None)

    @precondition(lambda self: self.senders)
    @rule(data=st.data(), increment=st.integers(1, 100_000))
    def widen_stream(self, data: st.DataObject, increment: int) -> None:
        call = data.draw(st.sampled_from(self.senders)).call
        self.server.feed(self.peer.grant(increment, call))

    @rule(increment=st.integers(1, 300_000))
    def widen_connection(self, increment: int) -> None:
        self.server.feed(self.peer.grant(increment))

    @rule(size=st.integers(0, 200_000), frame=st.integers(16_384, 60_000))
    def change_settings(self, size: int, frame: int) -> None:
        self.server.feed(self.peer.change({Setting.INITIAL_WINDOW_SIZE: size, Setting.MAX_FRAME_SIZE: frame}))

    @rule(table=st.sampled_from([0, 100, 4096, 65_536]))
    def change_table(self, table: int) -> None:
        self.server.feed(self.peer.change({Setting.HEADER_TABLE_SIZE: table}))

    @precondition(lambda self: self.server.holds)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        holds: list[Hold] = self.server.holds
        self.server.let_go(data.draw(st.sampled_from(holds)))

    @rule(payload=st.binary(min_size=8, max_size=8))
    def ask(self, payload: bytes) -> None:
        self.server.feed(ping(payload))
        assert self.peer.pongs[-1] == payload

    @precondition(lambda self: self.senders)
    @rule(data=st.data(), rarely=st.integers(0, 5))
    def cancel(self, data: st.DataObject, rarely: int) -> None:
        if rarely:
            return
        sender = data.draw(st.sampled_from(self.senders))
        if not sender.call.closed:
            self.server.feed(self.peer.cancel(sender.call))
        self.senders.remove(sender)

    @invariant()
    def nothing_is_wrong(self) -> None:
        assert self.peer.goaway is None
        assert not self.peer.in_the_middle_of_a_frame
        assert not self.peer.unacknowledged
        for sender in self.senders:
            assert sender.call.reset is None

    # how it is done

    def push(self, sender: Sender, size: int, pad: int | None) -> None:
        """Send as much of what is due as the windows allow, in a frame of that size."""
        call = sender.call
        if call.finished:
            return
        room = min(size, self.peer.room(call) - (0 if pad is None else pad + 1))
        piece = b""
        while sender.pending and len(piece) < room:
            taken = sender.pending[0][: room - len(piece)]
            piece += taken
            rest = sender.pending.popleft()[len(taken) :]
            if rest:
                sender.pending.appendleft(rest)
        end = sender.ending and not sender.pending
        if piece or end:
            self.server.feed(self.peer.send(call, piece, end=end, pad=pad if room > 0 else None))

    def teardown(self) -> None:
        """Open all windows wide, and let everything end: each call gets its answers, and the client its windows."""
        self.server.feed(self.peer.change({Setting.INITIAL_WINDOW_SIZE: 2**30}), self.peer.grant(2**30))
        for sender in self.senders:
            sender.ending = True
        stuck = 0
        while stuck < 3:  # without a step that got anything further
            before = self.state()
            self.server.let_all_go()
            for sender in self.senders:
                if not sender.call.finished:
                    self.push(sender, 20_000, None)
            stuck = stuck + 1 if self.state() == before else 0
        for sender in self.senders:
            assert sender.call.finished, "the windows do not let the client end"
            assert sender.call.status == 0
            assert sender.call.messages == sender.expected
        self.server.assert_released()
        assert self.peer.send_window >= SMALL.connection_window // 2
        self.nothing_is_wrong()

    def state(self) -> object:
        return [(len(sender.call.data), len(sender.pending), sender.call.closed) for sender in self.senders]


TestConversation = Conversation.TestCase
