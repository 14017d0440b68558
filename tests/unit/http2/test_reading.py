# SPDX-License-Identifier: Apache-2.0
"""What is read of a connection in a turn of the event loop, and what in later ones."""

import asyncio

import pytest

from epp.extproc.http2.connection import Connection
from epp.extproc.http2.frames import PREFACE
from epp.extproc.http2.limits import Limits
from epp.extproc.http2.protocol import GrpcProtocol
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
