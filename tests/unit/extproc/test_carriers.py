# SPDX-License-Identifier: Apache-2.0
"""Both carriers return the answers and the status of the session; protocol errors are counted and logged."""

from collections.abc import Sequence
from random import Random
from urllib.parse import unquote

import pytest
from structlog.testing import capture_logs

from epp.extproc.exchange import ExchangeSettings, Fault, Faults, GatewayTraits, ProtocolError
from epp.extproc.open_streams import StreamObserver
from epp.extproc.session import Session
from epp.extproc.settings import Transport
from epp.extproc.wire import METHOD, SERVICE, ProcessingRequest
from epp.routing.director import Cause
from tests.support.carriers import serving_sessions
from tests.support.exchanges import Bench, new_bench, new_claim, request_body, request_headers
from tests.support.http2.http2_bytes import grpc_message
from tests.support.http2.raw_connection import RawConnection, connected
from tests.support.waiting import until
from tests.unit.extproc.test_session_properties import random_exchange

EXCHANGES = 60
SETTINGS = ExchangeSettings(max_body_bytes=1000)
OK, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, INTERNAL = 0, 3, 8, 13
NAMES = {OK: "OK", INVALID_ARGUMENT: "InvalidArgument"}
PATH = f"/{SERVICE}/{METHOD}"
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


def framed(message: ProcessingRequest) -> bytes:
    return grpc_message(message.SerializeToString())


async def ended(connection: RawConnection, *messages: bytes) -> Ending:
    """Return answers, status and message of the stream of these messages."""
    call, sent = connection.peer.call(PATH, *messages, end=True)
    await connection.send(sent)
    await connection.until(lambda: call.closed, "the stream has ended")
    assert call.status is not None
    return call.messages, call.status, unquote((call.trailers or call.headers).get("grpc-message", ""))


@pytest.mark.parametrize("transport", Transport)
@pytest.mark.parametrize("seed", range(4))
async def test_exchanges_are_those_of_the_session_alone(monkeypatch, transport, seed):
    monkeypatch.setattr("epp.extproc.session.SILENCE_TIMEOUT_SECONDS", 600.0)  # a slow machine is no silence
    alone, carried, traits, endings = new_bench(), new_bench(), GatewayTraits(), Endings()
    async with (
        serving_sessions(carried, transport, SETTINGS, endings) as server,
        connected(server.port) as connection,
    ):
        for messages in exchanges(seed):
            expected = without_carrier(alone, traits, messages)
            answers, code, details = await ended(connection, *map(framed, messages))
            assert (code, details) == expected[1:], messages
            assert answers == expected[0], messages
            await until(lambda: not server.open_streams, "the session is closed")  # which frees its endpoint
            assert (endings.open, endings.codes[-1]) == (0, NAMES[code])
    assert carried.in_flight == alone.in_flight == 0
    assert carried.served == alone.served
    assert carried.endings.refusals == alone.endings.refusals


@pytest.mark.parametrize("transport", Transport)
async def test_stream_that_the_gateway_gives_up_is_canceled(bench, transport):
    endings = Endings()
    async with serving_sessions(bench, transport, SETTINGS, endings) as server:
        (first, *_), *_ = exchanges(0)
        async with connected(server.port) as connection:
            _, sent = connection.peer.call(PATH, framed(first), end=False)
            await connection.send(sent)
            await until(lambda: endings.open == 1, "the stream is open")
        await until(lambda: endings.codes, "the stream has ended")
    told = {"Canceled"} if transport is Transport.ASYNCIO else {"Canceled", "OK"}  # grpcio sees an end at times
    assert endings.open == 0
    assert len(endings.codes) == 1
    assert told.issuperset(endings.codes)


SECRET = b"CANARY"
HEADERS = framed(request_headers())


def of_mode(number: int) -> ProcessingRequest:
    message = request_headers()
    message.protocol_config.request_body_mode = number
    return message


CASES = {
    "undecodable": ([HEADERS, grpc_message(b"\xff" + SECRET)], "a message of 7 bytes is not a "),
    "undecodable, long": (
        [HEADERS, grpc_message(request_body(SECRET * 1000).SerializeToString()[:-1])],
        "a message of 6007 bytes is not a ProcessingRequest",
    ),
    "out-of-order": ([HEADERS, HEADERS], "unexpected request_headers: the headers have already arrived"),
    "unknown-part": ([grpc_message(b"")], "unexpected message: None is not one of the six parts"),
    "unknown-mode": ([framed(of_mode(9))], "request_body_mode 9 is not supported"),
    "headers-not-shown": ([framed(request_body(SECRET))], "the request's headers were not shown"),
}
OF_MESSAGES = {
    "too-large": (
        [HEADERS, grpc_message(SECRET * 400_000)[:100]],
        RESOURCE_EXHAUSTED,
        "a message of 2400000 bytes: at most ",
    ),
    "unreadable": ([HEADERS, b"\x01" + HEADERS[1:]], INTERNAL, "a message is compressed, but grpc-encoding names no"),
    "unreadable, cut short": ([HEADERS, HEADERS[:20]], INTERNAL, "the request ended within a message"),
}


async def broken(bench, transport, messages):
    """Return status and message of the stream of these messages, the counts of faults, and what was logged."""
    settings = ExchangeSettings()
    async with serving_sessions(bench, transport, settings, max_receive_bytes=2**20) as server:
        with capture_logs() as logs:
            async with connected(server.port) as connection:
                _, status, said = await ended(connection, *messages)
            await until(lambda: not server.open_streams, "the session is closed")
        assert bench.in_flight == 0
        return status, said, dict(server.protocol_errors), logs


def once(fault):
    return {each.value: int(each.value == fault) for each in Fault}


@pytest.mark.parametrize("transport", Transport)
@pytest.mark.parametrize("case", CASES)
async def test_fault_of_a_gateway_ends_its_stream_with_words_a_count_and_a_log_line(bench, transport, case):
    messages, problem = CASES[case]
    status, said, counts, logs = await broken(bench, transport, messages)
    fault = case.partition(",")[0]
    assert (status, counts) == (INVALID_ARGUMENT, once(fault))
    assert problem in said
    (line,) = [line for line in logs if line["event"] == "stream closed: protocol error"]
    assert (line["log_level"], line["fault"]) == ("warning", fault)
    assert problem in line["problem"]
    assert line["peer"].startswith("ipv4:127.0.0.1:")
    assert SECRET.decode() not in repr(logs)


@pytest.mark.parametrize("case", OF_MESSAGES)
async def test_bytes_that_are_no_message_of_grpc_count_too(bench, case):
    messages, status, problem = OF_MESSAGES[case]
    found, said, counts, logs = await broken(bench, Transport.ASYNCIO, messages)
    assert (found, counts) == (status, once(case.partition(",")[0]))
    assert problem in said
    assert [line["problem"] for line in logs if "problem" in line] == [said]


def test_one_gateway_does_not_hide_the_errors_of_another():
    faults = Faults()
    with capture_logs() as logs:
        for number in range(1000):
            faults.record(ProtocolError("bad", Fault.UNDECODABLE), f"ipv4:10.0.0.1:{number}")
        faults.record(ProtocolError("other"), "ipv4:10.0.0.2:1")
    assert len(logs) == 21
    assert logs[-1]["problem"] == "other"
    assert faults.counts == once("") | {"undecodable": 1000, "out-of-order": 1}
