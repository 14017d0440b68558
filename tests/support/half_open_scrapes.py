# SPDX-License-Identifier: Apache-2.0
"""Very many scrapers at once, each with half of its request sent: `half_open_scrapes.py PORT SCRAPERS`."""

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass

REQUEST = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
_HALF = len(REQUEST) // 2
_PATIENCE_SECONDS = 60.0


@dataclass
class Scraped:
    """How the scrapers fared."""

    connected: int = 0
    completed: int = 0
    """Those that had a whole page."""
    seconds: float = 0.0
    """From the first connection to the last page."""


async def half_open_scrapes(port: int, scrapers: int, *, host: str = "127.0.0.1") -> Scraped:
    """Connect all, send half a request on each, then the other halves; read every page to its end."""
    scraped = Scraped()
    begun = time.monotonic()

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(REQUEST[:_HALF])
                await writer.drain()
        except OSError:
            return None
        scraped.connected += 1
        return reader, writer

    async def complete(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                writer.write(REQUEST[_HALF:])
                page = await reader.read(-1)
        except OSError:
            return
        finally:
            writer.transport.abort()
        head, _, body = page.partition(b"\r\n\r\n")
        scraped.completed += head.startswith(b"HTTP/1.1 200") and f"Content-Length: {len(body)}".encode() in head

    opened = await asyncio.gather(*(connect() for _ in range(scrapers)))
    await asyncio.gather(*(complete(*each) for each in opened if each is not None))
    scraped.seconds = time.monotonic() - begun
    return scraped


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(half_open_scrapes(*map(int, sys.argv[1:]))))))  # noqa: T201  its answer
