# SPDX-License-Identifier: Apache-2.0
"""A model server as a program that starts and dies fast: standard library alone, so that little memory is to be freed.

    python mortal_server.py PORT NAME

It answers chat completions, streamed or whole, with a token in each millisecond, and has a metrics page like vLLM's.
A prompt that begins with `500` is answered with that status, one with `503` too; `die` ends the process, and `cut` the
connection.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys

TOKEN_SECONDS = 0.001
_GAUGES = b"vllm:num_requests_waiting{} 0\nvllm:num_requests_running{} %d\nvllm:kv_cache_usage_perc{} 0.1\n"
_EVENT = b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" x"}}]}\n\n'
_DONE = b"data: [DONE]\n\n"
_WHOLE = {"object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}}]}


class Server:
    def __init__(self, name: str) -> None:
        self._name = name.encode()
        self._running = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError), contextlib.closing(writer):
            while head := await reader.readuntil(b"\r\n\r\n"):
                await self._answer(head, reader, writer)
                await writer.drain()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = await _body(head, reader)
        if not body:
            writer.write(self._head(200, b"text/plain", _GAUGES % self._running))
            return
        asked = json.loads(body)
        prompt, tokens = asked["messages"][0]["content"], asked.get("max_tokens", 1)
        begins = prompt.partition(" ")[0]
        self._running += 1
        try:
            if begins == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            elif begins == "cut":
                writer.close()
            elif begins in {"500", "503"}:
                writer.write(self._head(int(begins), b"application/json", b"{}"))
            elif asked.get("stream"):
                await self._stream(tokens, writer)
            else:
                await asyncio.sleep(tokens * TOKEN_SECONDS)
                writer.write(self._head(200, b"application/json", json.dumps(_WHOLE).encode()))
        finally:
            self._running -= 1

    async def _stream(self, tokens: int, writer: asyncio.StreamWriter) -> None:
        writer.write(self._start(200, b"text/event-stream") + b"transfer-encoding: chunked\r\n\r\n")
        for _ in range(tokens):
            await asyncio.sleep(TOKEN_SECONDS)
            writer.write(_chunk(_EVENT))
            await writer.drain()
        writer.write(_chunk(_DONE) + b"0\r\n\r\n")

    def _head(self, status: int, kind: bytes, body: bytes) -> bytes:
        return self._start(status, kind) + b"content-length: %d\r\n\r\n%s" % (len(body), body)

    def _start(self, status: int, kind: bytes) -> bytes:
        return b"HTTP/1.1 %d X\r\nserver: mortal\r\nx-sim-server: %s\r\ncontent-type: %s\r\n" % (
            status,
            self._name,
            kind,
        )


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    """Return the body of a request, whether it has a length or is chunked."""
    headers = head.lower()
    if b"content-length: " in headers:
        return await reader.readexactly(int(headers.partition(b"content-length: ")[2].split(b"\r\n")[0]))
    pieces = b""
    while b"transfer-encoding: chunked" in headers:
        size = int(await reader.readline(), 16)
        piece = await reader.readexactly(size + 2)
        if not size:
            break
        pieces += piece[:-2]
    return pieces


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def main(port: int, name: str) -> None:
    server = await asyncio.start_server(Server(name).serve, "127.0.0.1", port, backlog=1024)
    print("listens", flush=True)  # noqa: T201  to whoever started it
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
