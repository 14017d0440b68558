# SPDX-License-Identifier: Apache-2.0
"""Child side of orders: lines of JSON on standard input, answers on standard output."""

import asyncio
import json
import resource
import sys
from collections.abc import Awaitable, Callable
from typing import Any

Orders = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


async def obey(orders: Orders) -> None:
    """Execute the orders, one after the other, until standard input is closed."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        try:
            answer = await orders(json.loads(line))
        except Exception as error:  # noqa: BLE001  reported to the parent
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def many_descriptors() -> None:
    """Raise the soft limit of file descriptors to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
