# SPDX-License-Identifier: Apache-2.0
"""The gateway's side of very many streams at once, as a program: `many_streams.py PORT STREAMS CONNECTIONS`.

It says on standard output how far all of them are: `routed` once every request is answered, `streaming` once every
response is half through, `answered` at the end. After each but the last it waits for a line on standard input.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Iterable
from contextlib import AsyncExitStack

import grpc

from tests.support.exchanges import request_body, response_body, response_headers
from tests.support.serving import APART, Exchange, exchange, first_message

BODY_BYTES = 3 * 1024


def body(stream: int) -> bytes:
    """A chat request of that size that no other stream has."""
    request = {"model": "m", "messages": [{"role": "user", "content": f"I am {stream}."}], "user": ""}
    request["user"] = "u" * (BODY_BYTES - len(json.dumps(request)))
    return json.dumps(request).encode()


async def each(work: Iterable[Awaitable[object]]) -> None:
    await asyncio.gather(*work)


async def write_piece(call: Exchange, stream: int, third: int) -> None:
    step = BODY_BYTES // 3
    await call.write(request_body(body(stream)[third * step :][:step], end=third == 2))


async def read_request(call: Exchange, stream: int) -> None:
    assert (await call.read()).HasField("request_headers")
    back, whole = b"", False
    while not whole:
        piece = (await call.read()).request_body.response.body_mutation.streamed_response
        back, whole = back + piece.body, piece.end_of_stream
    assert back == body(stream)


async def relay(call: Exchange, piece: bytes, *, end: bool) -> None:
    await call.write(response_body(piece, end=end))
    back = (await call.read()).response_body.response.body_mutation.streamed_response
    assert (back.body, back.end_of_stream) == (piece, end)


async def begin_response(call: Exchange, stream: int) -> None:
    await call.write(response_headers())
    assert (await call.read()).HasField("response_headers")
    await relay(call, f"data: {stream}".encode(), end=False)


async def end_response(call: Exchange, stream: int) -> None:
    await relay(call, f"data: {stream} is done".encode(), end=True)
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK


async def say_and_wait(word: str) -> None:
    print(word, flush=True)  # noqa: T201  how it speaks to its parent
    await asyncio.to_thread(sys.stdin.readline)


async def main(port: int, streams: int, connections: int) -> None:
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=APART))
            for _ in range(connections)
        ]
        calls = {stream: exchange(channels[stream % connections]) for stream in range(streams)}
        await each(call.write(first_message()) for call in calls.values())
        for third in range(3):  # each waits for its next piece until all others have theirs
            await each(write_piece(call, stream, third) for stream, call in calls.items())
        await each(read_request(call, stream) for stream, call in calls.items())
        await say_and_wait("routed")
        await each(begin_response(call, stream) for stream, call in calls.items())
        await say_and_wait("streaming")
        await each(end_response(call, stream) for stream, call in calls.items())
    print("answered")  # noqa: T201  the same


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
