# SPDX-License-Identifier: Apache-2.0
"""A program that answers every request on a port that it prints, with the metrics of an idle server."""

import asyncio
import resource

METRICS = b"vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n"
PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" % (len(METRICS), METRICS)


class Page(asyncio.Protocol):
    """Answers each read, which is a request."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(PAGE)


async def serve() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    server = await asyncio.get_running_loop().create_server(Page, "0.0.0.0", 0, backlog=4096)  # noqa: S104
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201  the test waits for it
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve())
