# SPDX-License-Identifier: Apache-2.0
"""Load generator, as a program: requests over a limited number of persistent connections, for a limited time.

Closed loop: each connection sends its next request when the last one is answered. Open loop: requests are due at a
fixed rate, and the time of each counts from when it was due, even if no connection was free.
"""

import asyncio
import contextlib
import time
from collections import deque
from typing import Any

import uvloop

from perf.rig.orders import many_descriptors, obey
from perf.rig.prompts import Prompts

MOST_CONNECTIONS = 256
"""Maximum connections of an open loop; further requests wait, which counts as their time."""
_END = b"\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"


class Client(asyncio.Protocol):
    """One connection: sends requests, and reports the end of each response."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._transport: asyncio.Transport
        self._head = b""
        self._left = 0
        self._tail = b""
        self._failed = False
        self._closing = False
        """Whether the gateway closes the connection after this response."""
        self._since: float | None = None
        """Time at which the open request was due; None without one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        self._run.lost(self)
        if self._since is not None:
            self._since = None
            self._run.refused(b"the connection was cut with a request on it")
            self._run.ended(None, None)

    def send(self, request: bytes, since: float) -> None:
        """Send a request that was due at this time."""
        self._since = since
        self._transport.write(request)

    def close(self) -> None:
        self._since = None
        self._transport.close()

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
        self._failed = not head.startswith(b"HTTP/1.1 200 ")
        if self._failed:
            self._run.refused(head + rest[:300])
        self._closing = b"\r\nconnection: close" in head
        found = head.find(b"\r\ncontent-length: ")
        if found >= 0:
            self._left = int(head[found + 18 : head.index(b"\r\n", found + 18)])
            if not self._left:
                self._ended()
                return
        else:
            self._left = -1
        if rest:
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
        self._ended()

    def _ended(self) -> None:
        since, self._since = self._since, None
        if since is not None:
            took = None if self._failed else time.perf_counter() - since
            self._run.ended(None if self._closing else self, took)


class Run:
    """One run of a number of requests."""

    def __init__(self, prompts: Prompts, requests: int, port: int) -> None:
        self.failed = 0
        """Number of responses with a status other than 200, and of incomplete ones."""
        self.problem = ""
        """Description of the last failure."""
        self._prompts = prompts
        self._to_send = requests
        self._to_end = requests
        self._idle: deque[Client] = deque()
        self._due: deque[float] = deque()
        self._clients: set[Client] = set()
        self._port = port
        self._connecting: set[asyncio.Task[None]] = set()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.latencies: list[float] = []

    def lost(self, client: Client) -> None:
        self._clients.discard(client)
        if client in self._idle:
            self._idle.remove(client)

    def refused(self, response: bytes) -> None:
        """Record a failed request."""
        self.failed += 1
        self.problem = response.decode(errors="replace")

    def ended(self, client: Client | None, seconds: float | None) -> None:
        """Record the end of a request, with its time if it succeeded; the connection is None if it ends, too."""
        if seconds is not None:
            self.latencies.append(seconds)
        self._to_end -= 1
        if not self._to_end:
            if not self._done.done():
                self._done.set_result(None)
        elif client is None:
            task = asyncio.create_task(self.connect(1))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)
        else:
            self._free(client)

    def _free(self, client: Client) -> None:
        if self._due:
            client.send(self._prompts.next(), self._due.popleft())
        else:
            self._idle.append(client)
            self.on_idle()

    def on_idle(self) -> None:
        """Use a free connection for the next request."""

    async def connect(self, count: int) -> None:
        """Open connections, and use them."""
        loop = asyncio.get_running_loop()
        opened = [await loop.create_connection(lambda: Client(self), "127.0.0.1", self._port) for _ in range(count)]
        self._clients.update(client for _, client in opened)
        for _, client in opened:
            self._free(client)

    async def finish(self, seconds: float) -> dict[str, Any]:
        """Wait for the last response until a timeout; return the report."""
        started = time.perf_counter()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._done
        took = time.perf_counter() - started
        for client in list(self._clients):
            client.close()
        if self._to_end:
            self.problem = f"{self._to_end} requests were not answered within {seconds:g} s"
        failed = self.failed + self._to_end
        times = sorted([*self.latencies, *[took] * failed])  # a failed request counts as one without an answer
        return {
            "requests": len(times),
            "failed": failed,
            "problem": self.problem,
            "seconds": took,
            "p50": times[len(times) // 2],
            "p99": times[len(times) * 99 // 100],
        }


class ClosedLoop(Run):
    """Connections that are never idle."""

    def on_idle(self) -> None:
        while self._to_send and self._idle:
            self._to_send -= 1
            self._idle.popleft().send(self._prompts.next(), time.perf_counter())


class OpenLoop(Run):
    """Requests at a fixed rate."""

    async def pace(self, rate: float) -> None:
        """Send each request when it is due, or as soon as a connection is free."""
        started = time.perf_counter()
        for number in range(self._to_send):
            due = started + number / rate
            wait = due - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            if self._idle:
                self._idle.popleft().send(self._prompts.next(), due)
            else:
                self._due.append(due)


async def run(order: dict[str, Any]) -> dict[str, Any]:
    """Do one run: port, prompt_bytes, pieces, first, headers; requests, maximum seconds; connections or rate."""
    prompts = Prompts(order["prompt_bytes"], order["pieces"], order["first"], order["headers"])
    requests, seconds = order["requests"], order["seconds"]
    if rate := order.get("rate"):
        paced = OpenLoop(prompts, requests, order["port"])
        await paced.connect(min(MOST_CONNECTIONS, order["connections"]))
        pacing = asyncio.create_task(paced.pace(rate))
        try:
            return await paced.finish(seconds)
        finally:
            pacing.cancel()
    closed = ClosedLoop(prompts, requests, order["port"])
    await closed.connect(order["connections"])
    return await closed.finish(seconds)


async def main() -> None:
    """Run the orders until standard input is closed."""
    many_descriptors()
    await obey(run)


if __name__ == "__main__":
    uvloop.run(main())
