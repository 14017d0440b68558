# SPDX-License-Identifier: Apache-2.0
"""A gateway that breaks the protocol is told so, counted by what it did, and logged, on both carriers alike."""

import pytest
from structlog.testing import capture_logs

from epp.extproc.exchange import ExchangeSettings, Fault, Faults, ProtocolError
from epp.extproc.server import ExtProcServer
from epp.extproc.session import Session
from epp.extproc.settings import ServerSettings, Transport
from epp.extproc.wire import METHOD, SERVICE, ProcessingRequest
from tests.support.exchanges import new_bench, request_body, request_headers
from tests.support.http2.http2_bytes import grpc_message
from tests.support.http2.raw_connection import connected
from tests.support.waiting import until

SECRET = b"CANARY"
INVALID_ARGUMENT, INTERNAL, RESOURCE_EXHAUSTED = 3, 13, 8
HEADERS = grpc_message(request_headers().SerializeToString())


def of_mode(number: int) -> bytes:
    message = request_headers()
    message.protocol_config.request_body_mode = number
    return message.SerializeToString()


def whole(message: ProcessingRequest) -> bytes:
    return grpc_message(message.SerializeToString())


CASES = {
    "undecodable": ([HEADERS, grpc_message(b"\xff" + SECRET)], INVALID_ARGUMENT, "a message of 7 bytes that is no "),
    "undecodable, long": (
        [HEADERS, grpc_message(request_body(SECRET * 1000).SerializeToString()[:-1])],
        INVALID_ARGUMENT,
        "a message of 6007 bytes that is no ProcessingRequest",
    ),
    "out-of-order": ([HEADERS, HEADERS], INVALID_ARGUMENT, "unexpected request_headers: its headers have come already"),
    "unknown-part": ([grpc_message(b"")], INVALID_ARGUMENT, "unexpected message: None is none of the six parts"),
    "unknown-mode": ([grpc_message(of_mode(9))], INVALID_ARGUMENT, "request_body_mode 9 is not supported"),
    "headers-not-shown": ([whole(request_body(SECRET))], INVALID_ARGUMENT, "the request's headers were not shown"),
}
OF_MESSAGES = {
    "too-large": (
        [HEADERS, grpc_message(SECRET * 400_000)[:100]],
        RESOURCE_EXHAUSTED,
        "a message of 2400000 bytes: at most ",
    ),
    "unreadable": ([HEADERS, b"\x01" + HEADERS[1:]], INTERNAL, "a message is compressed, and grpc-encoding names no"),
    "unreadable, cut short": ([HEADERS, HEADERS[:20]], INTERNAL, "the request ended within a message"),
}


async def broken(transport, messages):
    """Return status and message of the stream of these messages, the counts of faults, and what was logged."""
    bench = new_bench()
    settings = ServerSettings("127.0.0.1:0", secure=False, transport=transport, max_receive_bytes=2**20)
    server = ExtProcServer(
        lambda traits, claim, _: Session(bench.director, ExchangeSettings(), traits, claim), settings
    )
    await server.start()
    try:
        with capture_logs() as logs:
            async with connected(server.port) as connection:
                call, sent = connection.peer.call(f"/{SERVICE}/{METHOD}", *messages, end=True)
                await connection.send(sent)
                await connection.until(lambda: call.closed, "the stream has ended")
            await until(lambda: not server.open_streams, "the session is closed")
        assert bench.in_flight == 0
        trailers = call.trailers or call.headers
        return call.status, trailers.get("grpc-message", ""), dict(server.protocol_errors), logs
    finally:
        await server.stop()


def once(fault):
    return {each.value: int(each.value == fault) for each in Fault}


@pytest.mark.parametrize("transport", Transport)
@pytest.mark.parametrize("case", CASES)
async def test_fault_of_a_gateway_ends_its_stream_with_words_a_count_and_a_log_line(transport, case):
    messages, status, problem = CASES[case]
    found, said, counts, logs = await broken(transport, messages)
    fault = case.partition(",")[0]
    assert (found, counts) == (status, once(fault))
    assert problem in said
    (line,) = [line for line in logs if line["event"] == "stream closed: protocol error"]
    assert (line["log_level"], line["fault"]) == ("warning", fault)
    assert problem in line["problem"]
    assert line["peer"].startswith("ipv4:127.0.0.1:")
    assert SECRET.decode() not in repr(logs)


@pytest.mark.parametrize("case", OF_MESSAGES)
async def test_bytes_that_are_no_message_of_grpc_count_too(case):
    messages, status, problem = OF_MESSAGES[case]
    found, said, counts, logs = await broken(Transport.ASYNCIO, messages)
    assert (found, counts) == (status, once(case.partition(",")[0]))
    assert problem in said
    assert [line["problem"] for line in logs if "problem" in line] == [said]


def test_one_gateway_does_not_hide_the_errors_of_another():
    faults = Faults()
    with capture_logs() as logs:
        for number in range(1000):
            faults.note(ProtocolError("bad", Fault.UNDECODABLE), f"ipv4:10.0.0.1:{number}", 1000.0)
        faults.note(ProtocolError("other"), "ipv4:10.0.0.2:1", 1000.0)
    assert len(logs) == 21
    assert logs[-1]["problem"] == "other"
    assert faults.counts == once("") | {"undecodable": 1000, "out-of-order": 1}
