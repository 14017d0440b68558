# SPDX-License-Identifier: Apache-2.0
"""Compressed messages: gzip and deflate are read, others refused as the gRPC specification says, by name."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from epp.extproc.wire import METHOD, SERVICE
from epp.lab.sim import running
from tests.support.exchanges import BODY, request_body
from tests.support.http2 import http2_bytes as h2
from tests.support.http2.http2_peer import Call
from tests.support.http2.raw_connection import connected
from tests.support.serving import APART, PLAIN, Served, answer, ask, exchange, first_message, serving
from tests.support.transports import over_asyncio
from tests.support.world import FAST

pytestmark = [pytest.mark.asyncio(loop_scope="module"), over_asyncio]

PATH = f"/{SERVICE}/{METHOD}"
FIRST = first_message().SerializeToString()
PROMPT = b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % (b"worth the trouble to compress " * 50)
WHOLE = request_body(BODY, end=True).SerializeToString()
COMPRESSIONS = [grpc.Compression.Gzip, grpc.Compression.Deflate]
OK, INTERNAL, UNIMPLEMENTED, EXHAUSTED = 0, 13, 12, 8


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[Served]:
    async with running(FAST) as sim, serving(sim, PLAIN) as served:
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


@pytest.mark.parametrize("encoding", ["snappy", "zstd", "identity,gzip", "identityidentity", "GZIP", "x" * 5_000])
async def test_compressed_message_is_refused_by_the_name_of_its_encoding(served, encoding):
    call = await called(served, h2.grpc_message(FIRST, compressed=1), grpc_encoding=encoding)  # it is never read
    assert call.status == UNIMPLEMENTED
    assert said(call)["grpc-accept-encoding"] == "identity,deflate,gzip"
    assert encoding[:40] in said(call)["grpc-message"]
    assert not call.messages


@pytest.mark.parametrize(("encoding", "squeeze"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_compressed_message_after_plain_ones_is_read(served, encoding, squeeze):
    squeezed = h2.grpc_message(squeeze(WHOLE), compressed=1)
    call = await called(served, h2.grpc_message(FIRST), squeezed, grpc_encoding=encoding)
    assert (call.status, len(call.messages)) == (OK, 2)


async def test_bomb_is_refused_by_its_size_once_it_is_decompressed(served):
    bomb = h2.grpc_message(gzip.compress(bytes(12 * 2**20)), compressed=1)
    call = await called(served, h2.grpc_message(FIRST), bomb, grpc_encoding="gzip")
    assert call.status == EXHAUSTED
    assert "once it is decompressed" in said(call)["grpc-message"]


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "identity"])
async def test_plain_messages_are_served_whatever_the_encoding(served, encoding):
    """The flag of a message decides; a client that names an encoding need not use it."""
    call = await called(served, h2.grpc_message(FIRST), h2.grpc_message(WHOLE), grpc_encoding=encoding)
    assert (call.status, len(call.messages)) == (OK, 2)


@pytest.mark.parametrize("accepted", ["gzip", "identity,deflate,gzip", "zstd", "", "q=0;nonsense"])
async def test_answers_are_plain_whatever_encodings_the_client_accepts(served, accepted):
    call = await called(served, h2.grpc_message(FIRST), h2.grpc_message(WHOLE), grpc_accept_encoding=accepted)
    assert (call.status, len(call.messages)) == (OK, 2)  # the flag of each is checked where they are taken apart
    assert "grpc-encoding" not in said(call)


@pytest.mark.parametrize("encoding", [None, "identity"])
async def test_compressed_message_without_an_encoding_is_an_error_of_the_client(served, encoding):
    fields = {} if encoding is None else {"grpc_encoding": encoding}
    call = await called(served, h2.grpc_message(gzip.compress(FIRST), compressed=1), **fields)
    assert call.status == INTERNAL
    assert "grpc-encoding names no compression" in said(call)["grpc-message"]


@pytest.mark.parametrize("flag", [2, 3, 128, 255])
@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_flag_that_is_neither_0_nor_1_is_an_error_of_the_client(served, flag, encoding):
    call = await called(served, h2.grpc_message(FIRST, compressed=flag), grpc_encoding=encoding)
    assert call.status == INTERNAL
    assert "flag" in said(call)["grpc-message"]
