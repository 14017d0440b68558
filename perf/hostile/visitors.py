# SPDX-License-Identifier: Apache-2.0
"""Clients of the gateway with raw HTTP: some wait for answers, others disconnect at the worst time."""

import asyncio
import contextlib
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

MODEL = "e2e-8b"
"""Model of simulated servers in end-to-end tests; repeated here, so that this process starts quickly."""
_PATIENCE_SECONDS = 30.0
PHASES = (
    "connected",
    "in the headers",
    "after the headers",
    "in the body",
    "with the body",
    "at the first byte",
    "in the answer",
    "after the answer",
)


def request(body: bytes, *, headers: str = "", path: str = "/v1/chat/completions") -> bytes:
    """Return a complete HTTP request."""
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return f"{head}{headers}\r\n".encode() + body


def chat(prompt: str, *, tokens: int = 2, stream: bool = False) -> bytes:
    """Return the body of a chat request."""
    asked = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens}
    return json.dumps({**asked, "ignore_eos": True, "stream": stream}).encode()


async def load(host: str, port: int, seconds: float, clients: int, files: str = "") -> dict[str, Any]:
    """Send requests one after the other with several clients, until the time is up.

    In the directory `files`, the file `begun` is created after the first answer, and a file `stop` ends the run.
    Return the number of answers by status, and start and end of those other than 200.
    """
    statuses: Counter[str] = Counter()
    lost: list[tuple[float, float]] = []
    slowest = 0.0
    end = time.monotonic() + seconds

    def goes_on() -> bool:
        return time.monotonic() < end and not (files and (Path(files) / "stop").exists())

    async def client(number: int) -> None:
        nonlocal slowest
        asked = 0
        while goes_on():
            reader, writer = await asyncio.open_connection(host, port)
            began = time.monotonic()
            try:
                while goes_on():
                    asked += 1
                    began = time.monotonic()
                    async with asyncio.timeout(_PATIENCE_SECONDS):
                        writer.write(request(chat(f"{number} asks {asked}" + "." * 200)))
                        status, closes = await _answer(reader)
                    if files and not statuses:
                        (Path(files) / "begun").touch()
                    statuses[status] += 1
                    slowest = max(slowest, time.monotonic() - began)
                    if status != "200":
                        lost.append((began, time.monotonic()))
                    if closes:
                        break
            except (OSError, EOFError, TimeoutError, ValueError) as error:
                statuses[type(error).__name__] += 1
                lost.append((began, time.monotonic()))
            finally:
                writer.transport.abort()

    await asyncio.gather(*(client(number) for number in range(clients)))
    return {"statuses": dict(statuses), "slowest": slowest, "lost": lost}


async def _answer(reader: asyncio.StreamReader) -> tuple[str, bool]:
    """Return the status, and whether the connection ends."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    status = head.split(" ", 2)[1]
    if "transfer-encoding: chunked" in head:
        while (size := int(await reader.readline(), 16)) > 0:
            await reader.readexactly(size + 2)
        await reader.readline()
    else:
        length = next((line for line in head.split("\r\n") if line.startswith("content-length:")), "content-length:0")
        await reader.readexactly(int(length.partition(":")[2]))
    return status, "connection: close" in head


async def leave(host: str, port: int, phase: str, count: int, at_once: int = 50) -> dict[str, Any]:
    """Disconnect clients in this phase; return the number that reached it, and the number that did not."""
    came: Counter[str] = Counter()
    for begun in range(0, count, at_once):
        group = range(begun, min(begun + at_once, count))
        for how in await asyncio.gather(*(_leave(host, port, phase, number) for number in group)):
            came[how] += 1
    return {"left": came["left"], "others": {how: number for how, number in came.items() if how != "left"}}


async def _leave(host: str, port: int, phase: str, number: int) -> str:
    body = chat(f"{phase} {number} " + "p" * 500, tokens=60, stream=True)
    whole = request(body)
    size = {
        "connected": 0,
        "in the headers": 40,
        "after the headers": len(whole) - len(body),
        "in the body": len(whole) - len(body) // 2,
    }.get(phase, len(whole))
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(whole[:size])
        await writer.drain()
        async with asyncio.timeout(_PATIENCE_SECONDS):
            if phase in {"at the first byte", "in the answer", "after the answer"}:
                status = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1].decode()
                if status != "200":
                    return status
            if phase == "in the answer":
                for _ in range(4):
                    await reader.readuntil(b"data:")
            elif phase == "after the answer":
                await reader.readuntil(b"[DONE]")
            elif phase not in {"at the first byte", "with the body"}:
                await asyncio.sleep(0.05)  # the picker has received everything
    except (OSError, EOFError, TimeoutError) as error:
        return type(error).__name__
    finally:
        writer.transport.abort()
    return "left"


class Endless:
    """Connections to a server with endless answers."""

    open: list[tuple[asyncio.StreamWriter, asyncio.Task[int]]] = []  # noqa: RUF012  those of this process


async def open_endless(host: str, port: int, count: int) -> dict[str, Any]:
    """Send requests and read the responses; return the number of responses that began."""

    async def one(number: int) -> bool:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request(chat(f"never ends {number}", stream=True)))
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
        except (OSError, EOFError, TimeoutError):
            writer.transport.abort()
            return False
        Endless.open.append((writer, asyncio.create_task(_read_on(reader))))
        return b" 200 " in head

    begun = 0
    for first in range(0, count, 100):
        begun += sum(await asyncio.gather(*(one(number) for number in range(first, min(first + 100, count)))))
    return {"begun": begun}


async def _read_on(reader: asyncio.StreamReader) -> int:
    taken = 0
    with contextlib.suppress(OSError):
        while piece := await reader.read(65536):
            taken += len(piece)
    return taken


async def close_endless() -> dict[str, Any]:
    """Close all connections; return the number of answers that had not ended."""
    going = sum(not task.done() for _, task in Endless.open)
    for writer, task in Endless.open:
        writer.transport.abort()
        task.cancel()
    Endless.open.clear()
    return {"going": going}
