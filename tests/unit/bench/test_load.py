# SPDX-License-Identifier: Apache-2.0
"""The load of the bench: how many requests it sends, when their time begins, and what counts as failed."""

import asyncio
import re
from contextlib import asynccontextmanager

import pytest
from rig import load, model_servers
from rig.model_servers import ModelServer, Pages

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Gateway:
    """Answers each request as it is told, and keeps what it got."""

    def __init__(self, *answers: bytes, seconds: float = 0.0) -> None:
        self._answers = list(answers)
        self._seconds = seconds
        self.numbers: list[str] = []
        self.connections = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while head := await reader.readuntil(b"\r\n\r\n"):
            body = await reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))
            self.numbers += re.findall(r"[0-9a-f]{16}", body.decode())
            await asyncio.sleep(self._seconds)
            answer = self._answers.pop(0) if self._answers else ANSWER
            writer.write(answer)
            if b"connection: close" in answer:
                break
        writer.close()


@asynccontextmanager
async def gateway(*answers: bytes, seconds: float = 0.0):
    found = Gateway(*answers, seconds=seconds)
    open_connections = set()

    async def serve(reader, writer):
        open_connections.add(asyncio.current_task())
        try:
            await found.serve(reader, writer)
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    yield found
    server.close()
    await asyncio.gather(*open_connections)


class Connection(ModelServer):
    """One that tells when it is closed."""

    def __init__(self, open_connections: set[asyncio.Future]) -> None:
        super().__init__(Pages())
        self._closed = asyncio.get_running_loop().create_future()
        open_connections.add(self._closed)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._closed.set_result(None)


@asynccontextmanager
async def model_server():
    """The port of one."""
    open_connections: set[asyncio.Future] = set()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(open_connections), "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await asyncio.gather(*open_connections)


def order(port: int, requests: int, **more: object) -> dict:
    fields = {"prompt_bytes": 400, "pieces": 0, "first": 0, "headers": {}, "connections": 2, "seconds": 30.0}
    return {"port": port, "requests": requests, "rate": None, **fields, **more}


async def test_closed_loop_sends_so_many_requests_each_with_another_number():
    async with gateway() as there:
        found = await load.run(order(there.port, 20, first=7))
    assert (found["requests"], found["failed"], there.connections) == (20, 0, 2)
    assert sorted(there.numbers) == [f"{number:016x}" for number in range(8, 28)]


async def test_time_of_an_open_loop_counts_from_when_a_request_is_due():
    async with gateway(seconds=0.05) as there:
        found = await load.run(order(there.port, 10, connections=1, rate=1000.0))
    # The last of ten is due after 9 ms, and its answer comes ten times 50 ms after the start at the earliest.
    assert found["p99"] > 0.45
    assert there.connections == 1


async def test_refused_requests_are_counted_and_the_connection_is_replaced():
    async with gateway(UNAVAILABLE, UNAVAILABLE) as there:
        found = await load.run(order(there.port, 10))
    assert (found["requests"], found["failed"], there.connections) == (10, 2, 4)
    assert found["problem"].startswith("HTTP/1.1 503")
    assert found["p99"] == found["seconds"]  # as bad as no answer


async def test_request_whose_connection_is_cut_has_failed():
    async with gateway(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 9\r\n\r\nhalf") as there:
        found = await load.run(order(there.port, 4))
    assert (found["requests"], found["failed"], there.connections) == (4, 1, 3)
    assert found["problem"] == "the connection was cut with a request on it"


async def test_requests_without_an_answer_in_time_have_failed():
    async with gateway(b"", b"") as there:
        found = await load.run(order(there.port, 5, seconds=0.5))
    assert (found["requests"], found["failed"]) == (5, 5)
    assert "5 requests were not answered" in found["problem"]


@pytest.mark.parametrize("pieces", [0, 3])
async def test_model_server_answers_at_once_or_in_pieces(pieces):
    async with model_server() as port:
        found = await load.run(order(port, 6, pieces=pieces))
    assert (found["requests"], found["failed"]) == (6, 0)


async def test_pieces_of_a_response_come_one_by_one():
    async with model_server() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nx-bench-pieces: 3\r\ncontent-length: 2\r\n\r\n{}")
        assert b"text/event-stream" in await reader.readuntil(b"\r\n\r\n")
        # Each piece is a chunk of its own, which begins with its size; the last has the usage and the end.
        assert await reader.readexactly(2 * len(model_servers.EVENT)) == 2 * model_servers.EVENT
        assert await reader.readexactly(len(model_servers.LAST)) == model_servers.LAST
        writer.close()


async def test_model_server_reads_bodies_in_chunks():
    async with model_server() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r")
        await writer.drain()
        writer.write(b"\n\r\n")
        assert await reader.readexactly(len(model_servers.JSON)) == model_servers.JSON
        writer.close()


@pytest.mark.parametrize("moving", [False, True])
def test_metrics_page_is_as_long_as_it_says(moving):
    pages = Pages()
    pages.moving = moving
    head, _, page = pages.next().partition(b"\r\n\r\n")
    assert int(re.search(rb"content-length: (\d+)", head)[1]) == len(page) > 51_000


def test_metrics_page_differs_from_one_poll_to_the_next_and_keeps_its_length():
    pages = Pages()
    one, two = pages.next(), pages.next()
    assert (len(one), pages.count) == (len(two), 2)
    assert [a for a, b in zip(one.splitlines(), two.splitlines(), strict=True) if a != b] == [
        b"process_cpu_seconds_total 000001.5"
    ]


def test_moving_gauges_are_those_of_the_queue():
    pages = Pages()
    pages.moving = True
    one, two = pages.next(), pages.next()
    moved = [a for a, b in zip(one.splitlines(), two.splitlines(), strict=True) if a != b]
    assert [line.partition(b"{")[0].split()[0] for line in moved] == [
        b"process_cpu_seconds_total",
        b"vllm:num_requests_running",
        b"vllm:num_requests_waiting",
    ]
