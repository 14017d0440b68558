# SPDX-License-Identifier: Apache-2.0
"""Compressed messages: gzip and deflate are read, others refused as the gRPC specification says, by name."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from epp.extproc.wire import METHOD, SERVICE
from tests.support.exchanges import BODY, request_body
from tests.support.http2 import http2_bytes as h2
from tests.support.http2.http2_peer import Call
from tests.support.http2.raw_connection import connected
from tests.support.serving import APART, PLAIN, Served, answer, ask, exchange, first_message, serving
from tests.support.transports import over_asyncio

pytestmark = [pytest.mark.asyncio(loop_scope="module"), over_asyncio]

PATH = f"/{SERVICE}/{METHOD}"
FIRST = first_message().SerializeToString()
PROMPT = b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % (b"worth the trouble to compress " * 50)
WHOLE = request_body(BODY, end=True).SerializeToString()
COMPRESSIONS = [grpc.Compression.Gzip, grpc.Compression.Deflate]
OK, INTERNAL, UNIMPLEMENTED = 0, 13, 12


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(module_sim) -> AsyncIterator[Served]:
    async with serving(module_sim, PLAIN) as served:
        yield served


@pytest.mark.parametrize("compression", COMPRESSIONS)
async def test_compressing_client_is_served(served, compression):
    address = f"127.0.0.1:{served.grpc_port}"
    async with grpc.aio.insecure_channel(address, options=APART, compression=compression) as channel:
        call = exchange(channel)
        await call.write(first_message())  # too short for it
        await call.write(request_body(PROMPT, end=True))
        assert (await call.read()).WhichOneof("response") == "request_headers"
        assert (await call.read()).request_body.response.body_mutation.streamed_response.body == PROMPT
        call.cancel()


@pytest.mark.parametrize("compression", COMPRESSIONS)
async def test_compressing_client_with_threads_is_served(served, compression):
    def check() -> grpc.StatusCode:
        request = HealthCheckRequest(service=SERVICE + "x" * 1000)  # worth compressing
        address = f"127.0.0.1:{served.grpc_port}"
        with grpc.insecure_channel(address, options=APART, compression=compression) as channel:
            with pytest.raises(grpc.RpcError) as raised:
                HealthStub(channel).Check(request, timeout=60)
            return raised.value.code()

    assert await asyncio.to_thread(check) is grpc.StatusCode.NOT_FOUND  # it was read: there is no such service


async def test_call_may_go_uncompressed_on_a_channel_that_compresses(served):
    address = f"127.0.0.1:{served.grpc_port}"
    async with grpc.aio.insecure_channel(address, options=APART, compression=grpc.Compression.Gzip) as channel:
        check = HealthStub(channel).Check(HealthCheckRequest(), compression=grpc.Compression.NoCompression)
        assert (await check).status == HealthCheckResponse.SERVING


async def test_client_that_only_accepts_compression_is_served(served):
    """Each client of grpcio accepts gzip and deflate, and says so."""
    async with served.channel() as channel:
        call = exchange(channel)
        await ask(call)
        await answer(call)
        assert "grpc-encoding" not in dict(await call.initial_metadata())


async def called(served: Served, *messages: bytes, **fields: str) -> Call:
    """Send messages with their prefixes; return the call once it has ended."""
    async with connected(served.grpc_port) as connection:
        more = [(name.replace("_", "-"), value) for name, value in fields.items()]
        call, opened = connection.peer.call(PATH, *messages, end=True, more=more)
        await connection.send(opened)
        await connection.until(lambda: call.closed, "the call has ended")
        return call


def said(call: Call) -> dict[str, str]:
    return call.headers | call.trailers


UNKNOWN = ("snappy", "zstd", "identity,gzip", "identityidentity", "GZIP", "x" * 5_000)
REFUSED = {
    **{(1, encoding): UNIMPLEMENTED for encoding in UNKNOWN},
    **{(flag, encoding): INTERNAL for flag in (2, 3, 128, 255) for encoding in ("identity", "gzip")},
    (1, ""): INTERNAL,
    (1, "identity"): INTERNAL,
}
"""By flag of a message and `grpc-encoding`, if any, the status of the call."""


async def test_message_that_cannot_be_read_is_refused_with_its_reason(served):
    for (flag, encoding), status in REFUSED.items():
        fields = {"grpc_encoding": encoding} if encoding else {}
        call = await called(served, h2.grpc_message(FIRST, compressed=flag), **fields)  # it is never read
        assert (call.status, call.messages) == (status, []), (flag, encoding)
        reason = encoding[:40] if status == UNIMPLEMENTED else "flag" if flag > 1 else "grpc-encoding names no"
        assert reason in said(call)["grpc-message"]
        if status == UNIMPLEMENTED:
            assert said(call)["grpc-accept-encoding"] == "identity,deflate,gzip"


@pytest.mark.parametrize("name", ["grpc_encoding", "grpc_accept_encoding"])
async def test_plain_messages_are_read_and_answered_whatever_encodings_the_client_names(served, name):
    """The flag of a message decides; a client that names an encoding need not use it."""
    for encoding in ("gzip", "zstd", "identity", *(("", "q=0;nonsense") if "accept" in name else ())):
        call = await called(served, h2.grpc_message(FIRST), h2.grpc_message(WHOLE), **{name: encoding})
        assert (call.status, len(call.messages)) == (OK, 2)  # the flag of each is checked where they are taken apart
        assert "grpc-encoding" not in said(call)
