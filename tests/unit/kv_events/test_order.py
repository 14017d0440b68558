# SPDX-License-Identifier: Apache-2.0
"""The known contents of a cache are never out of date, whatever is lost, late, repeated in part, or restarted."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.pool.kv_events.events import BlockRemoved, BlockStored
from epp.pool.kv_events.order import EngineCounts, EventCounts, EventMessage, EventOrder, Received
from tests.support.kv_publisher import CLEARED, removed, stored


class World:
    """An engine with eight blocks, its messages, and what is known of it."""

    def __init__(self, *, can_replay: bool) -> None:
        self.counts = EventCounts()
        self.order = EventOrder(1, "engine", self.counts, EngineCounts(), can_replay=can_replay)
        self.now = 0.0
        self.stamp = 0
        self.known: set[int] = set()
        self.is_current = True
        self.history: list[EventMessage] = []
        self.states: list[set[int]] = [set()]
        """Contents after each number of messages."""
        self.seen: set[int] = set()
        """Contents after the newest message that was handed over."""
        self.newest = 0
        self.late: list[EventMessage] = []
        self.is_ended = False
        """Whether the engine restarted, and the end of the connection was not noticed yet."""
        self.order.connected(0.0)

    def take(self, changes: list[Received]) -> None:
        for each in changes:
            if each.has_gap or not each.is_known:
                self.known.clear()
            for event in each.events:
                if isinstance(event, BlockStored):
                    self.known.update(event.block_hashes)
                elif isinstance(event, BlockRemoved):
                    self.known.difference_update(event.block_hashes)
                else:
                    self.known.clear()
            self.is_current = each.is_current

    def saw(self, number: int) -> None:
        if number + 1 >= self.newest:
            self.newest, self.seen = number + 1, self.states[number + 1]

    def publish(self, block: int, fate: str) -> None:
        holds = set(self.states[-1])
        if block == 8:
            event, holds = CLEARED, set()
        elif block in holds:
            event = removed([block])
            holds.remove(block)
        else:
            event = stored([block], [block], size=1)
            holds.add(block)
        self.stamp += 1
        payload = msgspec.msgpack.encode([float(self.stamp), [event], 0])
        message = EventMessage(b"kv@e@m", len(self.states) - 1, payload)
        self.states.append(holds)
        self.history.append(message)
        if fate == "late":
            self.late.append(message)
        elif fate == "arrives" and not self.is_ended and self.order.replay is None:
            self.live(message)

    def live(self, message: EventMessage) -> None:
        self.saw(message.number)
        self.take(self.order.live(message, self.now))

    def arrive_late(self) -> None:
        late, self.late = self.late, []
        for message in reversed(late):
            if not self.is_ended and self.order.replay is None:
                self.live(message)

    def restart(self) -> None:
        self.history, self.states, self.late, self.is_ended = [], [set()], [], True

    def notice(self) -> None:
        self.take([self.order.disconnected()])
        self.is_ended, self.newest, self.seen = False, 0, set()
        self.order.connected(self.now)

    def reply(self, holes: set[int], *, ends: bool) -> None:
        """Answer a request for a replay; after a restart, it is the new engine that answers."""
        if self.order.replay is None:
            return
        start = self.order.attempt(self.now)
        if self.is_ended:
            self.newest, self.seen = 0, set()
        ends = ends and not (self.history and self.history[-1].number % 5 in holes)
        for message in self.history:
            if message.number >= start and message.number % 5 not in holes:
                self.saw(message.number)
                self.take(self.order.replayed(message))
        if ends and self.order.replay is not None and not holes:
            self.saw(len(self.states) - 2) if self.history else None
        self.now += 1
        self.take(self.order.reply_ended(self.now) if ends else self.order.attempt_ended(self.now))


_BLOCKS = st.sampled_from([0, 1, 2, 3, 0, 1, 2, 3, 8])
_PUBLISH = st.tuples(st.just("publish"), _BLOCKS, st.sampled_from(["arrives"] * 4 + ["is lost", "late"]))
_WHOLE_REPLY = st.tuples(st.just("reply"), st.just(frozenset()), st.just(value=True))
_REPLY = st.tuples(st.just("reply"), st.frozensets(st.integers(0, 4), max_size=2), st.booleans())
_OTHER = st.tuples(st.sampled_from(["arrive_late", "restart", "notice", "forget", "wait"]))
_STEPS = st.lists(st.one_of(*[_PUBLISH] * 6, _WHOLE_REPLY, _WHOLE_REPLY, _REPLY, _OTHER), min_size=15, max_size=60)


@settings(max_examples=200, deadline=None)
@given(st.booleans(), _STEPS)
def test_no_block_is_believed_that_the_engine_had_dropped(can_replay, steps):
    world = World(can_replay=can_replay)
    for step, *more in steps:
        match step:
            case "publish":
                world.publish(*more)
            case "reply":
                world.reply(set(more[0]), ends=more[1])
            case "forget":
                del world.history[:3]
            case "wait":
                world.now += 31
            case _:
                getattr(world, step)()
        assert not world.is_current or world.known <= world.seen


@given(st.lists(st.tuples(_BLOCKS, st.sampled_from(["arrives", "is lost"])), max_size=60))
def test_contents_are_those_of_the_engine_after_a_replay(messages):
    world = World(can_replay=True)
    for message in messages:
        world.publish(*message)
        world.reply(set(), ends=True)
    world.publish(0, "arrives")
    world.reply(set(), ends=True)
    assert world.is_current
    assert world.known == world.states[-1]


def test_replies_of_an_engine_that_restarted_are_not_taken_for_the_former_history():
    world = World(can_replay=True)
    world.reply(set(), ends=True)
    world.publish(0, "arrives")
    world.publish(0, "is lost")
    world.publish(1, "arrives")
    world.restart()
    for block in (2, 3, 4):
        world.publish(block, "is lost")
    world.reply(set(), ends=True)
    assert (world.known, world.is_current) == (set(), False)
    world.reply(set(), ends=True)
    assert (world.known, world.is_current) == ({2, 3, 4}, True)


def test_long_reply_is_complete_when_the_next_one_has_nothing_new():
    world = World(can_replay=True)
    for block in range(1_000):
        world.publish(block % 8, "is lost")
    history, world.history = world.history, world.history[:900]
    world.reply(set(), ends=True)
    assert not world.is_current
    world.history = history
    world.reply(set(), ends=True)
    assert (world.known, world.is_current) == (world.states[-1], True)


def test_message_that_comes_late_empties_the_cache():
    world = World(can_replay=False)
    world.publish(0, "late")
    world.publish(1, "arrives")
    world.publish(1, "is lost")
    world.arrive_late()
    world.publish(2, "arrives")
    assert world.known == {2}
