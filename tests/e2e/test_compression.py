# SPDX-License-Identifier: Apache-2.0
"""Messages that a client compresses, by gzip and by deflate."""

import grpc
import pytest

from tests.support.serving import APART, PLAIN, request, serving
from tests.support.transports import over_asyncio

PROMPT = b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % (b"worth the trouble to compress " * 50)


@over_asyncio
@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressing_client_is_served(sim, compression):
    async with serving(sim, PLAIN) as served:
        address = f"127.0.0.1:{served.grpc_port}"
        async with grpc.aio.insecure_channel(address, options=APART, compression=compression) as channel:
            call = await request(channel, PROMPT)  # the headers are too short for it
            assert (await call.read()).WhichOneof("response") == "request_headers"
            assert (await call.read()).request_body.response.body_mutation.streamed_response.body == PROMPT
            call.cancel()
