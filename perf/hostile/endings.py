# SPDX-License-Identifier: Apache-2.0
"""Streams that end in every way at every phase, and malformed streams: neither may leak resources."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from perf.hostile.floods import FIRST, PATH
from perf.hostile.scene import NARROW, STALL_SECONDS, Campaign, scene
from tests.support.exchanges import BODY, request_body, response_body, response_headers
from tests.support.http2 import http2_bytes as h2
from tests.support.http2.http2_peer import Call
from tests.support.http2.raw_connection import RawConnection, connected

_AT_ONCE = 40
_STEPS = (
    (FIRST, 0),
    (h2.grpc_message(request_body(BODY[:20], end=False).SerializeToString()), 0),
    (h2.grpc_message(request_body(BODY[20:], end=True).SerializeToString()), 2),
    (h2.grpc_message(response_headers().SerializeToString()), 3),
    (h2.grpc_message(response_body(b"data: 1", end=False).SerializeToString()), 4),
    (h2.grpc_message(response_body(b"data: 2", end=True).SerializeToString()), 5),
)
"""Messages of a gateway in order, each with the total number of responses after it."""
_ENDS = ("reset", "half close", "left open", "cut in a frame")
_PATIENCE_SECONDS = 30.0
_GATEWAYS = 8
_BETWEEN_CALLS = 0.002


async def random_endings(campaign: Campaign) -> None:
    """10,000 streams that end at any phase in any way, while some of their connections are closed."""
    async with scene(campaign.judge) as picker:
        async with picker.beside() as seen:
            said = await picker.attack(
                "endings", "end_at_random", port=picker.served.grpc_port, count=campaign.of(10_000, 2_000), seed=1
            )
        campaign.judge.exactly("streams that were ended", said["ended"], campaign.of(10_000, 2_000))
        campaign.judge.exactly("streams without the answers due", said["unanswered"], 0)
        picker.judge_beside(seen, longest=None)
        await picker.judge_rest()


async def endings_in_queue(campaign: Campaign) -> None:
    """Streams that end while they wait in a queue, behind four requests that never end."""
    count = campaign.of(3_000, 500)
    async with scene(campaign.judge, config=NARROW) as picker:
        async with picker.beside() as seen:
            pass
        said = await picker.attack("endings", "end_in_queue", port=picker.served.grpc_port, count=count, seed=1)
        campaign.judge.exactly("streams that were ended", said["ended"], count)
        campaign.judge.exactly("requests lost before it", len(seen.failures), 0)
        await picker.judge_rest()
        async with picker.beside() as after:
            await asyncio.sleep(1)
        picker.judge_beside(after, longest=None)


async def lost_gateways(campaign: Campaign) -> None:
    """Gateways that all die at the same time, while the requests of their clients wait in a queue."""
    count = campaign.of(4_000, 800)
    async with scene(campaign.judge, config=NARROW) as picker:
        said = await picker.attack("endings", "lose_gateways", port=picker.served.grpc_port, count=count)
        campaign.judge.exactly("streams that waited", said["waited"], count)
        campaign.judge.within("longest call beside it", said["longest"], STALL_SECONDS)
        await picker.judge_rest()


async def malformed_streams(campaign: Campaign) -> None:
    """20,000 streams with messages that gateways never send."""
    count = campaign.of(20_000, 4_000)
    async with scene(campaign.judge) as picker:
        async with picker.beside() as seen:
            said = await picker.attack("endings", "send_malformed", port=picker.served.grpc_port, count=count, seed=1)
        campaign.judge.at_least("malformed streams", said["sent"], count)
        campaign.judge.shows("connections that were closed for it", said["closed"])
        picker.judge_beside(seen, p99=STALL_SECONDS, longest=None)
        await picker.judge_rest()
        lines = sum("stream closed" in line for line in picker.served.command.err)
        campaign.judge.at_most("lines about them in the log", lines, 1_000)


async def end_at_random(port: int, count: int, seed: int) -> dict[str, Any]:
    """Run streams step by step, a few per connection; each ends after a random step."""
    chance, ended, unanswered = random.Random(seed), 0, 0
    while ended < count:
        async with connected(port) as connection:
            many = min(_AT_ONCE, count - ended)
            unanswered += await _some_streams(connection, many, chance)
            ended += many
    return {"ended": ended, "unanswered": unanswered}


async def _some_streams(connection: RawConnection, count: int, chance: random.Random) -> int:
    """Return the number of streams without their due responses; open streams end with the connection."""
    live: list[Call] = []
    last = {}
    for number in range(count):
        call, opened = connection.peer.call(PATH)
        await connection.send(opened)
        live.append(call)
        last[call.number] = (chance.randrange(len(_STEPS) + 1), _ENDS[number % len(_ENDS)])
    for step, (message, answers) in enumerate(_STEPS):
        for call in [call for call in live if last[call.number][0] == step]:
            live.remove(call)
            await _end(connection, call, message, last[call.number][1])
        await connection.send(*(connection.peer.send(call, message) for call in live))
        due = [call for call in live if answers]
        await connection.until(
            lambda due=due, answers=answers: all(call.closed or len(call.messages) >= answers for call in due),
            "the answers are there",
        )
    short = [call for call in live if len(call.messages) < _STEPS[-1][1]]
    for call in live:
        await _end(connection, call, b"", last[call.number][1])
    return len(short)


async def _end(connection: RawConnection, call: Call, message: bytes, how: str) -> None:
    peer = connection.peer
    if call.closed:
        return
    match how:
        case "reset":
            await connection.send(peer.cancel(call))
        case "half close":
            await connection.send(peer.send(call, b"", end=True))
        case "cut in a frame" if message:
            await connection.send(peer.send(call, message[: len(message) // 2]), peer.cancel(call))
        case _:
            pass  # it ends with its connection


async def end_in_queue(port: int, count: int, seed: int) -> dict[str, Any]:
    """Occupy the four slots, and end the streams that wait for one."""
    chance, ended = random.Random(seed), 0
    request = b"".join(message for message, _ in _STEPS[:3])
    async with connected(port) as first:
        holders = [first.peer.call(PATH, request) for _ in range(4)]
        await first.send(*(opened for _, opened in holders))
        await first.until(lambda: all(len(call.messages) == 2 for call, _ in holders), "four are routed")
        while ended < count:
            async with connected(port) as connection:
                calls = [connection.peer.call(PATH, request) for _ in range(min(_AT_ONCE, count - ended))]
                await connection.send(*(opened for _, opened in calls), h2.ping(b"are here"))
                await connection.until(lambda peer=connection.peer: peer.pongs, "all have arrived")
                for call, _ in calls:
                    await _end(connection, call, b"", chance.choice(_ENDS))
                await connection.send(h2.ping(b"have end"))
                await connection.until(lambda peer=connection.peer: len(peer.pongs) == 2, "all have ended")
                ended += len(calls)
    return {"ended": ended}


async def lose_gateways(port: int, count: int) -> dict[str, Any]:
    """Occupy the four slots, let others wait on several connections, and close these after another request."""
    request = b"".join(message for message, _ in _STEPS[:3])
    each = count // _GATEWAYS
    async with connected(port) as first, AsyncExitStack() as stack:
        holders = [first.peer.call(PATH, request) for _ in range(4)]
        await first.send(*(opened for _, opened in holders))
        await first.until(lambda: all(len(call.messages) == 2 for call, _ in holders), "four are routed")
        gateways = [await stack.enter_async_context(connected(port)) for _ in range(_GATEWAYS)]
        calls = []
        for gateway in gateways:
            for start in range(0, each, _AT_ONCE):
                some = [gateway.peer.call(PATH, request) for _ in range(min(_AT_ONCE, each - start))]
                calls += [call for call, _ in some]
                await gateway.send(*(opened for _, opened in some), h2.ping())
                pongs = start // _AT_ONCE + 1
                await gateway.until(
                    lambda peer=gateway.peer, pongs=pongs: len(peer.pongs) == pongs, "they have arrived"
                )
        waited = sum(not call.closed for call in calls)
        for gateway in gateways:
            gateway.abort()
        longest, ends = 0.0, time.perf_counter() + 1.0
        while (began := time.perf_counter()) < ends:
            call, opened = first.peer.call("/nobody/Home")
            await first.send(opened)
            await first.until(lambda call=call: call.closed, "the call is refused")
            longest = max(longest, time.perf_counter() - began)
            await asyncio.sleep(_BETWEEN_CALLS)
        return {"waited": waited, "longest": longest}


def malformed(chance: random.Random) -> tuple[bytes, ...]:
    """Return messages, framed for gRPC, with at least one invalid one."""
    return chance.choice(_MISTAKES)(chance)


def _changed(chance: random.Random) -> tuple[bytes, ...]:
    message = bytearray(chance.choice(_STEPS)[0][5:])
    for _ in range(3):
        message[chance.randrange(len(message))] ^= chance.randrange(1, 256)
    return FIRST, h2.grpc_message(bytes(message))


_MISTAKES: tuple[Callable[[random.Random], tuple[bytes, ...]], ...] = (
    lambda chance: (h2.grpc_message(chance.randbytes(chance.randrange(1, 400))),),  # not a message
    lambda chance: (h2.grpc_message(FIRST[5 : chance.randrange(6, len(FIRST))]),),  # truncated
    _changed,
    lambda chance: tuple(chance.choices([message for message, _ in _STEPS[1:]], k=3)),  # an invalid order
    lambda chance: (
        b"\x00" + (2**32 - 1 - chance.randrange(1000)).to_bytes(4, "big") + b"x" * 100,
    ),  # an invalid length
    lambda _: (b"\x01" + FIRST[1:],),  # marked as compressed
    lambda _: (h2.grpc_message(b""),),  # not a part of an exchange
    lambda chance: (FIRST, h2.grpc_message(request_body(chance.randbytes(200), end=True).SerializeToString())),
)


async def send_malformed(port: int, count: int, seed: int) -> dict[str, Any]:
    """Send streams, many per connection, until all are sent; wait until each has a response."""
    chance, figures = random.Random(seed), Counter[str]()
    while figures["sent"] < count:
        async with connected(port) as connection:
            for _ in range(10):
                calls = []
                for _ in range(_AT_ONCE):
                    call, opened = connection.peer.call(PATH, *malformed(chance), end=chance.random() < 0.7)
                    calls.append(call)
                    await connection.send(opened)
                await connection.send(*(connection.peer.cancel(call) for call in calls if not call.finished))
                figures["sent"] += len(calls)
                await _read_until_ended(connection, [call for call in calls if call.finished])
                if connection.at_end:
                    figures["closed"] += 1
                    break
    return {"sent": figures["sent"], "closed": figures["closed"]}


async def _read_until_ended(connection: RawConnection, calls: list[Call]) -> None:
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while not connection.at_end and not all(call.closed for call in calls):
            await connection.read()
