# SPDX-License-Identifier: Apache-2.0
"""A worker process that answers ext_proc on connections that it is passed: `connection_worker.py CHANNEL GATE`."""

import asyncio
import socket
import sys
from collections.abc import Callable

import uvloop

from epp.extproc.exchange import ExchangeSettings
from epp.extproc.server import ExtProcServer
from epp.extproc.session import Session
from epp.extproc.settings import ServerSettings
from epp.sharing.channel import Channel
from epp.sharing.connections import ConnectionReceiver, Load
from tests.support.exchanges import new_bench


def adopting_server(*, secure: bool = False) -> ExtProcServer:
    """Return a server without a listener over three endpoints."""
    bench = new_bench()
    return ExtProcServer(
        lambda traits, claim, _: Session(bench.director, ExchangeSettings(), traits, claim),
        ServerSettings("", secure=secure),
    )


async def serve(gate: socket.socket, report: Callable[[Load], object], server: ExtProcServer) -> ConnectionReceiver:
    """Start the server; return what receives its connections."""
    await server.start()
    server.set_ready(ready=True)
    return ConnectionReceiver(server.http2, gate, report)


async def main(channel: socket.socket, gate: socket.socket) -> None:
    server = adopting_server()
    receiver = await serve(gate, lambda load: to_main.send("connections", load), server)
    to_main = Channel(channel, {"release": receiver.release})
    await to_main.open()
    receiving = asyncio.create_task(receiver.run())
    await to_main.run()
    receiving.cancel()
    await server.stop()


if __name__ == "__main__":
    uvloop.run(main(*(socket.socket(fileno=int(descriptor)) for descriptor in sys.argv[1:])))
