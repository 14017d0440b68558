# SPDX-License-Identifier: Apache-2.0
"""A collector and the servers that it polls: they come and go, and none holds up another."""

import asyncio
import math
import struct
from unittest.mock import Mock

import pytest
import uvloop

from epp.framework import Endpoint, ManualClock, SystemClock
from epp.framework.datalayer import Contact, Feed
from epp.framework.snapshot import GPU_UTILIZATION, METRICS_AT, REACHABLE, ROUND_TRIP
from epp.pool.collectors.engine_metrics import CoreMetricsExtractor, MetricsDataSource
from epp.pool.collectors.polling.collector import Collector
from epp.pool.collectors.sources import connection
from epp.pool.collectors.sources.http import DcgmDataSource, DcgmExtractor, DcgmSourceParameters
from epp.pool.collectors.sources.probes import ConnectionProbe
from epp.routing.datastore import Datastore
from tests.support.hostile_servers import answering, whole
from tests.support.scripted_source import PAGE, Counting, Errors, Length, Script, value
from tests.support.waiting import until

E = Endpoint("e", "10.0.0.1", 8000)


def contacts(collector: Collector) -> list[Contact]:
    return [condition.contact for _, condition in collector.conditions.all]


async def test_endpoint_that_no_feed_asks_is_probed(store, server, until, collecting, monkeypatch):
    monkeypatch.setattr(ConnectionProbe, "interval_seconds", 0.01)
    collector = await collecting(store, Feed(Counting(port=1), ()))
    await until(lambda: contacts(collector) == [Contact.ANSWERS])
    await server.stop()
    await until(lambda: value(store, REACHABLE) == 0)
    assert contacts(collector) == [Contact.REFUSED]
    await server.start()
    await until(lambda: value(store, REACHABLE) == 1)
    assert server.asked == []


async def test_server_with_or_without_a_page_is_unreachable_while_it_is_stopped(
    metrics_feed, store, server, until, collecting
):
    collector = await collecting(store, metrics_feed())

    async def meets(contact: Contact, available: int) -> None:
        await until(lambda: contacts(collector) == [contact])
        assert (value(store, REACHABLE), len(store.snapshot().available)) == (available, available)

    for server.status, contact in ((200, Contact.ANSWERS), (404, Contact.NO_PAGE), (200, Contact.ANSWERS)):
        await server.start()
        await meets(contact, 1)
        await server.stop()
        await meets(Contact.REFUSED, 0)
        server.page = b"vllm:num_requests_waiting 5\n"
    assert value(store) == 5


async def test_https_endpoint_that_joins_a_gateway_without_tls_is_not_used(server, collecting):
    store = Datastore(SystemClock())
    collector = await collecting(store)
    collector.limit_tls(by_name=True, addresses=["127.0.0.2"])
    plain = server.endpoint("plain")
    named, known, new = (
        Endpoint(name, address, 1, host=host, tls=True)
        for name, address, host in (("named", "127.0.0.1", "a"), ("known", "127.0.0.2", ""), ("new", "127.0.0.1", ""))
    )
    store.replace([plain, named, known, new])
    used = {endpoint.name: condition.used for endpoint, condition in collector.conditions.all}
    assert used == {"plain": True, "named": True, "known": True, "new": False}
    assert value(store, REACHABLE, slot=3) == 0
    collector.limit_tls(by_name=False, addresses=())
    store.replace([Endpoint("plain", "127.0.0.1", server.port, host="a", tls=True)])  # the same one, over TLS now
    ((_, condition),) = collector.conditions.all
    assert (condition.contact, condition.remedy) == (Contact.TLS_UNAVAILABLE, "restart the gateway")


async def test_server_that_hangs_becomes_unreachable(metrics_feed, store, server, until, collecting):
    server.hanging = True
    await collecting(store, metrics_feed(timeout="20ms"))
    await until(lambda: value(store, REACHABLE) == 0.5)
    await until(lambda: len(server.asked) >= 3)  # a busy server reads a request after the poll has timed out


async def test_polls_follow_the_pool_until_the_collector_stops(metrics_feed, server, until, collecting, deaf_port):
    store = Datastore(SystemClock())
    a, b = server.endpoint("a"), server.endpoint("b")
    collector = await collecting(store, metrics_feed())
    assert collector.feed_count == 0
    store.replace([a, b])
    assert collector.feed_count == 2
    await until(lambda: value(store, slot=0) == value(store, slot=1) == 3)
    store.replace([b])
    await until(lambda: collector.feed_count == 1)
    assert math.isnan(value(store, slot=0))
    store.replace([Endpoint("b", "127.0.0.1", deaf_port)])  # the same name elsewhere is another endpoint
    await until(lambda: value(store, REACHABLE, slot=store.snapshot().slots[0]) == 0)
    await collector.stop()
    store.replace([a])
    assert collector.feed_count == 0


async def test_endpoint_that_gets_another_label_is_asked_with_it(until, collecting):
    source = Counting()
    store = Datastore(SystemClock())
    store.replace([E])
    await collecting(store, Feed(source, (Length(),)))
    await until(lambda: source.asked)
    store.replace([Endpoint(E.name, E.address, E.port, labels={"a": "b"})])
    await until(lambda: source.asked[-1].labels == {"a": "b"})


async def test_exporter_that_fails_beside_an_endpoint_takes_nothing_with_it(
    metrics_feed, store, until, collecting, deaf_port
):
    errors = Errors()
    exporter = DcgmDataSource(DcgmSourceParameters(port=deaf_port, interval="10ms"))
    await collecting(store, metrics_feed(), Feed(exporter, (DcgmExtractor(),)), observer=errors)
    await until(lambda: errors.seen.count(("dcgm-data-source",)) >= 3)
    assert value(store, REACHABLE) == 1
    await until(lambda: value(store) == 3)


async def test_exporter_beside_an_endpoint_is_read(server, until, collecting):
    server.page = b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 50\n'
    exporter = DcgmDataSource(DcgmSourceParameters(port=server.port, interval="10ms"))
    store = Datastore(SystemClock())
    store.replace([Endpoint("e", "127.0.0.1", 1)])
    await collecting(store, Feed(exporter, (DcgmExtractor(),)))
    await until(lambda: value(store, GPU_UTILIZATION) == 0.5)
    assert math.isnan(value(store, METRICS_AT))  # the engine has said nothing yet


async def test_slow_source_does_not_hold_up_another(metrics_feed, store, server, until, collecting):
    class Stuck(Script):
        async def fetch(self, endpoint: Endpoint) -> bytes:
            self.asked.append(endpoint)
            await asyncio.Event().wait()
            return b""

    stuck = Stuck()
    collector = await collecting(store, Feed(stuck, (Length(),)), metrics_feed())
    assert collector.feed_count == 2
    await until(lambda: stuck.asked and len(server.asked) >= 3)


def test_interval_of_no_length_is_refused():
    clock = ManualClock()
    with pytest.raises(ValueError, match="source 'script': an interval of 0 s is too short"):
        Collector(Datastore(clock), [Feed(Script(interval_seconds=0), ())], clock=clock)


def test_runs_under_uvloop():
    async def collect() -> None:
        store, feed = Datastore(SystemClock()), Feed(MetricsDataSource(), (CoreMetricsExtractor(),))
        collector = Collector(store, [feed], clock=SystemClock(), interval_seconds=0.01)
        await collector.start()
        async with answering(whole(PAGE)) as server:
            store.replace([Endpoint("e", "127.0.0.1", server.port)])
            await until(lambda: value(store) == 3, "the page is read")
        await until(lambda: value(store, REACHABLE) == 0, "the server is gone")
        await collector.stop()
        await feed.source.close()

    uvloop.run(collect())


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
    connected = Mock(**{"getsockopt.side_effect": [info]})
    assert connection._round_trip(connected, 0.5) == seconds


async def test_ocm_17_polls_measure_the_round_trip_to_each_endpoint(store, metrics_feed, collecting, until):
    await collecting(store, metrics_feed())
    await until(lambda: value(store, ROUND_TRIP) > 0)
