# SPDX-License-Identifier: Apache-2.0
"""Streams that are opened and reset immediately, that send bytes slowly, or whose bodies never end."""

import asyncio
import contextlib
import time
from contextlib import AsyncExitStack
from typing import Any

import grpc

from epp.extproc.wire import METHOD, SERVICE
from perf.hostile.scene import FEW_MIB, Campaign, scene
from tests.support.exchanges import BODY, request_body
from tests.support.http2 import http2_bytes as h2
from tests.support.http2.raw_connection import RawConnection, connected
from tests.support.http2.renewing_client import RenewingClient
from tests.support.serving import APART, SECURE, exchange, first_message

PATH = f"/{SERVICE}/{METHOD}"
FIRST = h2.grpc_message(first_message().SerializeToString())
WHOLE = h2.grpc_message(request_body(BODY, end=True).SerializeToString())
_PIECE = 64 * 1024
_GATHERED_MIB = 256.0
"""Default of `--max-gathered-bytes`."""


async def rapid_resets(campaign: Campaign) -> None:
    """50,000 streams that are reset immediately after their request, three times; refused ones are sent again."""
    count = campaign.of(50_000, 5_000)
    async with scene(campaign.judge) as picker:
        connections = 0
        async with picker.beside() as seen:
            for _ in range(3):
                said = await picker.attack("floods", "reset_rapidly", port=picker.served.grpc_port, count=count)
                connections += said["connections"]
        campaign.judge.shows("streams reset", 3 * count)
        campaign.judge.shows("connections it took", connections)
        picker.judge_beside(seen)
        await picker.judge_rest(peak_mib=FEW_MIB)


async def reset_rapidly(port: int, count: int) -> dict[str, Any]:
    """Reset streams with and without a request, on as many connections as the server requires."""
    sent = connections = 0
    while sent < count:
        connections += 1
        async with connected(port) as connection:
            reading = asyncio.create_task(read_on(connection))
            while sent < count and not connection.at_end:
                pieces = []
                for number in range(100):
                    room = connection.peer.send_window > 2 * len(FIRST)
                    call, opened = connection.peer.call(PATH, *([FIRST] if number % 2 and room else []))
                    pieces += [opened, connection.peer.cancel(call)]
                await connection.send(*pieces)
                await asyncio.sleep(0)  # meanwhile, the end of the connection is read
                sent += 100
            await _stopped(reading)
    return {"sent": sent, "connections": connections}


async def read_on(connection: RawConnection) -> None:
    """Read data until the connection ends."""
    while not connection.at_end:
        await connection.read()


async def renewed_keys(campaign: Campaign) -> None:
    """Connections that renew TLS keys 50,000 times without a pause, and reconnect if they are closed."""
    connections = campaign.of(40, 8)
    async with scene(campaign.judge, SECURE) as picker:
        async with picker.beside() as seen:
            said = await picker.attack(
                "floods", "renew_keys", port=picker.served.grpc_port, connections=connections, count=50_000
            )
        campaign.judge.shows("renewals sent", said["sent"])
        campaign.judge.exactly("connections cut off", said["cut_off"], connections)
        picker.judge_beside(seen)
        await picker.judge_rest(peak_mib=FEW_MIB)


async def renew_keys(port: int, connections: int, count: int) -> dict[str, Any]:
    """Send as many key renewals as the server accepts, on one connection after the other."""
    sent = cut_off = 0
    for number in range(connections):
        client = RenewingClient()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while not client.shake_hands():
                writer.write(client.leaving())
                client.arrived(await reader.read(_PIECE))
            client.write(h2.PREFACE + h2.settings())
            for _ in range(count):
                client.renew(ask=bool(number % 2))
            writer.write(client.leaving())
            sent += count
            async with asyncio.timeout(30):
                while await reader.read(_PIECE):
                    pass
            cut_off += 1
        except ConnectionError:
            cut_off += 1
        except TimeoutError:
            pass
        finally:
            client.close()
            writer.close()
    return {"sent": sent, "cut_off": cut_off}


async def slow_writers(campaign: Campaign) -> None:
    """5,000 streams that send a byte every two seconds."""
    streams, seconds = campaign.of(5_000, 1_000), campaign.of(60, 8)
    async with scene(campaign.judge) as picker:
        async with picker.beside() as seen:
            said = await picker.attack(
                "floods", "write_slowly", port=picker.served.grpc_port, streams=streams, seconds=seconds
            )
        campaign.judge.shows("streams open", said["open"])
        picker.judge_beside(seen, p99=0.020, longest=None)
        await picker.judge_rest(peak_mib=144.0)


async def write_slowly(port: int, streams: int, seconds: float) -> dict[str, Any]:
    """Open streams on 25 connections, and send one byte of each, evenly over two seconds."""
    connections, request = 25, FIRST + WHOLE
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(connected(port)) for _ in range(connections)]
        readers = [asyncio.create_task(read_on(connection)) for connection in opened]
        calls = []
        for connection in opened:
            pairs = [connection.peer.call(PATH) for _ in range(streams // connections)]
            await connection.send(*(piece for _, piece in pairs))
            calls.append([call for call, _ in pairs])
        end, at = time.monotonic() + seconds, 0
        while time.monotonic() < end and at < len(request) - 1:
            for connection, own in zip(opened, calls, strict=True):
                live = [call for call in own if not call.closed]
                if not connection.at_end:
                    await connection.send(*(connection.peer.send(call, request[at : at + 1]) for call in live))
                await asyncio.sleep(2 / connections)
            at += 1
        left = sum(not call.closed for own in calls for call in own)
        await _stopped(*readers)
    return {"open": left}


async def stalled_requests(campaign: Campaign) -> None:
    """Four times as many half-sent requests as may be pending; complete ones are served."""
    limit = campaign.of(16_384, 1_000)
    async with scene(campaign.judge, f"--max-pending-streams={limit}") as picker:
        async with picker.beside() as seen:
            said = await picker.attack("floods", "stall", port=picker.served.grpc_port, streams=limit, rounds=4)
        campaign.judge.shows("streams opened", said["opened"])
        picker.judge_beside(seen, longest=None)
        await picker.judge_rest(peak_mib=144.0)


async def stall(port: int, streams: int, rounds: int) -> dict[str, Any]:
    """Send only the headers and half a body of a number of requests per round; a round lasts two seconds."""
    connections, begun = 8, FIRST + h2.grpc_message(request_body(BODY[:5], end=False).SerializeToString())
    opened = 0
    async with AsyncExitStack() as stack:
        readers = []
        for _ in range(rounds):
            for _ in range(connections):
                connection = await stack.enter_async_context(connected(port))
                readers.append(asyncio.create_task(read_on(connection)))
                pairs = [connection.peer.call(PATH) for _ in range(streams // connections)]
                await connection.send(*(piece for _, piece in pairs))
                await connection.send(*(connection.peer.send(call, begun) for call, _ in pairs if not call.closed))
                opened += len(pairs)
                await asyncio.sleep(2 / connections)
        await _stopped(*readers)
    return {"opened": opened}


async def held_bodies(campaign: Campaign) -> None:
    """40 bodies of 31 MB that are never complete: buffered, delayed or refused, and dropped.

    The C library may keep their memory for the next bodies; `--max-gathered-bytes` limits it.
    """
    count = campaign.of(40, 24)
    async with scene(campaign.judge) as picker:
        async with picker.beside() as seen:
            said = await picker.attack("floods", "hold_bodies", port=picker.served.grpc_port, count=count, size=31)
        for how in ("held", "waiting", "refused", "ended"):
            campaign.judge.shows(f"bodies that were {how}", said[how])
        picker.judge_beside(seen, longest=None)
        await picker.judge_rest(peak_mib=772.0, grown_mib=_GATHERED_MIB + FEW_MIB)


async def hold_bodies(port: int, count: int, size: int) -> dict[str, Any]:
    """Send all but the end of each body at the same time; return the number of bodies by outcome."""
    outcomes = {"held": 0, "waiting": 0, "refused": 0, "ended": 0}
    piece = b"x" * _PIECE
    begin = b'{"model":"m","prompt":"'

    async def one(channel: grpc.aio.Channel) -> tuple[str, object]:
        call = exchange(channel)
        answer: asyncio.Task[Any] | None = None
        try:
            await call.write(first_message())
            await call.write(request_body(begin, end=False))
            answer = asyncio.create_task(call.read())
            for _ in range(size * 2**20 // _PIECE - 1):
                async with asyncio.timeout(5):
                    await call.write(request_body(piece, end=False))
                if answer.done():
                    return "refused", call
        except TimeoutError:
            return "waiting", call
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            refused = answer is not None and answer.done() and not answer.exception() and answer.result()
            return ("refused" if refused else "ended"), call
        else:
            return "held", call
        finally:
            if answer is not None:
                answer.cancel()

    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=APART))
            for _ in range(count)
        ]
        ends = await asyncio.gather(*(one(channel) for channel in channels))
        for how, _ in ends:
            outcomes[how] += 1
        await asyncio.sleep(2)
    return outcomes


async def _stopped(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError, AssertionError):
            await task
