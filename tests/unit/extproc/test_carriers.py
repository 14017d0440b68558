# SPDX-License-Identifier: Apache-2.0
"""Both carriers are to a gateway what the session is: the same answers, byte for byte, and the same end."""

from collections.abc import Sequence
from random import Random
from urllib.parse import unquote

import pytest

from epp.extproc.exchange import ExchangeSettings, GatewayTraits, ProtocolError
from epp.extproc.open_streams import StreamObserver
from epp.extproc.server import ExtProcServer
from epp.extproc.session import Session
from epp.extproc.settings import ServerSettings, Transport
from epp.extproc.wire import METHOD, SERVICE, ProcessingRequest
from epp.routing.director import Cause
from tests.support.exchanges import Bench, new_bench, new_claim
from tests.support.http2.http2_bytes import grpc_message
from tests.support.http2.raw_connection import RawConnection, connected
from tests.support.waiting import until
from tests.unit.extproc.test_session_properties import random_exchange

EXCHANGES = 60
SETTINGS = ExchangeSettings(max_body_bytes=1000)
OK, INVALID_ARGUMENT = 0, 3
NAMES = {OK: "OK", INVALID_ARGUMENT: "InvalidArgument"}
Ending = tuple[list[bytes], int, str]


class Endings(StreamObserver):
    """How streams ended."""

    def __init__(self) -> None:
        self.open = 0
        self.codes: list[str] = []

    def opened(self) -> None:
        self.open += 1

    def ended(self, code: str, seconds: float) -> None:
        self.open -= 1
        self.codes.append(code)
        assert 0 <= seconds < 600


def exchanges(seed: int) -> list[list[ProcessingRequest]]:
    random = Random(seed)
    return [[message for message in random_exchange(random) if message is not None] for _ in range(EXCHANGES)]


def without_carrier(bench: Bench, traits: GatewayTraits, messages: Sequence[ProcessingRequest]) -> Ending:
    session = Session(bench.director, SETTINGS, traits, new_claim())
    answers: list[bytes] = []
    try:
        for message in messages:
            if not session.done:
                answers += [answer for answer in session.receive(message) if isinstance(answer, bytes)]
    except ProtocolError as error:
        session.close(Cause.ERROR)
        return answers, INVALID_ARGUMENT, str(error)
    session.close()
    return answers, OK, ""


async def with_carrier(connection: RawConnection, messages: Sequence[ProcessingRequest]) -> Ending:
    framed = [grpc_message(message.SerializeToString()) for message in messages]
    call, sent = connection.peer.call(f"/{SERVICE}/{METHOD}", *framed, end=True)
    await connection.send(sent)
    await connection.until(lambda: call.closed, "the stream has ended")
    assert call.status is not None
    said = (call.trailers or call.headers).get("grpc-message", "")
    return call.messages, call.status, unquote(said)


@pytest.mark.parametrize("transport", Transport)
@pytest.mark.parametrize("seed", range(4))
async def test_exchanges_are_those_of_the_session_alone(monkeypatch, transport, seed):
    monkeypatch.setattr("epp.extproc.session.SILENCE_TIMEOUT_SECONDS", 600.0)  # a slow machine is no silence
    alone, carried, traits = new_bench(), new_bench(), GatewayTraits()
    server = ExtProcServer(
        lambda traits, claim, _: Session(carried.director, SETTINGS, traits, claim),
        ServerSettings("127.0.0.1:0", secure=False, transport=transport),
        endings := Endings(),
    )
    await server.start()
    try:
        async with connected(server.port) as connection:
            for messages in exchanges(seed):
                expected = without_carrier(alone, traits, messages)
                answers, code, details = await with_carrier(connection, messages)
                assert (code, details) == expected[1:], messages
                assert answers == expected[0], messages
                await until(lambda: not server.open_streams, "the session is closed")  # which frees its endpoint
                assert (endings.open, endings.codes[-1]) == (0, NAMES[code])
        assert carried.in_flight == alone.in_flight == 0
        assert carried.served == alone.served
        assert carried.endings.refusals == alone.endings.refusals
    finally:
        await server.stop()


@pytest.mark.parametrize("transport", Transport)
async def test_stream_that_the_gateway_gives_up_is_canceled(transport):
    bench, endings = new_bench(), Endings()
    server = ExtProcServer(
        lambda traits, claim, _: Session(bench.director, SETTINGS, traits, claim),
        ServerSettings("127.0.0.1:0", secure=False, transport=transport),
        endings,
    )
    await server.start()
    try:
        (first, *_), *_ = exchanges(0)
        async with connected(server.port) as connection:
            _, sent = connection.peer.call(f"/{SERVICE}/{METHOD}", grpc_message(first.SerializeToString()), end=False)
            await connection.send(sent)
            await until(lambda: endings.open == 1, "the stream is open")
        await until(lambda: endings.codes, "the stream has ended")
        told = {"Canceled"} if transport is Transport.ASYNCIO else {"Canceled", "OK"}  # grpcio sees an end at times
        assert endings.open == 0
        assert len(endings.codes) == 1
        assert told.issuperset(endings.codes)
    finally:
        await server.stop()
