# SPDX-License-Identifier: Apache-2.0
"""Periodic expiry of in-flight requests that are no longer credible, and of outlier ejections."""

import asyncio

import structlog

from epp.admission.quotas import Quotas
from epp.routing.datastore import Datastore
from epp.routing.director.open_requests import SWEEP_SECONDS, Reservations
from epp.routing.outliers import OutlierDetector

QUOTA_SECONDS = 3.0
"""Time between two looks at quotas."""
_OUTLIER_SECONDS = 0.2

_log = structlog.get_logger()


async def sweep_quotas(quotas: Quotas) -> None:
    """Charge the time of long requests, some of them each time."""
    while True:
        await asyncio.sleep(QUOTA_SECONDS)
        quotas.sweep()


async def sweep_reservations(reservations: Reservations, store: Datastore) -> None:
    """Let endpoints be rid of requests that they have not answered, or that they inherited, for too long."""
    while True:
        await asyncio.sleep(min(SWEEP_SECONDS, reservations.seconds))
        store.sweep_inherited()
        expired = 0
        for some in reservations.sweep():
            expired += some
            await asyncio.sleep(0)
        if expired:
            _log.warning(
                "requests count as load no more: no response has begun, and their streams are still open",
                requests=expired,
                seconds=reservations.seconds,
                remedy="set a timeout in the gateway's routes, or a longer --reservation-ttl for long answers",
            )


async def sweep_outliers(outliers: OutlierDetector) -> None:
    """End suspicions and ejections when their time is up; sleep while nothing is held against any endpoint."""
    news = asyncio.Event()
    outliers.subscribe(news.set)
    while True:
        await news.wait()
        news.clear()
        while not outliers.is_clean:
            await asyncio.sleep(_OUTLIER_SECONDS)
            outliers.sweep()
