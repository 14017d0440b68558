# SPDX-License-Identifier: Apache-2.0
"""Model servers in the attacker's process with huge pages or endless answers."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

_FEW = b"vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0.1\n"
_EVENT = b'data: {"model":"m","choices":[{"delta":{"content":"and on "}}]}\n\n'
_BLOCK = 256 * 1024


def _series(count: int) -> bytes:
    line = 'vllm:num_requests_running{{engine="{0}",model_name="m"}} 1'
    return _FEW + "\n".join(line.format(number) for number in range(count)).encode() + b"\n"


def _adapters(count: int) -> bytes:
    line = 'vllm:lora_requests_info{{max_lora="4",running_lora_adapters="a{0}",waiting_lora_adapters=""}} {0}'
    return _FEW + "\n".join(line.format(number) for number in range(count)).encode() + b"\n"


PAGES: Mapping[str, Callable[[], bytes]] = {
    "few": lambda: _FEW,
    "series": lambda: _series(130_000),
    "adapters": lambda: _adapters(80_000),
    "one line": lambda: _FEW + b"x" * (7 << 20),
}


class _Server:
    page = _FEW
    asked = 0
    listening: asyncio.Server | None = None


async def serve() -> dict[str, Any]:
    """Serve a small page and endless answers until this process ends; return the port."""
    _Server.listening = await asyncio.start_server(_answer, "127.0.0.1", 0, backlog=1024)
    return {"port": _Server.listening.sockets[0].getsockname()[1]}


async def show(page: str) -> dict[str, Any]:
    """Serve this page from now on; return its size, and the number of page requests before."""
    asked, _Server.page, _Server.asked = _Server.asked, PAGES[page](), 0
    return {"bytes": len(_Server.page), "asked": asked}


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET"):
                _Server.asked += 1
                page = _Server.page
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % len(page))
                for at in range(0, len(page), _BLOCK):
                    writer.write(page[at : at + _BLOCK])
                    await writer.drain()
                continue
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            while not reader.at_eof():
                writer.write(b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT))
                await writer.drain()
                await asyncio.sleep(0.5)
    writer.transport.abort()
