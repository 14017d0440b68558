# SPDX-License-Identifier: Apache-2.0
import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from epp.framework import Candidates, Column, Endpoint, ManualClock, Topology
from epp.framework.datalayer import Report, Tagger, every_endpoint
from epp.framework.snapshot import TOPOLOGY
from epp.pool.collectors.tagging import Tagging
from epp.routing.datastore import Datastore
from tests.support.scripted_source import Errors

LENGTH = Column("length", "letters")


@pytest.fixture(autouse=True)
def each_in_a_turn(monkeypatch):
    """Let every step take so long that the event loop runs other tasks after it."""
    monkeypatch.setattr("epp.pool.collectors.tagging.STRETCH_SECONDS", 0.0)


class Zone(Tagger):
    plugin_type = "zone"
    writes = (TOPOLOGY,)

    def tag(self, endpoint: Endpoint) -> Report:
        return Report({}, {TOPOLOGY: Topology(zone=endpoint.labels["zone"])})


class Length(Tagger):
    """How long the name of the zone is."""

    plugin_type = "length"
    writes = (LENGTH,)

    def tag(self, endpoint: Endpoint) -> Report:
        return Report({LENGTH: len(endpoint.labels.get("zone", ""))})


def endpoint(name: str, **labels: str) -> Endpoint:
    return Endpoint(name, "10.0.0.1", 8000, labels=labels)


@pytest.fixture
def store() -> Datastore:
    return Datastore(ManualClock())


def zones(store: Datastore) -> list[str]:
    snapshot = store.snapshot()
    return [topology.zone for topology in Candidates(snapshot, snapshot.slots).records(TOPOLOGY)]


def lengths(store: Datastore) -> list[float]:
    snapshot = store.snapshot()
    return snapshot.column(LENGTH)[snapshot.slots].tolist()


async def test_endpoints_are_tagged_when_they_are_there_join_and_change_and_untagged_when_they_leave(store):
    store.replace([endpoint("a", zone="z1")])
    tagging = Tagging(store, [Zone(), Length()])
    assert zones(store) == ["z1"]
    store.replace([endpoint("a", zone="z1"), endpoint("b", zone="zone-2")])
    assert zones(store) == ["z1", "zone-2"]
    store.replace([endpoint("a", zone="z33"), endpoint("b", zone="zone-2")])
    assert (zones(store), lengths(store)) == (["z33", "zone-2"], [3.0, 6.0])
    await tagging.change_over([length := Length()])
    store.replace([])
    tagging.retag(length, every_endpoint)
    store.replace([endpoint("c")])  # in the slot of a
    assert (zones(store), lengths(store)) == ([""], [0.0])


def test_tagger_that_raises_is_counted_and_changes_nothing_else(store):
    errors = Errors()
    store.replace([endpoint("a", zone="z1"), endpoint("b", zone="z2")])
    Tagging(store, [Zone(), Length()], observer=errors)
    with capture_logs() as logs:
        store.replace([endpoint("a"), endpoint("b"), endpoint("c", zone="z3")])
    assert zones(store) == ["z1", "z2", "z3"]  # what was known stays
    assert lengths(store) == [0.0, 0.0, 2.0]
    assert errors.seen == [("endpoint-notification-source", "zone")] * 2
    assert [entry["tagger"] for entry in logs] == ["zone"]  # once is enough


class Weather(Tagger):
    """The same for everybody, and another one tomorrow, but for those that were told theirs."""

    plugin_type = "weather"
    writes = (TOPOLOGY,)
    now = "rain"

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.said: dict[str, str] = {}

    def tag(self, endpoint: Endpoint) -> Report:
        self.asked.append(endpoint.name)
        weather = self.said.get(endpoint.name, self.now)
        return Report({}, {TOPOLOGY: Topology(zone=f"{weather}{endpoint.labels.get('zone', '')}")})


def pool(size: int, **labels: str) -> list[Endpoint]:
    return [endpoint(f"e{number:02}", **labels) for number in range(size)]


async def turns(times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


@pytest.fixture
def weather(store) -> tuple[Weather, Tagging]:
    store.replace(pool(20))
    weather = Weather()
    tagging = Tagging(store, [weather])
    weather.asked.clear()
    weather.now = "sun"
    return weather, tagging


async def step(condition: Callable[[], object]) -> None:
    """Wait without missing a state: after each step of the tagging, others have a turn."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  each turn is looked at
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def followed(tagging: Tagging) -> AsyncIterator[None]:
    following = asyncio.create_task(tagging.follow())
    try:
        yield
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_endpoints_are_tagged_again_one_in_a_turn_and_the_new_tags_are_shown_together(store, weather):
    tagger, tagging = weather
    before = store.snapshot()
    tagging.retag(tagger, every_endpoint)
    counts = set[int]()
    async with followed(tagging):
        while len(tagger.asked) < 20:
            assert store.snapshot() is before
            counts.add(len(tagger.asked))
            await turns(1)
        await step(lambda: zones(store) == ["sun"] * 20)
    assert counts == set(range(20))


async def test_only_affected_endpoints_are_tagged_again(store, weather):
    tagger, tagging = weather
    tagging.retag(tagger, lambda endpoint: endpoint.name in {"e00", "e01"})
    async with followed(tagging):
        await step(lambda: zones(store) == ["sun"] * 2 + ["rain"] * 18)
    assert tagger.asked == ["e00", "e01"]


async def test_endpoint_that_changes_joins_or_leaves_meanwhile_is_tagged_as_it_is_then(store, weather):
    tagger, tagging = weather
    tagging.retag(tagger, every_endpoint)
    async with followed(tagging):
        await step(lambda: len(tagger.asked) == 4)
        changed = pool(1, zone="-changed")
        store.replace([*changed, *pool(20)[2:], endpoint("late")])
        await step(lambda: zones(store)[2] == "sun")
    assert zones(store) == ["sun-changed", "sun", *["sun"] * 18]  # the late one has the slot of the one that left


async def test_round_through_all_ends_however_often_all_are_to_be_tagged_anew(store, weather):
    tagger, tagging = weather
    async with followed(tagging):
        tagging.retag(tagger, every_endpoint)
        await step(lambda: len(tagger.asked) == 4)
        for _ in range(40):
            tagging.retag(tagger, every_endpoint)
            await turns(1)
        await step(lambda: zones(store) == ["sun"] * 20)
        tagger.now = "snow"
        tagging.retag(tagger, every_endpoint)
        await step(lambda: zones(store) == ["snow"] * 20)


async def test_endpoint_that_is_affected_during_a_round_is_tagged_again_in_the_next_one(store, weather):
    tagger, tagging = weather
    tagging.retag(tagger, every_endpoint)
    async with followed(tagging):
        await step(lambda: len(tagger.asked) == 4)
        tagger.now = "snow"
        tagging.retag(tagger, lambda endpoint: endpoint.name in {"e00", "e19"})
        await step(lambda: zones(store) == [*["sun"] * 4, *["snow"] * 16])
        await step(lambda: zones(store) == ["snow", *["sun"] * 3, *["snow"] * 16])


async def test_tagger_that_knows_nothing_more_is_not_asked(store):
    store.replace(pool(3))
    weather, length = Weather(), Length()
    tagging = Tagging(store, [weather, length])
    weather.asked.clear()
    await tagging.change_over([weather, length])
    async with followed(tagging):
        tagging.retag(length, every_endpoint)
        tagging.retag(length, lambda _: True)
        await turns(20)
    assert weather.asked == []


async def test_many_endpoints_that_change_at_once_keep_their_tags_until_it_is_their_turn(store):
    store.replace(pool(100, zone="z1"))
    tagging = Tagging(store, [Zone()])
    store.replace(pool(100, zone="z2"))
    assert zones(store) == ["z1"] * 100
    async with followed(tagging):
        await step(lambda: zones(store) == ["z2"] * 100)


async def test_changing_over_to_other_taggers_lets_others_have_their_turn_and_shows_all_at_once(store, weather):
    _, tagging = weather
    changing = asyncio.create_task(tagging.change_over([Length()]))
    await turns(3)
    assert zones(store) == ["rain"] * 20
    store.replace([*pool(1, zone="mars"), *pool(20)[1:]])  # tagged by those that are still there
    assert zones(store)[0] == "sunmars"
    await changing
    assert (zones(store), lengths(store)) == ([""] * 20, [4.0, *[0.0] * 19])


async def test_endpoints_that_join_while_taggers_change_over_are_tagged_one_in_a_turn_too(store):
    store.replace(pool(20, zone="z1"))
    tagging, weather = Tagging(store, [Zone()]), Weather()
    changing = asyncio.ensure_future(tagging.change_over([weather]))
    await turns(2)
    store.update([endpoint(f"late{number}", zone="later") for number in range(30)], ["default/e00", "default/e19"])
    counts = [len(weather.asked)]
    while not changing.done():
        await asyncio.sleep(0)
        counts.append(len(weather.asked))
        assert set(zones(store)) in ({"z1", "later"}, {"rainz1", "rainlater"})  # all have their old tags, or none has
    await changing
    assert max(after - before for before, after in pairwise(counts)) == 1
    assert sorted(zones(store)) == ["rainlater"] * 30 + ["rainz1"] * 18


async def test_change_over_waits_for_the_end_of_a_round_and_loses_no_request_to_tag_again(store, weather):
    tagger, tagging = weather
    length = Length()
    async with followed(tagging):
        tagging.retag(tagger, every_endpoint)
        await step(lambda: len(tagger.asked) == 4)
        await tagging.change_over([tagger, length])
        assert lengths(store) == [0.0] * 20
        tagger.now = "snow"
        changing = asyncio.create_task(tagging.change_over([tagger]))
        await turns(2)
        tagger.now = "hail"
        tagging.retag(tagger, every_endpoint)  # some have been tagged for the change already
        await changing
        await step(lambda: zones(store) == ["hail"] * 20)


async def test_taggers_that_are_gone_write_nothing_more(store, weather):
    tagger, tagging = weather
    tagging.retag(tagger, every_endpoint)
    tagging.retag(tagger, lambda endpoint: endpoint.name == "e00")
    async with followed(tagging):
        await step(lambda: len(tagger.asked) >= 4)
        await tagging.change_over([Length()])
        await turns(40)
    assert zones(store) == [""] * 20


ZONES = st.sampled_from(["z1", "zone-2", ""])
POOLS = st.dictionaries(st.sampled_from("abc"), ZONES)
STEPS = st.lists(st.one_of(POOLS, st.sets(st.sampled_from([0, 1]))), max_size=8)


@given(STEPS)
def test_tags_are_always_those_of_the_labels_and_taggers_of_now(steps):
    async def run() -> None:
        store = Datastore(ManualClock())
        taggers = [Zone(), Length()]
        tagging = Tagging(store, taggers)
        pool, chosen = {}, {0, 1}
        for step in steps:
            if isinstance(step, dict):
                pool = step
                store.replace([endpoint(name, zone=zone) for name, zone in pool.items()])
            else:
                chosen = step
                await tagging.change_over([taggers[index] for index in sorted(chosen)])
            now = [one.labels["zone"] for one in store.endpoints]
            assert zones(store) == (now if 0 in chosen else [""] * len(now))
            if 1 in chosen:
                assert lengths(store) == [float(len(zone)) for zone in now]
            else:
                assert all(length != length for length in lengths(store))  # noqa: PLR0124 - NaN

    asyncio.run(run())


TOLD = st.one_of(
    st.sets(st.integers(0, 9), max_size=4),  # endpoints of which the tagger is told, one by one
    st.just("all"),
    st.just("turn"),
    st.sets(st.integers(0, 9)).map(frozenset),  # endpoints of the pool from now on
)


@given(st.lists(TOLD, max_size=12))
def test_after_any_changes_each_endpoint_has_the_tag_that_was_told_last(steps):
    async def run() -> None:
        store, tagger = Datastore(ManualClock()), Weather()

        def is_as_told() -> bool:
            return zones(store) == [tagger.said.get(one.name, "rain") for one in store.endpoints]

        store.replace(pool(6))
        tagging = Tagging(store, [tagger])
        async with followed(tagging):
            for number, what in enumerate(steps, 1):
                if what == "turn":
                    await turns(3)
                elif isinstance(what, frozenset):
                    store.replace([endpoint(f"e{index:02}") for index in sorted(what)])
                else:
                    names = {f"e{index:02}" for index in (range(10) if what == "all" else what)}
                    tagger.said.update(dict.fromkeys(names, str(number)))
                    some = every_endpoint if what == "all" else lambda one, names=names: one.name in names
                    tagging.retag(tagger, some)
            await step(is_as_told)
            await turns(10)
            assert is_as_told()

    asyncio.run(run())


async def test_another_pool_comes_with_the_tags_of_other_taggers_which_are_computed_one_in_a_turn(store):
    store.replace([endpoint("kept", zone="zone"), endpoint("changed", zone="z"), endpoint("gone", zone="z1")])
    tagging = Tagging(store, [Zone()])
    wanted = [endpoint("kept", zone="zone"), endpoint("changed", zone="zone-5")]
    wanted += [endpoint(f"new-{number}", zone="z1") for number in range(100)]
    changing = asyncio.create_task(tagging.change_over([Length()], lambda: wanted))
    await turns(1)
    wanted.append(endpoint("late", zone="zones"))
    passed = 1
    while not changing.done():
        assert zones(store) == ["zone", "z", "z1"]
        passed += 1
        await turns(1)
    await changing
    assert passed >= 100
    assert set(zones(store)) == {""}
    assert lengths(store) == [4.0, 6.0, *[2.0] * 100, 5.0]
    store.update([endpoint("later", zone="zone")])  # tagged as it joins, again
    assert lengths(store)[-1] == 4.0


async def test_endpoint_that_is_affected_while_its_pool_is_prepared_is_tagged_again(store, weather):
    tagger, tagging = weather
    async with followed(tagging):
        changing = asyncio.create_task(tagging.change_over([tagger], lambda: wanted))
        wanted = [endpoint("new")]
        await step(lambda: tagger.asked == ["new"])
        tagger.now = "snow"
        tagging.retag(tagger, every_endpoint)
        await changing
        await step(lambda: zones(store) == ["snow"])
