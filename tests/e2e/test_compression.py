# SPDX-License-Identifier: Apache-2.0
"""Compressed messages: refused as the gRPC specification says, by name, and only where something is compressed."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Callable

import grpc
import http2_bytes as h2
import pytest
import pytest_asyncio
from bench import BODY, request_body
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from http2_peer import Call
from raw_connection import connected
from serving import APART, PLAIN, Served, answer, ask, destination_of, exchange, first_message, serving
from transports import over_asyncio
from world import FAST

from epp.extproc.wire import METHOD, SERVICE
from epp.sim import running

pytestmark = [pytest.mark.asyncio(loop_scope="module"), over_asyncio]

PATH = f"/{SERVICE}/{METHOD}"
FIRST = first_message().SerializeToString()
LONG = request_body(b"what a client takes the trouble to compress " * 50, end=False)
WHOLE = request_body(BODY, end=True).SerializeToString()
COMPRESSIONS = [grpc.Compression.Gzip, grpc.Compression.Deflate]
OK, INTERNAL, UNIMPLEMENTED = 0, 13, 12


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[Served]:
    async with running(FAST) as sim, serving(sim, PLAIN) as served:
        yield served


def assert_refused(code: grpc.StatusCode, details: str | None) -> None:
    """As far as grpcio shows it: the encodings that are understood instead it keeps to itself."""
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert details is not None
    assert "are not supported: send them plain" in details


@pytest.mark.parametrize("compression", COMPRESSIONS)
async def test_compressing_client_is_refused_and_the_next_is_served(served, compression):
    address = f"127.0.0.1:{served.grpc_port}"
    async with grpc.aio.insecure_channel(address, options=APART, compression=compression) as channel:
        call = exchange(channel)
        await call.write(first_message())  # too short for it
        await call.write(LONG)
        assert_refused(await call.code(), await call.details())
    async with served.channel() as channel:
        await destination_of(channel)


@pytest.mark.parametrize("compression", COMPRESSIONS)
async def test_compressing_client_with_threads_is_refused(served, compression):
    def check() -> grpc.RpcError:
        request = HealthCheckRequest(service=SERVICE + "x" * 1000)  # worth compressing
        address = f"127.0.0.1:{served.grpc_port}"
        with grpc.insecure_channel(address, options=APART, compression=compression) as channel:
            with pytest.raises(grpc.RpcError) as raised:
                HealthStub(channel).Check(request, timeout=60)
            return raised.value

    error = await asyncio.to_thread(check)
    assert_refused(error.code(), error.details())


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


SQUEEZE: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "snappy": bytes,  # never read, so that any bytes will do
    "zstd": bytes,
    "identity,gzip": gzip.compress,
    "identityidentity": bytes,
    "GZIP": gzip.compress,
    "x" * 5_000: bytes,
}


@pytest.mark.parametrize("encoding", SQUEEZE, ids=lambda encoding: encoding[:20])
async def test_compressed_message_is_refused_by_the_name_of_its_encoding(served, encoding):
    call = await called(served, h2.grpc_message(SQUEEZE[encoding](FIRST), compressed=1), grpc_encoding=encoding)
    assert call.status == UNIMPLEMENTED
    assert said(call)["grpc-accept-encoding"] == "identity"
    assert encoding[:40] in said(call)["grpc-message"]
    assert not call.messages


async def test_compressed_message_after_plain_ones_is_refused(served):
    squeezed = h2.grpc_message(gzip.compress(WHOLE), compressed=1)
    call = await called(served, h2.grpc_message(FIRST), squeezed, grpc_encoding="gzip")
    assert call.status == UNIMPLEMENTED
    assert said(call)["grpc-accept-encoding"] == "identity"


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
