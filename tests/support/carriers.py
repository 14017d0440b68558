# SPDX-License-Identifier: Apache-2.0
"""Servers of ext_proc within the test's own process, on either carrier."""

import contextlib
from collections.abc import AsyncIterator

from epp.extproc.budgets import Budgets
from epp.extproc.exchange import ExchangeSettings
from epp.extproc.grpcio_carrier import GrpcioCarrier
from epp.extproc.health import Health
from epp.extproc.http2_carrier import Http2Carrier
from epp.extproc.open_streams import SessionSource, StreamObserver
from epp.extproc.server import ExtProcServer
from epp.extproc.session import Session
from epp.extproc.settings import BudgetSettings, ServerSettings, Transport
from tests.support.exchanges import Bench


@contextlib.asynccontextmanager
async def carrying(
    address: str = "127.0.0.1:0", transport: Transport = Transport.ASYNCIO, **settings
) -> AsyncIterator[tuple[Http2Carrier | GrpcioCarrier, Health]]:
    """Run a carrier for health checks alone, in plaintext unless `secure` is set."""
    carriers = {Transport.ASYNCIO: Http2Carrier, Transport.GRPCIO: GrpcioCarrier}
    sessions, health = SessionSource(_no_session, Budgets(BudgetSettings())), Health()
    carrier = carriers[transport](sessions, health, ServerSettings(address, **{"secure": False, **settings}))
    await carrier.start()
    try:
        yield carrier, health
    finally:
        await carrier.stop(0, 0)


@contextlib.asynccontextmanager
async def serving_sessions(
    bench: Bench,
    transport: Transport,
    settings: ExchangeSettings,
    observer: StreamObserver | None = None,
    **server_settings,
) -> AsyncIterator[ExtProcServer]:
    """Serve sessions over the director of a bench, in plaintext."""
    server = ExtProcServer(
        lambda traits, claim, _: Session(bench.director, settings, traits, claim),
        ServerSettings("127.0.0.1:0", secure=False, transport=transport, **server_settings),
        observer,
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def _no_session(*_) -> Session:
    raise AssertionError
