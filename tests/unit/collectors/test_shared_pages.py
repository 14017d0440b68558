# SPDX-License-Identifier: Apache-2.0
"""Pages of an endpoint that several pools poll."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from epp.framework import ManualClock, SystemClock
from epp.framework.snapshot import WAITING
from epp.pool.collectors.polling.poller import SharedPages
from epp.routing.datastore import Datastore


def stores_of(server, count: int) -> list[Datastore]:
    stores = [Datastore(SystemClock()) for _ in range(count)]
    for store in stores:
        store.replace([server.endpoint()])
    return stores


async def read_by(stores, metrics_feed, collecting, until, shared) -> int:
    """Collect for a pool in each store until each has read five pages; return how many all have read."""
    read: Counter[int] = Counter()

    def count(store: Datastore) -> None:
        report = store.report

        def counted(*arguments) -> None:
            read[id(store)] += 1
            report(*arguments)

        store.report = counted

    for store in stores:
        count(store)
        await collecting(store, metrics_feed(interval="200ms"), shared=shared)
    await until(lambda: len(read) == len(stores) and min(read.values()) >= 5)
    return sum(read.values())


async def test_pools_use_the_pages_of_each_other(server, metrics_feed, collecting, until):
    stores = stores_of(server, 4)
    read = await read_by(stores, metrics_feed, collecting, until, SharedPages(SystemClock()))
    assert len(server.asked) < read
    assert {float(store.snapshot().column(WAITING)[0]) for store in stores} == {3.0}


async def test_pools_that_share_nothing_ask_for_themselves(server, metrics_feed, collecting, until):
    read = await read_by(stores_of(server, 4), metrics_feed, collecting, until, None)
    assert len(server.asked) >= read


@given(st.lists(st.tuples(st.sampled_from("jlpt"), st.sampled_from("ab")), max_size=60))
def test_page_is_recent_only_for_several_readers_and_nothing_stays_of_those_that_left(steps):
    clock = ManualClock()
    pages, readers, read_at = SharedPages(clock), Counter(), {}
    for step, key in steps:
        if step == "j":
            pages.join(key)
            readers[key] += 1
        elif step == "l" and readers[key]:
            pages.leave(key)
            readers[key] -= 1
            if readers[key] < 2:
                read_at.pop(key, None)
        elif step == "p" and readers[key]:
            pages.put(key, key.encode())
            if readers[key] > 1:
                read_at[key] = clock.now()
        elif step == "t":
            clock.advance(0.4)
        for each in "ab":
            is_recent = each in read_at and clock.now() - read_at[each] < 1.0
            assert pages.recent(each, 1.0) == (each.encode() if is_recent else None)
    for key in readers.elements():
        pages.leave(key)
    assert (pages._users, pages._pages) == ({}, {})
