# SPDX-License-Identifier: Apache-2.0
"""Feeds that change while a collector runs, as when a configuration is read again."""

import asyncio
from itertools import pairwise
from math import inf, isnan

import pytest

from epp.framework import Endpoint, SystemClock
from epp.framework.datalayer import Feed, TrustsMetrics
from epp.framework.snapshot import REACHABLE, RUNNING
from epp.plugins.saturation import UtilizationDetector, UtilizationDetectorParameters
from epp.pool.collectors.polling.collector import Collector
from epp.routing.datastore import Datastore
from tests.support.scripted_source import PAGE, Counting, Length, value


async def test_feeds_that_stay_go_on_undisturbed_when_others_come_and_go(metrics_feed, server, until, collecting):
    store = Datastore(SystemClock())
    store.replace([server.endpoint("a"), server.endpoint("b")])
    old, new = Feed(Counting(), (Length(),)), Feed(Counting(), (Length(),))
    staying = metrics_feed()
    collector = await collecting(store, staying, old)
    await until(lambda: old.source.asked and value(store, slot=0) == value(store, slot=1) == 3)
    running = {members[staying] for members in collector._poller.polled_feeds.values()}
    await collector.replace([Feed(staying.source, staying.extractors), new])  # the same objects in another pair
    assert collector.feed_count == 4
    assert running == {members[staying] for members in collector._poller.polled_feeds.values()}
    asked = len(old.source.asked)
    server.page = b"vllm:num_requests_waiting 5\n"
    await until(lambda: value(store, slot=0) == value(store, slot=1) == 5)
    await until(lambda: {endpoint.name for endpoint in new.source.asked} == {"a", "b"})
    assert len(old.source.asked) == asked


async def test_source_may_be_closed_once_its_feed_was_replaced(store, metrics_feed, server, until, collecting):
    server.hanging = True
    feed = metrics_feed(timeout="1m")
    collector = await collecting(store, feed)
    await until(lambda: server.asked)
    await collector.replace([])
    assert collector.feed_count == 1  # the probe of an endpoint that no feed asks
    await feed.source.close()  # complains of nothing
    assert value(store, REACHABLE) == 1


def endpoints(count: int) -> list[Endpoint]:
    return [Endpoint(f"e{number}", "127.0.0.1", number + 1) for number in range(count)]


def polled_for(collector: Collector, feed: Feed) -> set[str]:
    return {identity for identity, members in collector._poller.polled_feeds.items() if feed in members}


async def test_feeds_are_replaced_a_few_endpoints_in_each_turn_of_the_event_loop(collecting, monkeypatch):
    monkeypatch.setattr("epp.pool.collectors.tagging.STRETCH_SECONDS", 0.0)  # so that each takes long enough
    store = Datastore(SystemClock())
    store.replace(endpoints(200))
    old, new = (Feed(Counting(interval_seconds=3600.0), (Length(),)) for _ in range(2))
    collector = await collecting(store, old)
    replacing = asyncio.ensure_future(collector.replace([new]))
    counts = [0]
    while not replacing.done():
        await asyncio.sleep(0)
        counts.append(len(polled_for(collector, new)))
        assert len(polled_for(collector, old)) == 200 - counts[-1]  # each endpoint has the one or the other
    await replacing
    assert counts[-1] == 200
    assert max(after - before for before, after in pairwise(counts)) == 1


async def test_endpoints_may_come_and_go_and_the_collector_stop_while_feeds_are_replaced(collecting):
    store = Datastore(SystemClock())
    everyone = endpoints(200)
    store.replace(everyone)
    old, new = (Feed(Counting(interval_seconds=3600.0), (Length(),)) for _ in range(2))
    collector = await collecting(store, old)
    replacing = asyncio.ensure_future(collector.replace([new]))
    await asyncio.sleep(0)
    assert polled_for(collector, old)
    joining = Endpoint("joining", "127.0.0.1", 1000)
    store.update([joining], [everyone[0].id, everyone[-1].id])  # one that has the new feed, and one that has the old
    assert collector.feed_count == 199
    await replacing
    assert polled_for(collector, old) == set()
    assert polled_for(collector, new) == {joining.id, *(endpoint.id for endpoint in everyone[1:-1])}
    assert collector.feed_count == 199
    replacing = asyncio.ensure_future(collector.replace([old]))
    await asyncio.sleep(0)
    await collector.stop()
    await replacing
    assert collector.feed_count == 0


async def test_endpoint_that_joins_after_a_replacement_is_asked_by_the_new_feeds_only(
    metrics_feed, server, until, collecting
):
    store = Datastore(SystemClock())
    old, new = Feed(Counting(), (Length(),)), metrics_feed()
    collector = await collecting(store, old)
    await collector.replace([new])
    store.replace([server.endpoint()])
    await until(lambda: value(store) == 3)
    assert collector.feed_count == 1
    assert old.source.asked == []
    store.replace([])
    await until(lambda: collector.feed_count == 0)


async def test_another_extractor_makes_another_feed_and_one_given_twice_is_asked_once(
    store, metrics_feed, server, until, collecting
):
    feed = metrics_feed()
    collector = await collecting(store, feed, feed)
    assert collector.feed_count == 1
    await until(lambda: value(store) == 3)
    await collector.replace([Feed(feed.source, (Length(),))])
    await until(lambda: value(store, RUNNING) == len(server.page))
    assert collector.feed_count == 1


async def test_reachability_of_an_endpoint_stays_known_across_replacements(
    store, metrics_feed, server, until, collecting
):
    collector = await collecting(store, metrics_feed())
    for feeds in ([metrics_feed(path="/other")], []):  # or no feed at all: it is probed then
        await server.stop()
        await until(lambda: value(store, REACHABLE) == 0)
        await collector.replace(feeds)
        assert value(store, REACHABLE) == 0  # it is still not there
        await server.start()
        await until(lambda: value(store, REACHABLE) == 1)
    await collector.replace([metrics_feed()])
    assert collector.feed_count == 1  # it asks the endpoint, so that no probe has to


async def test_what_only_feeds_that_are_gone_reported_is_unknown_again(store, metrics_feed, until, collecting):
    feed = metrics_feed()
    length = Feed(Counting(), (Length(),))
    collector = await collecting(store, feed)
    await until(lambda: value(store) == 3)
    await collector.replace([length])
    await until(lambda: value(store, RUNNING) == len(PAGE))
    assert isnan(value(store))
    await collector.replace([length, feed])
    await until(lambda: value(store) == 3)
    await collector.replace([feed])
    assert value(store) == 3  # the one that stayed goes on saying so


async def test_bad_replacement_changes_nothing(store, metrics_feed, until, collecting):
    collector = await collecting(store, metrics_feed())
    with pytest.raises(ValueError, match="source 'script': an interval of 0 s is too short"):
        await collector.replace([Feed(Counting(interval_seconds=0), ())])
    assert collector.feed_count == 1
    await until(lambda: value(store) == 3)


async def test_replacement_outside_of_start_and_stop_starts_nothing(store, metrics_feed, until, collecting):
    collector = Collector(store, [], clock=SystemClock(), interval_seconds=0.01)
    feed = metrics_feed()
    await collector.replace([feed])
    assert collector.feed_count == 0
    await collector.start()
    await until(lambda: value(store) == 3)
    await collector.stop()
    await collector.replace([Feed(Counting(), ())])
    assert collector.feed_count == 0


async def test_endpoints_at_rest_are_polled_as_often_as_the_plugins_in_effect_trust_metrics(collecting):
    store = Datastore(SystemClock())
    store.replace([Endpoint("a", "127.0.0.1", 1)])
    fixed = Feed(Counting(interval_seconds=0.02), (Length(),))
    collector = await collecting(store, Feed(Counting(), (Length(),)), fixed, interval_seconds=0.05)
    detector = UtilizationDetector(UtilizationDetectorParameters(metrics_staleness_threshold="100ms"))
    assert isinstance(detector, TrustsMetrics)
    for seconds, slowest in [(detector.oldest_metrics_seconds, 0.075), (inf, 0.15)]:
        collector.trust_for(seconds)
        store.update([Endpoint("b", "127.0.0.1", 2)], ["default/b"])  # one that joins afterwards, too
        cadences = [
            member.cadence for members in collector._poller.polled_feeds.values() for member in members.values()
        ]
        assert [one.interval(SystemClock().now() + 60) for one in cadences if one is not None] == pytest.approx(
            [slowest] * 2
        )
        assert cadences.count(None) == 2  # an interval of a source's own stays as it is
