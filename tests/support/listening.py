# SPDX-License-Identifier: Apache-2.0
"""An HTTP server of a test."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

from aiohttp import web

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def listening(
    serve: web.Application | Handler, *, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """Run an application, or one handler for all requests, on a port of loopback; yields its `host:port`."""
    if not isinstance(serve, web.Application):
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{path:.*}", serve)
        serve = app
    runner = web.AppRunner(serve, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
