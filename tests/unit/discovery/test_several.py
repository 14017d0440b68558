# SPDX-License-Identifier: Apache-2.0
"""Several sources of endpoints as one pool."""

import asyncio
from contextlib import asynccontextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from epp.framework import ConfigurationError, Endpoint, ManualClock
from epp.framework.datalayer import Discovery, EndpointSource, Report
from epp.framework.snapshot import WAITING
from epp.pool.discovery import SeveralSources
from epp.routing.datastore import Datastore
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Try sources again at once."""
    for pause in ("_FIRST_DELAY_SECONDS", "_CHECK_SECONDS"):
        monkeypatch.setattr(f"epp.pool.discovery.several.{pause}", 0.01)


class Scripted(Discovery):
    """Puts what a test says into the pool; fails for as long as it has a `failure`."""

    plugin_type = "scripted"

    def __init__(self, *endpoints: Endpoint, failure: str = "", silent: bool = False) -> None:
        super().__init__()
        self.endpoints, self.failure, self.silent = endpoints, failure, silent
        self.starts, self.pool, self.fails = 0, None, asyncio.Event()
        self.stale = ""

    trouble = property(lambda self: self.stale)

    async def start(self, pool):
        self.starts += 1
        if self.silent:
            await asyncio.Event().wait()
        if self.failure:
            raise ConfigurationError(self.failure)
        self.pool = pool
        pool.replace(self.endpoints)

    async def follow(self, pool):
        await self.fails.wait()
        raise RuntimeError("lost")


def at(name: str, address: str, **more) -> Endpoint:
    return Endpoint(name, f"10.0.0.{address}", 8000, **more)


def sources(**plugins: Discovery) -> list[EndpointSource]:
    return [EndpointSource(plugin, name) for name, plugin in plugins.items()]


def in_pool(store: Datastore) -> set[tuple[str, str]]:
    return {(endpoint.name, endpoint.address.rpartition(".")[2]) for endpoint in store.endpoints}


@asynccontextmanager
async def running(**plugins: Discovery):
    whole, store = SeveralSources(sources(**plugins)), Datastore(ManualClock())
    await whole.start(store)
    task = asyncio.create_task(whole.follow(store))
    yield whole, store
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def trouble(whole: SeveralSources) -> dict[str, str]:
    return {state.name: state.trouble for state in whole.states}


async def test_ocm_14_endpoints_of_all_sources_are_in_the_pool():
    async with running(local=Scripted(at("a", "1")), remote=Scripted(at("b", "2"))) as (whole, store):
        assert in_pool(store) == {("a", "1"), ("b", "2")}
        assert [whole.source_of(f"default/{name}") for name in "abc"] == ["local", "remote", ""]
        assert trouble(whole) == {"local": "", "remote": ""}


@pytest.mark.parametrize("other", [at("other", "1"), at("a", "2")], ids=["same address", "same id"])
async def test_ocm_14_first_source_wins_and_the_next_takes_over_when_its_endpoint_leaves(other):
    local, remote = Scripted(at("a", "1")), Scripted(other)
    async with running(local=local, remote=remote) as (whole, store):
        assert in_pool(store) == {("a", "1")}
        assert [(state.endpoints, state.hidden) for state in whole.states] == [(1, 0), (0, 1)]
        local.pool.update((), ["default/a"])
        assert [endpoint.name for endpoint in store.endpoints] == [other.name]
        local.pool.update([at("a", "1")])
        assert in_pool(store) == {("a", "1")}
        local.pool.update([at("a", "9")])  # another address
        assert in_pool(store) == ({("a", "9")} if other.name == "a" else {("a", "9"), ("other", "1")})


async def test_ocm_14_source_that_cannot_be_read_leaves_the_others_and_joins_later():
    broken = Scripted(at("b", "2"), failure="endpoints file x: no list 'endpoints'")
    with capture_logs() as logs:
        async with running(local=Scripted(at("a", "1")), remote=broken) as (whole, store):
            assert in_pool(store) == {("a", "1")}
            assert trouble(whole) == {"local": "", "remote": "endpoints file x: no list 'endpoints'"}
            broken.failure = ""
            await until(lambda: in_pool(store) == {("a", "1"), ("b", "2")}, "the other is read")
            await until(lambda: len(logs) == 2, "that is logged")
    assert [(entry["event"], entry["source"]) for entry in logs] == [
        ("source of endpoints in trouble", "remote"),
        ("source of endpoints read again", "remote"),
    ]


async def test_ocm_14_source_that_fails_keeps_its_endpoints_and_is_started_again():
    remote = Scripted(at("b", "2"))
    async with running(local=Scripted(at("a", "1")), remote=remote) as (whole, store):
        remote.failure = "gone"
        remote.fails.set()
        await until(lambda: remote.starts > 2, "it is tried again")
        assert in_pool(store) == {("a", "1"), ("b", "2")}
        assert trouble(whole)["remote"] == "gone"
        remote.fails.clear()
        remote.failure = ""
        await until(lambda: not trouble(whole)["remote"], "it runs again")


async def test_ocm_14_endpoint_that_a_source_removes_and_adds_at_once_starts_without_data():
    local = Scripted(at("a", "1"))
    async with running(local=local, remote=Scripted()) as (_, store):
        store.report(store.endpoint("default/a"), Report({WAITING: 3.0}))
        local.pool.update([at("a", "1")])
        assert store.snapshot().column(WAITING).tolist()[0] == 3.0
        local.pool.update([at("a", "1")], ["default/a"])
        assert np.isnan(store.snapshot().column(WAITING)[store.snapshot().slots]).all()


async def test_ocm_14_source_removes_only_its_own_endpoints_from_the_pool():
    local, remote = Scripted(at("a", "1")), Scripted(at("a", "2"), at("b", "3"))
    async with running(local=local, remote=remote) as (_, store):
        for endpoint in store.endpoints:
            store.report(endpoint, Report({WAITING: 3.0}))
        remote.pool.update((), ["default/a"])  # hidden by that of the first source
        local.pool.update((), ["default/b"])  # of the other source
        assert in_pool(store) == {("a", "1"), ("b", "3")}
        snapshot = store.snapshot()
        assert snapshot.column(WAITING)[snapshot.slots].tolist() == [3.0, 3.0]


async def test_ocm_14_only_source_that_fails_is_logged_and_told_of(monkeypatch):
    monkeypatch.setattr("epp.pool.discovery.several._FIRST_DELAY_SECONDS", 10.0)
    alone = Scripted(at("a", "1"))
    with capture_logs() as logs:
        async with running(alone=alone) as (whole, store):
            assert not whole.is_reported
            alone.fails.set()
            await until(lambda: whole.is_reported, "it has failed")
            assert trouble(whole)["alone"].startswith("RuntimeError: lost")
            assert in_pool(store) == {("a", "1")}
    assert [entry["event"] for entry in logs] == ["source of endpoints failed"]


async def test_ocm_14_source_that_is_stale_is_told_of():
    remote = Scripted(at("b", "2"))
    with capture_logs() as logs:
        async with running(local=Scripted(at("a", "1")), remote=remote):
            remote.stale = "file x: its newest version is not in effect"
            await until(lambda: bool(logs), "that is logged")
    assert logs[0] | {"why": remote.stale, "kept_endpoints": 1} == logs[0]


async def test_ocm_14_source_that_does_not_answer_holds_the_start_up_for_a_while_only(monkeypatch):
    monkeypatch.setattr("epp.pool.discovery.several.PATIENCE_SECONDS", 0.01)
    async with running(local=Scripted(silent=True), remote=Scripted(at("b", "2"))) as (whole, store):
        assert in_pool(store) == {("b", "2")}
        assert trouble(whole)["local"] == "it has not been read yet"


async def test_ocm_14_start_fails_with_all_reasons_if_no_source_can_be_read():
    whole = SeveralSources(sources(x=Scripted(failure="one"), y=Scripted(failure="two")))
    with pytest.raises(ConfigurationError, match="source 'x': one; source 'y': two"):
        await whole.start(Datastore(ManualClock()))


async def test_ocm_14_other_sources_are_taken_without_a_new_start_of_those_that_stay():
    stays, leaves, joins = Scripted(at("a", "1")), Scripted(at("b", "2"), at("c", "3")), Scripted(at("x", "3"))
    async with running(stays=stays, leaves=leaves) as (whole, store):
        whole.use(sources(joins=joins, stays=stays))
        assert in_pool(store) == {("a", "1")}
        await until(lambda: in_pool(store) == {("a", "1"), ("x", "3")}, "the new one is read")
        assert stays.starts == 1
        leaves.pool.replace([at("late", "4")])  # as its task ends
        assert in_pool(store) == {("a", "1"), ("x", "3")}
        whole.use(sources(stays=stays))
        assert in_pool(store) == {("a", "1")}


_ENDPOINTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3)), max_size=4, unique_by=lambda pair: pair[0])


@given(steps=st.lists(st.tuples(st.integers(0, 2), _ENDPOINTS, st.booleans()), max_size=12))
def test_ocm_14_pool_is_what_the_sources_say_whatever_their_order(steps):
    """Each endpoint counts unless a source before has its id or its address."""

    async def run() -> None:
        plugins = [Scripted(), Scripted(), Scripted()]
        whole, store = SeveralSources(sources(**dict(zip("xyz", plugins, strict=True)))), Datastore(ManualClock())
        await whole.start(store)
        said: list[dict[str, Endpoint]] = [{}, {}, {}]
        for number, content, replaces in steps:
            addresses: set[int] = set()
            wanted = [
                at(name, str(address))
                for name, address in content
                if not (address in addresses or addresses.add(address))
            ]
            taken = {endpoint.address for endpoint in wanted}
            removed = [one.id for one in said[number].values() if replaces or one.address in taken]
            if replaces:
                plugins[number].pool.replace(wanted)
            else:
                plugins[number].pool.update(wanted, removed)
            said[number] = {key: one for key, one in said[number].items() if key not in removed}
            said[number].update({one.id: one for one in wanted})
            expected: set[tuple[str, str]] = set()
            for index, each in enumerate(said):
                before = [one for other in said[:index] for one in other.values()]
                for one in each.values():
                    if all(one.id != other.id and one.hostport != other.hostport for other in before):
                        expected.add((one.name, one.address.rpartition(".")[2]))
            assert in_pool(store) == expected
            assert sum(state.endpoints for state in whole.states) == len(store.endpoints)

    asyncio.run(run())


async def test_ocm_14_new_plugin_of_a_name_takes_over_the_endpoints_of_the_one_before():
    before, after = Scripted(at("b", "2"), at("c", "3")), Scripted(at("b", "2"), failure="not yet")
    async with running(local=Scripted(at("a", "1")), remote=before) as (whole, store):
        kept = store.endpoint("default/b")
        whole.use([whole.sources[0], EndpointSource(after, "remote")])
        await until(lambda: trouble(whole)["remote"] == "not yet", "the new one is tried")
        assert in_pool(store) == {("a", "1"), ("b", "2"), ("c", "3")}
        after.failure = ""
        await until(lambda: in_pool(store) == {("a", "1"), ("b", "2")}, "the new one is read")
        assert store.endpoint("default/b").identity == kept.identity
