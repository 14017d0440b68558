# SPDX-License-Identifier: Apache-2.0
"""The round trip to an endpoint, as the connection for its polls took."""

import asyncio
import socket
import struct

import pytest

from epp.framework import Endpoint, SystemClock
from epp.framework.datalayer import Feed
from epp.framework.snapshot import ROUND_TRIP
from epp.pool.collectors.engine_metrics import CoreMetricsExtractor, MetricsDataSource
from epp.pool.collectors.polling.collector import Collector
from epp.pool.collectors.sources import connection
from epp.routing.datastore import Datastore
from epp.runtime.supervisor import Supervisor
from tests.support.waiting import until


class Connected:
    """A socket whose kernel knows this much of it."""

    def __init__(self, info: bytes | OSError) -> None:
        self.info = info

    def getsockopt(self, *_) -> bytes:
        if isinstance(self.info, OSError):
            raise self.info
        return self.info


@pytest.mark.parametrize(
    ("info", "seconds"),
    [
        (bytes(148) + struct.pack("=I", 35_000), 0.035),
        (bytes(152), 0.5),  # the kernel does not know
        (bytes(104), 0.5),  # an old one
        (OSError("no such option"), 0.5),
    ],
)
def test_ocm_17_round_trip_is_that_of_the_kernel_or_else_the_time_of_connecting(info, seconds):
    assert connection._round_trip(Connected(info), 0.5) == seconds


async def test_ocm_17_polls_measure_the_round_trip_to_each_endpoint():
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with await asyncio.start_server(answer, "127.0.0.1", 0, family=socket.AF_INET) as server:
        store, supervisor = Datastore(SystemClock()), Supervisor()
        store.replace([Endpoint("a", "127.0.0.1", server.sockets[0].getsockname()[1])])
        feed = Feed(MetricsDataSource(), (CoreMetricsExtractor(),))
        collector = Collector(store, [feed], clock=SystemClock(), interval_seconds=0.01, supervisor=supervisor)
        await collector.start()
        await until(lambda: store.snapshot().column(ROUND_TRIP)[0] > 0, "a round trip is known")
        await collector.stop()
        await supervisor.stop()
