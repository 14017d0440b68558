# SPDX-License-Identifier: Apache-2.0
"""Compressed messages: gzip and deflate are read, others refused as the gRPC specification says, by name."""

from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

from tests.support.exchanges import request_body
from tests.support.serving import APART, PLAIN, Served, exchange, first_message, serving
from tests.support.transports import over_asyncio

pytestmark = [pytest.mark.asyncio(loop_scope="module"), over_asyncio]

PROMPT = b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % (b"worth the trouble to compress " * 50)
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
