# SPDX-License-Identifier: Apache-2.0
"""Bodies of very many elements on the wire, on both carriers: whole and in order, while others are served."""

import pytest

from tests.support.exchanges import request_body, request_headers, response_body, response_headers
from tests.support.serving import PLAIN, destination_of, exchange, serving

MESSAGES = b'{"model":"m","messages":[' + b'{"role":"user","content":"a"},' * 20_000 + b"{}]}"
ANSWER = b'{"choices":[' + b"[]," * 100_000 + b'0],"usage":{"prompt_tokens":7,"completion_tokens":9}}'


@pytest.mark.parametrize("transport", ["asyncio", "grpcio"])
async def test_dense_request_and_response_pass_unchanged_beside_others(sim, transport):
    async with serving(sim, PLAIN, f"--transport={transport}") as picker, picker.channel() as channel:
        call = exchange(channel)
        await call.write(request_headers())
        await call.write(request_body(MESSAGES[:300_000], end=False))
        await call.write(request_body(MESSAGES[300_000:], end=True))
        assert await destination_of(channel) == sim.address
        reply = await call.read()
        mutation = reply.request_headers.response.header_mutation
        fields = {option.header.key: option.header.raw_value for option in mutation.set_headers}
        assert fields["x-gateway-destination-endpoint"].decode() == sim.address
        assert await _body(call, "request_body", len(MESSAGES)) == MESSAGES
        await call.write(response_headers())
        assert (await call.read()).WhichOneof("response") == "response_headers"
        await call.write(response_body(ANSWER, end=True))
        assert await destination_of(channel) == sim.address
        assert await _body(call, "response_body", len(ANSWER)) == ANSWER
        page = await picker.metrics()
        assert sum(page["llm_d_epp_request_output_tokens_sum"].values()) == 9


async def _body(call, kind, size):
    found = b""
    while len(found) < size:
        reply = await call.read()
        found += getattr(reply, kind).response.body_mutation.streamed_response.body
    return found
