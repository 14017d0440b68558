# SPDX-License-Identifier: Apache-2.0
"""Pages of an endpoint that several pools poll."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import ManualClock, SystemClock
from epp.framework.snapshot import WAITING
from epp.pool.collectors.polling.poller import SharedPages
from epp.routing.datastore import Datastore


@pytest.mark.parametrize("shares", [True, False])
async def test_pools_that_share_pages_use_those_of_each_other(server, metrics_feed, collecting, until, shares):
    shared = SharedPages(SystemClock()) if shares else None
    stores = [Datastore(SystemClock()) for _ in range(4)]
    read: Counter[int] = Counter()

    def count_reports(store: Datastore) -> None:
        report = store.report

        def counted(*arguments) -> None:
            read[id(store)] += 1
            report(*arguments)

        store.report = counted

    for store in stores:
        store.replace([server.endpoint()])
        count_reports(store)
        await collecting(store, metrics_feed(interval="200ms"), shared=shared)
    await until(lambda: len(read) == len(stores) and min(read.values()) >= 5)
    assert (len(server.asked) < sum(read.values())) is shares
    assert {float(store.snapshot().column(WAITING)[0]) for store in stores} == {3.0}


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
