# SPDX-License-Identifier: Apache-2.0
"""A model server that goes on answering polls, but refuses connections after a request for /refuse: its address."""

import asyncio
import sys
from contextlib import suppress

METRICS = b"vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n"
MODELS = b'{"object": "list", "data": []}'


async def main(address: str) -> None:
    """Serve on port 8000."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while request := await reader.readuntil(b"\r\n\r\n"):
                if b"/refuse" in request:
                    server.close()
                body = MODELS if b"/v1/models" in request else METRICS
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    server = await asyncio.start_server(answer, address, 8000)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
