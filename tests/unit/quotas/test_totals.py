# SPDX-License-Identifier: Apache-2.0
"""Limits on all requests of a tenant together: who begins, who waits for how long, and what comes back."""

import asyncio

from desk import Desk, quota

from epp.quotas import Reservation


async def test_tf_10_two_hundred_requests_on_a_quota_of_fifty_leave_exactly_fifty():
    desk = Desk(requests=50)

    async def one():
        await asyncio.sleep(0)
        if desk.quotas.breach(desk.request()) is not None:
            return None
        await asyncio.sleep(0)  # filters and scorers of others run in between
        return desk.take()

    found = await asyncio.gather(*(one() for _ in range(200)))
    begun = [each for each in found if isinstance(each, Reservation)]
    assert len(begun) == 50
    assert desk.used("total.max.workers.limit") == 50
    for each in begun:
        each.release()
    assert desk.used("total.max.workers.limit") == 0


def test_tf_10_check_alone_charges_nothing():
    desk = Desk(requests=1)
    for _ in range(3):
        assert desk.quotas.breach(desk.request()) is None
    assert isinstance(desk.take(), Reservation)
    assert desk.quotas.breach(desk.request()).breach.key == "total.max.workers.limit"


def test_tf_9_no_quota_allows_everything():
    desk = Desk({})
    assert all(isinstance(desk.take(prompt=10**9), Reservation) for _ in range(100))
    assert desk.quotas.breach(desk.request()) is None
    assert desk.quotas.fitting(desk.request(), desk.pool) is None


def test_without_sources_nothing_is_active_until_a_quota_is_set():
    desk = Desk(sources=[])
    assert not desk.quotas.is_active
    desk.quotas.adjust("a", quota(requests=1))
    assert desk.quotas.is_active
    desk.quotas.adjust("a", None)
    assert not desk.quotas.is_active
