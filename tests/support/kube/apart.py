# SPDX-License-Identifier: Apache-2.0
"""Runs a command in a network of its own, where all ports are free and one of them leads to the API server.

    python apart.py PORT SOCKET COMMAND...

inside of `unshare --net`; outside, `gate` lets connections to the socket through to the port.
"""

import asyncio
import contextlib
import fcntl
import socket
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

NAMESPACES = ("unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child")
HOST = "127.0.0.1"


@asynccontextmanager
async def gate(port: int, path: Path) -> AsyncIterator[None]:
    """Lead from a Unix socket, which is the same in all networks, to a port of this one."""

    async def through(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await join(reader, writer, await asyncio.open_connection(HOST, port))

    server = await asyncio.start_unix_server(through, path)
    try:
        yield
    finally:
        server.close()


async def join(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, other: tuple[asyncio.StreamReader, asyncio.StreamWriter]
) -> None:
    """Pass bytes both ways until both have ended."""
    await asyncio.gather(_pass(reader, other[1]), _pass(other[0], writer))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    writer.close()


def bring_loopback_up() -> None:
    """Do as `ip link set lo up` does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP


async def run(port: int, path: Path, command: list[str]) -> int:
    """Run the command; return its exit code."""

    async def through(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await join(reader, writer, await asyncio.open_unix_connection(path))

    async with await asyncio.start_server(through, HOST, port):
        process = await asyncio.create_subprocess_exec(*command)
        return await process.wait()


if __name__ == "__main__":
    bring_loopback_up()
    sys.exit(asyncio.run(run(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])))
