# SPDX-License-Identifier: Apache-2.0
"""What hostile gateways do, as functions, and as a program of its own: `attacks.py PORT NAME [NUMBER ...]`.

As a program it prints what became of the attack as JSON; so neither a probe nor the picker waits for the attacker's own
Python.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from pathlib import Path

import http2_bytes as h2
from bench import request_body
from http2_peer import Call
from probing import PATH, REQUEST
from raw_connection import RawConnection, connected
from serving import first_message

MIB = 1024 * 1024
FIRST = h2.grpc_message(first_message().SerializeToString())
PIECE_BYTES = 64 * 1024
PIECE = h2.grpc_message(request_body(b"x" * PIECE_BYTES, end=False).SerializeToString())


async def rapid_resets(port: int, streams: int = 50_000) -> dict[str, object]:
    """Open streams on one connection and reset each at once, as fast as they are taken; one round."""
    async with connected(port) as connection:
        peer = connection.peer
        _, first = peer.call(PATH)
        block = bytes(first[h2.HEAD_BYTES :]) if hasattr(h2, "HEAD_BYTES") else bytes(first[9:])
        reading = asyncio.create_task(connection.until_closed())
        sent = 0
        for begin in range(1, 2 * streams, 2000):
            numbers = range(begin + 2, begin + 2002, 2)
            frames = b"".join(h2.headers(number, block) + h2.rst_stream(number, h2.Error.CANCEL) for number in numbers)
            if not await connection.offer(frames, seconds=20):
                break
            sent += len(numbers)
            if connection.at_end:
                break
        connection.abort()
        with contextlib.suppress(AssertionError):
            await reading
        return {"sent": sent}


async def held_bodies(port: int, bodies: int = 40, mebibytes: int = 31, hold_seconds: float = 2.0) -> dict[str, object]:
    """Send almost all of large bodies at once, each on a connection of its own, and hold them open."""
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(connected(port)) for _ in range(bodies)]
        calls = await asyncio.gather(*(_send_body(each, mebibytes * MIB) for each in connections))
        until = asyncio.get_running_loop().time() + hold_seconds
        await asyncio.gather(*(_read_until(each, until) for each in connections))
        ended = [call for call in calls if call.closed]
        return {"held": len(calls) - len(ended), "refused": len(ended)}


async def _send_body(connection: RawConnection, size: int) -> Call:
    peer = connection.peer
    call, opened = peer.call(PATH, FIRST)
    await connection.send(opened)
    left = memoryview(PIECE)[:0]
    for _ in range(size // PIECE_BYTES):
        left = memoryview(PIECE)
        while left:
            room = peer.room(call)
            if call.closed or connection.at_end:
                return call
            if not room:
                await connection.read()
                continue
            await connection.send(peer.send(call, bytes(left[:room])))
            left = left[room:]
    return call


async def _read_until(connection: RawConnection, when: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(when):
            while not connection.at_end:
                await connection.read()


async def slow_writers(
    port: int, streams: int = 5_000, seconds: float = 20.0, connections: int = 10
) -> dict[str, object]:
    """Keep streams open that each send a byte every two seconds, and never end."""
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(connected(port)) for _ in range(connections)]
        writers: list[tuple[RawConnection, Call]] = []
        for number in range(streams):
            connection = opened[number % connections]
            call, frames = connection.peer.call(PATH, REQUEST[:20])
            await connection.send(frames)
            writers.append((connection, call))
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        reading = [asyncio.create_task(_read_until(each, until + 60)) for each in opened]
        sent, step = 20, 50
        while loop.time() < until:
            began = loop.time()
            for at in range(0, len(writers), step):
                for connection, call in writers[at : at + step]:
                    if not call.closed:
                        await connection.send(connection.peer.send(call, REQUEST[sent : sent + 1]))
                await asyncio.sleep(max(0.0, began + 2.0 * (at + step) / len(writers) - loop.time()))
            sent += 1
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        return {"open": sum(not call.closed for _, call in writers), "bytes_each": sent}


ATTACKS = {each.__name__: each for each in (rapid_resets, held_bodies, slow_writers)}


@contextlib.asynccontextmanager
async def attacking(port: int, name: str, *numbers: float) -> AsyncIterator[asyncio.Task[dict[str, object]]]:
    """Run an attack in a process of its own; the task has what became of it."""
    task = asyncio.create_task(attack(port, name, *numbers))
    try:
        yield task
        await task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def attack(port: int, name: str, *numbers: float) -> dict[str, object]:
    """Run an attack in a process of its own to its end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *(str(Path(__file__)), str(port), name, *map(str, numbers)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        told, _ = await process.communicate()
        assert process.returncode == 0, name
        outcome: dict[str, object] = json.loads(told)
        return outcome
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _numbers(words: Iterable[str]) -> list[float]:
    return [int(word) if word.isdecimal() else float(word) for word in words]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(ATTACKS[sys.argv[2]](int(sys.argv[1]), *_numbers(sys.argv[3:])))))  # noqa: T201  its outcome
