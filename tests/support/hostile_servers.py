# SPDX-License-Identifier: Apache-2.0
"""Model servers whose pages are too large, too slow or made to be expensive: `answering(ANSWERS["series"])`."""

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

Answer: TypeAlias = Callable[[asyncio.StreamWriter], Awaitable[None]]
"""Writes one answer, or a part of it, to a GET request."""

TURN = b"@@@@@@@"
HONEST = b"vllm:num_requests_waiting 3\nvllm:num_requests_running 2\nvllm:kv_cache_usage_perc 0.25\n"
_CHANGING = b"vllm:prefix_cache_queries_total %b\n" % TURN
_BLOCK_BYTES = 64 * 1024
_MIB = 1024 * 1024


@dataclass
class HostileServer:
    """What a test sees of it; another `answer` counts from the next request on."""

    answer: Answer
    port: int = 0
    asked: int = 0
    finished: int = 0
    """Answers whose client stayed to the end."""
    connections: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
                while await reader.readuntil(b"\r\n\r\n"):
                    self.asked += 1
                    await self.answer(writer)
                    await writer.drain()
                    self.finished += 1
        finally:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def answering(answer: Answer, *, port: int = 0) -> AsyncIterator[HostileServer]:
    """Run a server that answers every GET so, whatever the path."""
    hostile = HostileServer(answer)

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        hostile.connections.add(task)
        task.add_done_callback(hostile.connections.discard)
        await hostile.serve(reader, writer)

    server = await asyncio.start_server(accepted, "127.0.0.1", port)
    hostile.port = server.sockets[0].getsockname()[1]
    try:
        yield hostile
    finally:
        server.close()
        for task in list(hostile.connections):
            task.cancel()
        await asyncio.gather(*hostile.connections, return_exceptions=True)


def whole(body: bytes, *, headers: str = "", status: str = "200 OK") -> Answer:
    """Answer with a body of a length that is told; `TURN` in it is another number each time."""
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode()
    before, turn, after = body.partition(TURN)
    turns = count()

    async def write(writer: asyncio.StreamWriter) -> None:
        number = b"%0*d" % (len(turn), next(turns)) if turn else b""
        writer.write(head + before + number)
        for at in range(0, len(after), _BLOCK_BYTES):
            writer.write(after[at : at + _BLOCK_BYTES])
            await writer.drain()

    return write


def chunked(body: bytes, size: int) -> Answer:
    """Answer with a body in chunks of that size, as many in one segment as fit."""
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(body[at : at + size]), body[at : at + size]) for at in range(0, len(body), size)
    )
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"

    async def write(writer: asyncio.StreamWriter) -> None:
        for at in range(0, len(raw), _BLOCK_BYTES):
            writer.write(raw[at : at + _BLOCK_BYTES])
            await writer.drain()

    return write


def endless(block: bytes, *, head: bytes = b"HTTP/1.1 200 OK\r\n\r\n", pause_seconds: float = 0.0) -> Answer:
    """Send the same again and again, with a pause in between, until the client leaves."""

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(block)
            await writer.drain()
            await asyncio.sleep(pause_seconds)

    return write


def series(name: str, number_of: int, labels: Callable[[int], str]) -> bytes:
    """Series of one name."""
    return "".join(f"{name}{{{labels(number)}}} {number}\n" for number in range(number_of)).encode()


def padded(lines: Iterable[bytes]) -> bytes:
    """Return these lines after those of a server that is well."""
    return _CHANGING + HONEST + b"".join(lines)


def _buckets(number_of: int) -> bytes:
    return series("vllm:request_bucket", number_of, lambda number: f'model_name="m",le="{number:07d}"')


def _adapters(number_of: int) -> bytes:
    return series(
        "vllm:lora_requests_info",
        number_of,
        lambda number: f'max_lora="4",running_lora_adapters="a-{number}",waiting_lora_adapters=""',
    )


def _models(number_of: int, name: str = "model") -> bytes:
    ids = ",".join(f'{{"id":"{name}-{number}"}}' for number in range(number_of))
    return f'{{"object":"list","data":[{ids}]}}'.encode()


def answers() -> dict[str, Callable[[], Answer]]:
    """Each kind of hostile answer by its name; made when called, as some take megabytes."""
    flat = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return {
        "honest": lambda: whole(HONEST),
        "series": lambda: whole(padded([_buckets(130_000)])),
        "adapters": lambda: whole(padded([_adapters(80_000)])),
        "one family": lambda: whole(
            padded([series("vllm:num_requests_swapped", 1, str)])
            + series("vllm:num_requests_waiting", 60_000, lambda number: f'engine="{number}"')
        ),
        "long value": lambda: whole(padded([b'vllm:cache_config_info{a="' + b"\\n" * (5 * _MIB // 2) + b'"} 1\n'])),
        "many labels": lambda: whole(
            padded([b"vllm:cache_config_info{" + b",".join(b'l%d="%d"' % (n, n) for n in range(10_000)) + b"} 1\n"])
        ),
        "one line": lambda: whole(HONEST + b"x" * (7 * _MIB)),
        "too large": lambda: whole(padded([_buckets(300_000)])),
        "compressed": lambda: whole(gzip.compress(b"\0" * (64 * _MIB)), headers="Content-Encoding: gzip\r\n"),
        "tiny chunks": lambda: chunked(padded([_buckets(20_000)]), 1),
        "endless": lambda: endless(b"1f40\r\n" + b"other 1\n" * 1_000 + b"\r\n", head=flat),
        "endless head": lambda: endless(b"x: y\r\n" * 1_000, head=b"HTTP/1.1 200 OK\r\n"),
        "endless trailer": lambda: endless(b"x: y\r\n" * 1_000, head=flat + b"0\r\n"),
        "trickle": lambda: endless(b"1\r\nx\r\n", head=flat, pause_seconds=0.1),
        "silence": lambda: endless(b"", head=b"", pause_seconds=0.1),
        "many models": lambda: whole(_models(9_000)),
        "too many models": lambda: whole(_models(200_000)),
        "long models": lambda: whole(_models(4, "x" * 400_000)),
        "deep JSON": lambda: whole(b'{"data":' + b"[" * (2 * _MIB - 100)),
        "wide JSON": lambda: whole(b'{"data":[],"more":[' + b"1," * (_MIB - 100) + b"1]}"),
    }
