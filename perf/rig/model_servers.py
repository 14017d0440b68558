# SPDX-License-Identifier: Apache-2.0
"""Cheap model servers, as a program: one port on every loopback address, with fixed answers.

With the header `x-bench-pieces: COUNT`, a request is answered with COUNT server-sent events, one write for each.
The metrics page is that of a real vLLM; one number changes each time, like the CPU time of a process.
"""

import asyncio
import re
from pathlib import Path
from typing import Any

import uvloop

from perf.rig.orders import many_descriptors, obey

PAGE = Path(__file__).parents[2] / "tests" / "data" / "vllm-0.32" / "metrics-busy.txt"
PIECE_SECONDS = 0.004
"""Time between two events of a response, long enough for Envoy to read each separately."""
_END = b"\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_JSON = (
    b'{"id":"chatcmpl-819ce61cc55f6c29","object":"chat.completion","created":1795188068,"model":"tiny","choices":'
    b'[{"index":0,"message":{"role":"assistant","content":"The sky is blue because of Rayleigh scattering."},'
    b'"logprobs":null,"finish_reason":"stop","stop_reason":null}],"usage":{"prompt_tokens":100,"total_tokens":110,'
    b'"completion_tokens":10}}'
)
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENT = (
    b'data: {"id":"chatcmpl-819ce61cc55f6c29","object":"chat.completion.chunk","created":1795188068,"model":"tiny",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
)
_USAGE = (
    b'data: {"id":"chatcmpl-819ce61cc55f6c29","object":"chat.completion.chunk","created":1795188068,"model":"tiny",'
    b'"choices":[],"usage":{"prompt_tokens":100,"total_tokens":600,"completion_tokens":500}}\n\n'
)
_GAUGES = rb"(?m)^vllm:num_requests_(?:running|waiting)\{[^}]*\} [\d.]+$"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def response(content: bytes, content_type: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n" % (content_type, len(content))
    return head + content


def _template(page: bytes, *values: int) -> bytes:
    """Return the response with a page that has placeholders of fixed length for these values."""
    size = len(page % values)
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\ncontent-length: %d\r\n\r\n"
        % size
    )
    return head + page


JSON = response(_JSON, b"application/json")
EVENT = chunk(_EVENT)
LAST = chunk(_USAGE) + chunk(b"data: [DONE]\n\n") + _LAST_CHUNK


class Pages:
    """The metrics page, and the number of its requests."""

    def __init__(self) -> None:
        self.count = 0
        self.moving = False
        """Whether the gauges change each time, as those of a busy server."""
        page = PAGE.read_bytes().replace(b"%", b"%%")
        still = re.sub(rb"(?m)^process_cpu_seconds_total [\d.]+$", b"process_cpu_seconds_total %06d.5", page)
        moving = re.sub(_GAUGES, lambda found: found[0].rpartition(b" ")[0] + b" %d.0", still)
        self._still, self._moving = _template(still, 0), _template(moving, 0, 0, 0)
        self.size = len(self._still % 0)

    def next(self) -> bytes:
        """Return the current page, which always has the same length."""
        self.count += 1
        seconds = self.count % 1_000_000
        if not self.moving:
            return self._still % seconds
        digit = self.count % 10
        return self._moving % (seconds, digit, digit)


class ModelServer(asyncio.Protocol):
    """One connection."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._transport: asyncio.Transport
        self._head = b""
        self._left = 0
        """Remaining bytes of the body; -1 for a chunked body."""
        self._tail = b""
        self._pieces = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._left:
            self._body(data)
            return
        self._head += data
        end = self._head.find(_END)
        if end < 0:
            return
        head, rest = self._head[: end + 2], self._head[end + 4 :]
        self._head = b""
        if head.startswith(b"GET /metrics"):
            self._transport.write(self._pages.next())
        elif head.startswith(b"GET "):
            self._transport.write(JSON)
        else:
            self._pieces = int(_header(head, b"x-bench-pieces") or 0)
            self._left = -1 if b"\r\ntransfer-encoding: chunked" in head else int(_header(head, b"content-length") or 0)
            self._body(rest)

    def _body(self, data: bytes) -> None:
        if self._left < 0:
            self._tail = (self._tail + data)[-len(_LAST_CHUNK) :]
            if self._tail != _LAST_CHUNK:
                return
            self._tail, self._left = b"", 0
        else:
            self._left -= len(data)
            if self._left:
                return
        if self._pieces:
            self._transport.write(_STREAM_HEAD)
            self._timer = asyncio.get_running_loop().call_later(PIECE_SECONDS, self._next_piece)
        else:
            self._transport.write(JSON)

    def _next_piece(self) -> None:
        self._pieces -= 1
        if self._pieces:
            self._transport.write(EVENT)
            self._timer = asyncio.get_running_loop().call_later(PIECE_SECONDS, self._next_piece)
        else:
            self._timer = None
            self._transport.write(LAST)


def _header(head: bytes, name: bytes) -> bytes | None:
    found = head.find(b"\r\n%s: " % name)
    if found < 0:
        return None
    start = found + len(name) + 4
    return head[start : head.index(b"\r\n", start)]


async def main() -> None:
    """Serve until standard input is closed."""
    many_descriptors()
    pages = Pages()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ModelServer(pages), "0.0.0.0", 0, backlog=4096)  # noqa: S104
    port = server.sockets[0].getsockname()[1]

    async def do(order: dict[str, Any]) -> dict[str, Any]:
        pages.moving = order.get("moving", pages.moving)
        return {"port": port, "polls": pages.count, "page_bytes": pages.size}

    await obey(do)


if __name__ == "__main__":
    uvloop.run(main())
