# SPDX-License-Identifier: Apache-2.0
"""The demonstration's clients: few, patient, and with growing conversations."""

import asyncio
import contextlib
import itertools
import json
from collections import defaultdict
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from epp.lab.demo.traffic import Traffic
from tests.support.waiting import until

CLIENTS = 6
TURNS = 6
AT_ONCE = 1_000_000.0
"""Requests a second: the pauses between them round to nothing."""


class Backend:
    """Records what is asked; `answer` says what to do with it."""

    def __init__(self) -> None:
        self.bodies: list[dict] = []
        self.under_way = 0
        self.most_under_way = 0
        self._news = asyncio.Condition()

    async def answer(self) -> web.Response:
        number = len(self.bodies)
        return web.json_response({"choices": [{"message": {"content": f"answer {number}"}}]})

    async def chat(self, request: web.Request) -> web.Response:
        self.bodies.append(json.loads(await request.read()))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        async with self._news:
            self._news.notify_all()
        try:
            return await self.answer()
        finally:
            self.under_way -= 1

    async def until_asked(self, times: int) -> None:
        try:
            async with asyncio.timeout(20), self._news:
                await self._news.wait_for(lambda: len(self.bodies) >= times)
        except TimeoutError as error:
            raise AssertionError(f"{len(self.bodies)} of {times} requests arrived") from error

    @property
    def by_client(self) -> dict[str, list[list[dict[str, str]]]]:
        """The messages of each request, by system prompt."""
        conversations = defaultdict(list)
        for body in self.bodies:
            conversations[body["messages"][0]["content"]].append(body["messages"])
        return conversations


@pytest.fixture
async def backend() -> AsyncIterator[tuple[Backend, str]]:
    backend = Backend()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", backend.chat)
    async with TestServer(app, shutdown_timeout=0) as server:
        yield backend, str(server.make_url("")).rstrip("/")


@contextlib.asynccontextmanager
async def sending(
    url: str, requests_per_second: float, conversations: int = CLIENTS
) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(Traffic(url, "m", requests_per_second, conversations=conversations).run())
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_each_client_waits_for_its_answer_so_few_requests_are_under_way(backend):
    server, url = backend
    async with sending(url, AT_ONCE):
        await server.until_asked(20 * CLIENTS)
    assert 1 <= server.most_under_way <= CLIENTS
    assert len(server.by_client) == CLIENTS


async def test_server_that_never_answers_is_asked_once_by_each_client(backend):
    server, url = backend
    server.answer = asyncio.Event().wait
    async with sending(url, AT_ONCE) as task:
        await server.until_asked(CLIENTS)
        assert not task.done()
    assert {len(requests) for requests in server.by_client.values()} == {1}


async def test_conversation_grows_by_an_answer_and_a_question_then_starts_afresh(backend):
    server, url = backend
    async with sending(url, AT_ONCE):
        await server.until_asked(20 * CLIENTS)
    for requests in server.by_client.values():
        for earlier, later in itertools.pairwise(requests):
            if len(later) == 2:
                assert len(earlier) == 2 * TURNS  # a system prompt, six questions, five answers
            else:
                assert later[: len(earlier)] == earlier
                assert [message["role"] for message in later[len(earlier) :]] == ["assistant", "user"]
    assert all(body["model"] == "m" and body["max_tokens"] == 48 for body in server.bodies)


async def test_refused_request_ends_its_conversation_and_not_the_traffic(backend):
    server, url = backend

    async def refuse() -> web.Response:
        return web.Response(status=503)

    server.answer = refuse
    async with sending(url, AT_ONCE) as task:
        await server.until_asked(3 * CLIENTS)
        assert not task.done()
    assert all(len(body["messages"]) == 2 for body in server.bodies)


async def test_gateway_that_hangs_up_is_tried_on():
    tries: list[str] = []

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tries.append(writer.get_extra_info("peername"))
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        async with sending(f"http://{host}:{port}", AT_ONCE) as task:
            await until(lambda: len(tries) >= 3 * CLIENTS, "each client has tried more than once")
            assert not task.done()


async def test_pauses_are_as_long_as_the_rate_asks(backend, monkeypatch):
    server, url = backend
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", note)
    async with sending(url, 4.0):
        await server.until_asked(900)
    # Six clients make four requests a second when each pauses 6 / 4 s between two; the standard error of the mean of
    # 900 exponential pauses is a thirtieth of it.
    assert sum(pauses) / len(pauses) == pytest.approx(1.5, rel=0.15)
    assert len(pauses) <= len(server.bodies) + CLIENTS  # one before each request
