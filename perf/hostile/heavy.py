# SPDX-License-Identifier: Apache-2.0
"""Expensive messages: deep and dense bodies, very many headers, a model to rewrite in megabytes."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import grpc

from epp.extproc.wire import ProcessingRequest, ProcessingResponse
from perf.hostile.scene import STALL_SECONDS, Campaign, scene
from tests.support.exchanges import header_map, request_body, request_headers, response_body, response_headers
from tests.support.serving import APART, exchange, first_message

_PIECE = 64 * 1024
_PATIENCE_SECONDS = 120.0
_REWRITE = {"x-llm-d-model-name-rewrite": "other"}


def _with_headers(fields: Mapping[str, str], path: str = "/v1/chat/completions") -> ProcessingRequest:
    message = first_message()
    message.request_headers.CopyFrom(request_headers(path).request_headers)
    message.request_headers.headers.MergeFrom(header_map(dict(fields)))
    return message


def _chat(size: int) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * size}]}).encode()


HEAVY: Mapping[str, Callable[[], tuple[ProcessingRequest, bytes]]] = {
    "1,000,000 brackets": lambda: (first_message(), b'{"model":"m","prompt":' + b"[" * 1_000_000),
    "2,000,000 token ids": lambda: (
        _with_headers({}, "/v1/completions"),
        b'{"model":"m","prompt":[' + b"1," * 1_999_999 + b"1]}",
    ),
    "100,000 headers": lambda: (_with_headers({f"x-h{number}": "v" for number in range(100_000)}), _chat(10)),
    "a header of 500 KB": lambda: (_with_headers({"x-h" + "_" * 250_000: "v" * 250_000}), _chat(10)),
    "2 MB to be rewritten": lambda: (_with_headers(_REWRITE), _chat(2_000_000)),
    "30 MB of text": lambda: (first_message(), _chat(30_000_000)),
}


async def heavy_messages(campaign: Campaign) -> None:
    """1,000,000 brackets, 2,000,000 token ids, 100,000 headers, 2 MB to rewrite, 30 MB of text, one by one."""
    async with scene(campaign.judge) as picker:
        for name in HEAVY:
            async with picker.beside() as seen:
                await asyncio.sleep(0.5)
                said = await picker.attack(
                    "heavy", "send", port=picker.served.grpc_port, kind=name, times=campaign.of(20, 2)
                )
            campaign.judge.shows(f"{name}: answered as {', '.join(said['ends'])}", said["sent"])
            campaign.judge.exactly("  requests lost beside it", len(seen.failures), 0)
            campaign.judge.at_least("  requests answered beside it", seen.count, 1)
            campaign.judge.within("  longest beside it", seen.longest, STALL_SECONDS)
        await picker.judge_rest(grown_mib=96.0)


async def send(port: int, kind: str, times: int) -> dict[str, Any]:
    """Send the message and its body, and complete the exchange."""
    message, body = HEAVY[kind]()
    ends = set()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=APART) as channel:
        for _ in range(times):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                ends.add(await _exchanged(channel, message, body))
    return {"sent": times, "ends": sorted(ends)}


async def _exchanged(channel: grpc.aio.Channel, message: ProcessingRequest, body: bytes) -> str:
    """Return its end: `routed`, an HTTP status, or the gRPC status of the stream."""
    call = exchange(channel)
    try:
        await call.write(message)
        for at in range(0, len(body), _PIECE):
            await call.write(request_body(body[at : at + _PIECE], end=at + _PIECE >= len(body)))
        while isinstance(answer := await call.read(), ProcessingResponse):
            if answer.HasField("immediate_response"):
                return str(answer.immediate_response.status.code)
            if answer.request_body.response.body_mutation.streamed_response.end_of_stream:
                break
        else:
            return (await call.code()).name
        await call.write(response_headers())
        await call.write(response_body(b"done", end=True))
        await call.done_writing()
        while await call.read() != grpc.aio.EOF:
            pass
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return (await call.code()).name
    return "routed"
