# SPDX-License-Identifier: Apache-2.0
"""TLS of the server, against a client without a socket that can renew its keys."""

import asyncio
import ssl
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from epp.extproc.http2.fair_scheduler import FairScheduler
from epp.extproc.http2.limits import Limits, Rate, RateLimitedLog
from epp.extproc.http2.tls_session import TlsRecords, TlsSession
from epp.extproc.tls import self_signed, server_context
from tests.support.http2.recorded_transport import RecordedTransport
from tests.support.http2.renewing_client import RenewingClient, library
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(library is None, reason="there is no OpenSSL beside Python's own")
KEY, CERTIFICATE = self_signed()
RECORDS_IN_A_TURN = 16


class Upper(asyncio.Protocol):
    """The protocol above."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.received: list[bytes] = []
        self.events: list[str] = []

    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received.append(data)

    def eof_received(self) -> None:
        self.events.append("eof")

    def connection_lost(self, exc) -> None:
        self.events.append("lost")


class Short(FairScheduler):
    """Others wait all the time."""

    def ends(self, now: float) -> float:
        return now


class Scene:
    """A session, what is above and below it, and its client."""

    def __init__(self) -> None:
        self.wire, self.upper, self.client = RecordedTransport(), Upper(), RenewingClient()
        self.session = TlsSession(
            server_context(KEY, CERTIFICATE, ssl.TLSVersion.TLSv1_3),
            lambda: self.upper,
            Limits(empty_records=Rate(1000, 0)),
            warnings=RateLimitedLog(),
            scheduler=Short(),
        )
        self.session.connection_made(self.wire)

    def shake_hands(self) -> None:
        while not self.client.shake_hands():
            self.flow()
        self.flow()
        assert self.upper.transport is not None

    def flow(self) -> None:
        """Take what each has for the other there."""
        self.session.data_received(self.client.leaving())
        self.client.arrived(self.wire.sent)
        self.wire.sent = b""

    @property
    def text(self) -> bytes:
        return b"".join(self.upper.received)


@pytest.fixture
async def scene():
    scene = Scene()
    scene.shake_hands()
    yield scene
    scene.session.connection_lost(None)
    scene.client.close()


async def test_content_goes_both_ways(scene):
    scene.client.write(b"ping")
    scene.flow()
    assert scene.text == b"ping"
    scene.upper.transport.write(b"pong")
    scene.flow()
    assert scene.client.read() == b"pong"


@pytest.mark.parametrize("ask", [False, True])
async def test_client_may_renew_its_keys_now_and_then(scene, ask):
    for number in range(100):
        scene.client.renew(ask=ask)
        scene.client.write(b"%02d" % number)
        scene.flow()
        scene.upper.transport.write(b"!")
        scene.flow()
    assert scene.text == b"".join(b"%02d" % number for number in range(100))
    assert scene.client.read() == b"!" * 100
    assert not scene.wire.is_closing()


async def test_many_records_are_decrypted_in_turns(scene):
    for number in range(3 * RECORDS_IN_A_TURN):
        scene.client.write(b"%02d" % number)
    scene.flow()
    assert len(scene.text) == 2 * RECORDS_IN_A_TURN
    await asyncio.sleep(0)
    assert len(scene.text) == 4 * RECORDS_IN_A_TURN
    await asyncio.sleep(0)
    assert scene.text == b"".join(b"%02d" % number for number in range(3 * RECORDS_IN_A_TURN))


@pytest.mark.parametrize("ask", [False, True])
async def test_flood_of_new_keys_takes_few_of_them_in_a_turn_and_ends_the_connection(scene, ask):
    for _ in range(3000):
        scene.client.renew(ask=ask)
    flood = scene.client.leaving()
    turns = 0
    with capture_logs() as logs:
        scene.session.data_received(flood)
        while not scene.wire.is_closing():
            await asyncio.sleep(0)
            turns += 1
    assert turns == 1000 // RECORDS_IN_A_TURN  # 1000 are allowed at once, and the 63rd turn has the 1001st
    assert [log["problem"] for log in logs] == ["too many TLS records without data, such as new keys"]
    assert len(scene.wire.sent) < 64 * 1024, "what a client that reads nothing makes us keep"


async def test_reading_pauses_while_much_waits_for_its_turn(scene):
    for _ in range(6000):
        scene.client.write(b"x")
    scene.flow()
    assert scene.wire.calls == ["pause_reading"]
    await until(lambda: len(scene.text) == 6000, "all data")
    assert scene.wire.calls[-1] == "resume_reading"


async def test_protocol_that_pauses_is_given_nothing(scene):
    scene.upper.transport.pause_reading()
    scene.client.write(b"later")
    scene.flow()
    assert not scene.text
    scene.upper.transport.resume_reading()
    await asyncio.sleep(0)
    assert scene.text == b"later"


async def test_end_of_the_client_waits_for_what_came_before(scene):
    for _ in range(2 * RECORDS_IN_A_TURN):
        scene.client.write(b"x")
    scene.flow()
    assert scene.session.eof_received(), "the transport stays open"
    assert scene.upper.events == []
    await asyncio.sleep(0)
    assert len(scene.text) == 2 * RECORDS_IN_A_TURN
    assert scene.upper.events == ["eof"]
    assert scene.wire.calls[-1] == "close"


async def test_close_says_so_and_lets_the_client_read_it(scene):
    scene.upper.transport.write(b"bye")
    scene.upper.transport.close()
    assert scene.wire.calls == ["write_eof", "resume_reading"]
    scene.client.arrived(scene.wire.sent)
    assert scene.client.read() == b"bye"
    scene.upper.transport.write(b"too late")
    scene.client.write(b"x")
    scene.session.data_received(scene.client.leaving())
    assert not scene.text


async def test_close_and_abort_of_a_lost_connection_do_nothing(scene):
    scene.wire.abort()
    scene.upper.transport.close()
    scene.session.connection_lost(None)
    scene.session.abort()
    assert scene.wire.calls == ["abort"]


async def test_bytes_that_are_no_tls_end_the_connection():
    scene = Scene()
    scene.session.data_received(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" * 100)
    assert scene.wire.is_closing()
    assert scene.upper.transport is None
    scene.session.connection_lost(None)
    assert scene.session.settled.done()
    scene.client.close()


async def test_forged_record_ends_the_connection(scene):
    scene.session.data_received(b"\x17\x03\x03\x00\x16" + bytes(22))
    assert scene.wire.is_closing()
    scene.session.connection_lost(None)
    assert scene.upper.events == ["lost"]


@given(sizes=st.lists(st.integers(0, 300), max_size=20), cuts=st.lists(st.integers(0, 3000)), most=st.integers(1, 5))
def test_records_are_followed_however_bytes_are_cut(sizes, cuts, most):
    stream = b"".join(b"\x17\x03\x03" + size.to_bytes(2, "big") + bytes(size) for size in sizes)
    ends, at = set(), 0
    for size in sizes:
        at += 5 + size
        ends.add(at)
    records, seen = TlsRecords(), 0
    bounds = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    for start, stop in pairwise(bounds):
        piece, at = stream[start:stop], 0
        while at < len(piece):
            before, at = at, records.take(piece, at, most)
            assert at > before
            assert records.ended == len([end for end in ends if start + before < end <= start + at])
            assert at == len(piece) or (records.ended == most and start + at in ends)
            seen += records.ended
    assert seen == len(sizes)
