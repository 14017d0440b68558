# SPDX-License-Identifier: Apache-2.0
"""Reads and writes of a connection in one iteration of the event loop."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.extproc.http2.connection import Connection
from epp.extproc.http2.frames import LARGEST_FRAME, PREFACE
from epp.extproc.http2.limits import Limits
from epp.extproc.http2.protocol import FEW_PIECES, MANY_BYTES, GrpcProtocol, some_of
from epp.extproc.http2.server import GrpcServer
from tests.support.http2.recorded_transport import RecordedTransport

MUCH = bytes(100_000)


class Scene:
    """Two connections of a server; what each is given is noted in place of being read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = GrpcServer({}, Limits())
        self.taken: list[tuple[str, int]] = []
        self.wires, self.protocols = {"a": RecordedTransport(), "b": RecordedTransport()}, {}
        self.fault: Exception | None = None
        names: dict[Connection, str] = {}
        for name, wire in self.wires.items():
            protocol = GrpcProtocol({}, Limits(), self.server, asyncio.get_running_loop())
            protocol.connection_made(wire)
            protocol.data_received(PREFACE)
            names[protocol._connection] = name  # noqa: SLF001  the only way to know whose it is
            self.protocols[name] = protocol

        def receive(connection: Connection, data: bytes, now: float, is_over: object) -> bytes:
            if self.fault is not None:
                raise self.fault
            self.taken.append((names[connection], len(data)))
            return b""

        monkeypatch.setattr(Connection, "receive", receive)

    def give(self, name: str, data: bytes) -> None:
        """Have a connection read this while another one waits for its turn."""
        self.server.scheduler.wait(lambda: None)
        self.protocols[name].data_received(data)

    def end(self) -> None:
        for protocol in self.protocols.values():
            protocol.connection_lost(None)


@pytest.fixture
async def scene(monkeypatch):
    scene = Scene(monkeypatch)
    yield scene
    scene.end()


async def test_much_waits_for_its_turn_and_no_more_is_read_meanwhile(scene):
    scene.give("a", MUCH)
    assert (scene.taken, scene.wires["a"].calls) == ([], ["pause_reading"])
    scene.give("b", b"little")
    assert scene.taken == [("b", 6)]
    await asyncio.sleep(0)
    assert scene.taken[1:] == [("a", len(MUCH))]
    assert scene.wires["a"].calls == ["pause_reading", "resume_reading"]


async def test_connection_whose_turn_ends_in_a_fault_is_cut_off_and_others_are_read(scene):
    """Memory may be missing; a connection that was left as it is would wait for ever."""
    errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(type(context["exception"])))
    scene.give("a", MUCH)
    scene.fault = MemoryError()
    await asyncio.sleep(0)
    assert scene.wires["a"].calls == ["pause_reading", "abort"]
    assert errors == [MemoryError]
    scene.fault = None
    scene.give("b", MUCH)
    await asyncio.sleep(0)
    assert scene.taken == [("b", len(MUCH))]


PIECES = st.lists(
    st.tuples(st.integers(1, LARGEST_FRAME), st.integers(1, 40)).map(
        lambda drawn: [bytes([drawn[1]]) * drawn[0]] * drawn[1]
    ),
    max_size=6,
).map(lambda groups: [piece for group in groups for piece in group])


@given(PIECES)
def test_all_is_written_in_order_and_never_much_at_once(pieces):
    out, written = [*pieces], []
    while out:
        written.append(some_of(out))
    assert b"".join(written) == b"".join(pieces)
    assert all(len(each) < max(MANY_BYTES, FEW_PIECES * LARGEST_FRAME) + LARGEST_FRAME for each in written)


def test_answer_of_many_frames_takes_several_turns():
    out = [bytes(LARGEST_FRAME)] * 100
    sizes = []
    while out:
        sizes.append(len(some_of(out)))
    assert sizes[0] == MANY_BYTES
    assert sum(sizes) == 100 * LARGEST_FRAME
