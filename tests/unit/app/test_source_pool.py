# SPDX-License-Identifier: Apache-2.0
"""Endpoints join in batches between other work, and leave at once."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.app.source_pool import SourcePool
from epp.framework import Endpoint, ManualClock
from epp.routing.datastore import Datastore
from epp.runtime.supervisor import SWEEPS


class Ticking(ManualClock):
    """Every look at it takes a millisecond: a stretch ends after a few batches."""

    def now(self) -> float:
        self.advance(0.001)
        return super().now()


def endpoint(number: int, **more: str) -> Endpoint:
    return Endpoint(f"e{number}", f"10.0.{number // 250}.{number % 250 + 1}", 8000, **more)


def endpoints(count: int, start: int = 0) -> list[Endpoint]:
    return [endpoint(number) for number in range(start, start + count)]


@pytest.fixture
def store() -> Datastore:
    return Datastore(ManualClock())


def names(store: Datastore) -> set[str]:
    return {one.name for one in store.endpoints}


async def opened(store: Datastore, *members: Endpoint) -> SourcePool:
    pool = SourcePool(store, Ticking())
    pool.replace(members)
    await pool.open()
    return pool


@contextlib.asynccontextmanager
async def following(pool: SourcePool) -> AsyncIterator[None]:
    """Let endpoints join and leave as the block awaits, for a minute at most."""
    task = asyncio.create_task(pool.follow())
    try:
        async with asyncio.timeout(60):
            yield
    finally:
        task.cancel()


async def reached(condition: Callable[[], bool]) -> None:
    """Let other work run until the condition holds, for a minute at most."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  there is no event
            await asyncio.sleep(0)


async def test_nothing_is_in_the_pool_before_it_is_opened(store):
    pool = SourcePool(store, Ticking())
    pool.replace(endpoints(3))
    pool.update([endpoint(7)], ["default/e0"])
    assert not store.endpoints
    await pool.open()
    assert names(store) == {"e1", "e2", "e7"}


async def test_pool_that_took_the_place_of_the_one_before_is_open(store):
    pool = SourcePool(store, Ticking())
    pool.replace(endpoints(3))
    store.replace(pool.withheld)
    pool.opened()
    assert not pool.withheld
    pool.update([endpoint(3)], ["default/e0"])
    assert names(store) == {"e1", "e2", "e3"}


async def test_small_change_is_one_change_and_has_effect_at_once(store):
    pool = await opened(store, *endpoints(3))
    changes = []
    store.subscribe(changes.append)
    pool.update([endpoint(3), endpoint(1, uid="u")], ["default/e0"])
    assert len(changes) == 1
    assert names(store) == {"e1", "e2", "e3"}


async def test_many_join_between_other_work(store):
    pool = await opened(store)
    joined = []
    task = asyncio.create_task(pool.follow())
    pool.update(endpoints(1000))
    joined.append(len(store.endpoints))
    async with asyncio.timeout(60):
        while len(store.endpoints) < 1000:
            await asyncio.sleep(0)  # a request, say
            joined.append(len(store.endpoints))
    task.cancel()
    assert 0 < joined[0] < 200
    assert len(set(joined)) > 5


async def test_one_batch_at_least_joins_in_a_turn_of_a_machine_that_is_too_busy(store):
    class Late(ManualClock):
        def now(self) -> float:
            self.advance(1)
            return super().now()

    pool = SourcePool(store, Late())
    pool.replace(endpoints(100))
    async with asyncio.timeout(60):
        await pool.open()
    assert len(names(store)) == 100


async def test_those_that_leave_or_are_replaced_do_so_at_once_while_others_wait_to_join(store):
    pool = await opened(store, endpoint(0), endpoint(1, uid="old"), endpoint(2))
    pool.update([*endpoints(1000, start=10), endpoint(1, uid="new")])  # the last of them is still to come
    assert names(store) & {"e0", "e1", "e2"} == {"e0", "e2"}
    pool.update((), ["default/e0", "default/e1009"])
    assert "e0" not in names(store)
    async with following(pool):
        await reached(lambda: len(store.endpoints) == 1001)
    assert store.endpoint("default/e1") == endpoint(1, uid="new")
    assert store.endpoint("default/e1009") is None


async def test_pool_is_not_empty_for_a_moment_when_all_of_it_is_replaced(store):
    pool = await opened(store, *endpoints(500))
    pool.replace(endpoints(500, start=500))
    assert store.endpoints
    assert not names(store) & {f"e{number}" for number in range(500)}
    async with following(pool):
        while names(store) != {f"e{number}" for number in range(500, 1000)}:
            assert store.endpoints
            await asyncio.sleep(0)


async def test_many_that_become_others_start_from_nothing(store):
    pool = await opened(store, *endpoints(200))
    async with following(pool):
        pool.replace([endpoint(number, uid="other") for number in range(200)])
        pool.update((), [f"default/e{number}" for number in range(100)])
        await reached(lambda: [one.uid for one in store.endpoints] == ["other"] * 100)
    assert names(store) == {f"e{number}" for number in range(100, 200)}


async def test_pool_of_which_many_become_others_does_not_shrink(store):
    pool = await opened(store, *endpoints(200))
    pool.replace([endpoint(number, uid="other") for number in range(200)])
    async with following(pool):
        while any(not one.uid for one in store.endpoints):
            assert len(store.endpoints) == 200
            await asyncio.sleep(0)
    assert len(store.endpoints) == 200


@pytest.mark.parametrize("seed", range(10))
async def test_pool_is_the_one_wanted_last_whatever_came_before(store, seed):
    draw = random.Random(seed)
    pool = await opened(store, *endpoints(150))
    wanted = {one.id: one for one in endpoints(150)}
    async with following(pool):
        for _ in range(12):
            some = [endpoint(number, uid=draw.choice(["", "b"])) for number in draw.sample(range(300), 150)]
            if draw.random() < 0.5:
                wanted = {one.id: one for one in some}
                pool.replace(some)
            else:
                gone = draw.sample(sorted(wanted), len(wanted) // 2)
                wanted = {name: one for name, one in wanted.items() if name not in gone}
                wanted |= {one.id: one for one in some}
                pool.update(some, gone)
            for _ in range(draw.randrange(4)):
                await asyncio.sleep(0)
        await reached(lambda: {one.id: one for one in store.endpoints} == wanted)


async def test_very_many_that_have_not_changed_stay_without_a_change(store):
    pool = await opened(store, *endpoints(1000))
    changes = []
    store.subscribe(changes.append)
    async with following(pool):
        pool.replace([*endpoints(999), endpoint(2000)])  # other objects
        await reached(lambda: store.endpoint("default/e2000") is not None)
    assert [len(change.updated) for change in changes] == [0] * len(changes)
    assert sum(len(change.removed) for change in changes) == 1


async def test_source_that_was_closed_changes_nothing_more(store):
    pool = await opened(store, endpoint(0))
    pool.update(endpoints(1000, start=1))
    task = asyncio.create_task(pool.follow())
    pool.close()
    before = store.endpoints
    pool.replace([])
    pool.update([endpoint(5000)], ["default/e0"])
    await asyncio.sleep(0.05)
    task.cancel()
    assert store.endpoints == before


async def test_two_of_one_id_change_nothing(store):
    pool = await opened(store, endpoint(0))
    for change in (pool.replace, pool.update):
        with pytest.raises(ValueError, match="two endpoints are named"):
            change([endpoint(1), endpoint(1)])
    assert names(store) == {"e0"}


calls = st.lists(
    st.one_of(
        st.tuples(st.just("replace"), st.integers(0, 120), st.just(frozenset[int]())),
        st.tuples(st.just("update"), st.integers(0, 120), st.frozensets(st.integers(0, 120), max_size=60)),
        st.tuples(st.just("wait"), st.just(0), st.just(frozenset[int]())),
    ),
    max_size=8,
)


def replaced_among(members: Iterable[Endpoint], meant: Mapping[str, Endpoint]) -> list[Endpoint]:
    return [one for one in members if one.id in meant and meant[one.id].identity.is_another_than(one.identity)]


@given(calls)
def test_any_calls_lead_to_the_pool_that_the_source_meant(made):
    async def run() -> None:
        store = Datastore(ManualClock())
        pool = await opened(store)
        task = asyncio.create_task(pool.follow())
        meant: dict[str, Endpoint] = {}
        many_replaced = False
        for version, (call, count, numbers) in enumerate(made):
            before = store.endpoints
            given_now = [endpoint(number, uid=str(version % 2)) for number in range(count)]
            if call == "wait":
                await asyncio.sleep(0)
            elif call == "replace":
                pool.replace(given_now)
                meant = {one.id: one for one in given_now}
            else:
                gone = [f"default/e{number}" for number in numbers]
                pool.update(given_now, gone)
                meant = {identity: one for identity, one in meant.items() if identity not in gone}
                meant |= {one.id: one for one in given_now}
            assert all(one.id in meant for one in store.endpoints)  # whatever left is out
            many_replaced = many_replaced or len(replaced_among(before, meant)) > 64
            assert many_replaced or not replaced_among(store.endpoints, meant)
        await reached(lambda: {one.id: one for one in store.endpoints} == meant)
        task.cancel()

    asyncio.run(run())


async def test_garbage_is_looked_for_while_very_many_join(store):
    pool, before = await opened(store), SWEEPS.count
    async with following(pool):
        pool.update(endpoints(500))
        await reached(lambda: len(store.endpoints) == 500)
    assert SWEEPS.count > before + 5
