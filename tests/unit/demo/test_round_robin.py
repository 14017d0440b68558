# SPDX-License-Identifier: Apache-2.0
"""The comparison of the demo: times, and dollars of the time in which servers had a request."""

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from epp.lab.demo.traffic import RoundRobin, Sample, Samples, ask


def samples(*rows: tuple[str, float, float, float]) -> Samples:
    found = Samples()
    for row in rows:
        found.add(Sample(*row))
    return found


def test_server_costs_for_the_time_in_which_it_has_any_request():
    found = samples(("a", 0, 1, 4), ("a", 2, 3, 5), ("b", 8, 9, 10))  # a is busy for 5 of 10 seconds, b for 2
    assert found.dollars_per_hour({"a": 4.0, "b": 1.0, "idle": 100.0}) == pytest.approx(4 * 0.5 + 1 * 0.2)


def test_nine_of_ten_requests_stay_within_the_p90():
    found = samples(*(("a", 0, number / 10, 5) for number in range(1, 12)))
    assert found.p90_seconds == pytest.approx(1.0)


def test_requests_count_for_a_minute():
    found = samples(("a", 0, 1, 2), ("a", 60, 61, 62.5))
    assert len(found) == 1


def test_line_compares_once_both_sides_have_requests():
    beside = RoundRobin(["127.0.0.1:1"])
    assert beside.line({"a": 1.0}) == ""
    for number in range(10):
        beside.routed.add(Sample("a", number, number + 0.25, number + 0.5))
        beside.copied.add(Sample("a", number, number + 0.75, number + 1))
    assert beside.line({"a": 2.0}) == (
        "last minute, p90 to the first token and busy servers: 0.25 s, $1.05/h; by round robin 0.75 s, $2.00/h"
    )


async def test_answer_of_a_stream_that_ends_with_its_usage_is_read():
    async def chat(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"x-sim-server": "a"})
        await response.prepare(request)
        for choices in ('[{"delta": {"content": "Hel"}}]', '[{"delta": {"content": "lo"}}]', "[]"):
            await response.write(f'data: {{"choices": {choices}}}\n\n'.encode())
        return response

    app = web.Application()
    app.router.add_post("/chat", chat)
    routed = Samples()
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        assert await ask(session, str(server.make_url("/chat")), {"stream": True}, routed) == "Hello"
    assert len(routed) == 1
