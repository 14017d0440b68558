# SPDX-License-Identifier: Apache-2.0
"""Streams of pickers, which run beside a test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from epp.framework.clock import Clock
from epp.sharing.exchange import Exchange
from epp.sharing.settings import SharingSettings
from epp.sharing.stream import SharedStream


@asynccontextmanager
async def streaming(exchange: Exchange, clock: Clock, url: str, **settings) -> AsyncIterator[SharedStream]:
    """Exchange batches through a server."""
    stream = SharedStream(exchange, SharingSettings(address=url, **settings), "pool", clock)
    stream.begins.set()
    task = asyncio.create_task(stream.run())
    try:
        yield stream
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
