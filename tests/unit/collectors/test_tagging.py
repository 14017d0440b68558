# SPDX-License-Identifier: Apache-2.0
import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from epp.collectors import CollectorObserver, Tagging
from epp.datastore import Datastore
from epp.framework import Candidates, Column, Endpoint, ManualClock, Topology
from epp.framework.datalayer import Report, Tagger
from epp.framework.snapshot import TOPOLOGY

LENGTH = Column("length", "letters")


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


class Errors(CollectorObserver):
    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def extract_error(self, source_type: str, extractor_type: str) -> None:
        self.seen.append((source_type, extractor_type))


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


def test_endpoints_are_tagged_when_they_are_there_join_and_change(store):
    store.replace([endpoint("a", zone="z1")])
    Tagging(store, [Zone(), Length()])
    assert zones(store) == ["z1"]
    store.replace([endpoint("a", zone="z1"), endpoint("b", zone="zone-2")])
    assert zones(store) == ["z1", "zone-2"]
    store.replace([endpoint("a", zone="z33"), endpoint("b", zone="zone-2")])
    assert zones(store) == ["z33", "zone-2"]
    assert lengths(store) == [3.0, 6.0]


def test_slot_of_one_that_left_does_not_keep_its_tags(store):
    Tagging(store, [Length()])
    store.replace([endpoint("a", zone="z1")])
    store.replace([])
    store.replace([endpoint("b")])
    assert lengths(store) == [0.0]


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


def test_other_taggers_tag_everyone_and_what_only_the_old_ones_said_is_forgotten(store):
    store.replace([endpoint("a", zone="z1"), endpoint("b", zone="z2")])
    tagging = Tagging(store, [Zone()])
    tagging.replace([Length()])
    assert zones(store) == ["", ""]
    assert lengths(store) == [2.0, 2.0]
    store.replace([endpoint("a", zone="z1"), endpoint("b", zone="zone-2")])
    assert (zones(store), lengths(store)) == (["", ""], [2.0, 6.0])


class Weather(Tagger):
    """The same for everybody, and another one tomorrow."""

    plugin_type = "weather"
    writes = (TOPOLOGY,)
    now = "rain"

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def tag(self, endpoint: Endpoint) -> Report:
        self.asked.append(endpoint.name)
        return Report({}, {TOPOLOGY: Topology(zone=f"{self.now}{endpoint.labels.get('zone', '')}")})


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


async def test_tagging_everyone_anew_lets_others_have_their_turn_and_shows_all_at_once(store, weather):
    tagger, tagging = weather
    before = store.snapshot()
    refreshing = asyncio.create_task(tagging.refresh())
    for turn in range(1, 6):
        await turns(1)
        assert len(tagger.asked) == 4 * turn
        assert store.snapshot() is before
    await refreshing
    assert zones(store) == ["sun"] * 20


async def test_endpoint_that_changes_joins_or_leaves_meanwhile_is_tagged_as_it_is_then(store, weather):
    _, tagging = weather
    refreshing = asyncio.create_task(tagging.refresh())
    await turns(2)
    changed = pool(1, zone="-changed")
    store.replace([*changed, *pool(20)[2:], endpoint("late")])
    await refreshing
    assert zones(store) == ["sun-changed", "sun", *["sun"] * 18]  # the late one has the slot of the one that left


async def test_later_refresh_takes_the_place_of_the_one_under_way(store, weather):
    tagger, tagging = weather
    first = asyncio.create_task(tagging.refresh())
    await turns(2)
    tagger.now = "snow"
    await asyncio.gather(tagging.refresh(), first)
    assert zones(store) == ["snow"] * 20
    assert len(tagger.asked) < 20 + 20


async def test_changing_over_to_other_taggers_lets_others_have_their_turn_and_shows_all_at_once(store, weather):
    _, tagging = weather
    changing = asyncio.create_task(tagging.change_over([Length()]))
    await turns(3)
    assert zones(store) == ["rain"] * 20
    store.replace([*pool(1, zone="mars"), *pool(20)[1:]])  # tagged by those that are still there
    assert zones(store)[0] == "sunmars"
    await changing
    assert (zones(store), lengths(store)) == ([""] * 20, [4.0, *[0.0] * 19])


async def test_change_over_that_a_refresh_overtakes_is_made_all_the_same(store, weather):
    _, tagging = weather
    changing = asyncio.create_task(tagging.change_over([Length()]))
    await turns(2)
    await asyncio.gather(tagging.refresh(), changing)
    assert (zones(store), lengths(store)) == ([""] * 20, [0.0] * 20)


async def test_refresh_by_taggers_that_are_gone_writes_nothing(store, weather):
    _, tagging = weather
    refreshing = asyncio.create_task(tagging.refresh())
    await turns(2)
    tagging.replace([Length()])
    await refreshing
    assert zones(store) == [""] * 20


def test_same_taggers_again_tag_nobody(weather):
    tagger, tagging = weather
    tagging.replace([tagger])
    assert tagger.asked == []


ZONES = st.sampled_from(["z1", "zone-2", ""])
POOLS = st.dictionaries(st.sampled_from("abc"), ZONES)
STEPS = st.lists(st.one_of(POOLS, st.sets(st.sampled_from([0, 1]))), max_size=8)


@given(STEPS)
def test_tags_are_always_those_of_the_labels_and_taggers_of_now(steps):
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
            tagging.replace([taggers[index] for index in sorted(chosen)])
        now = [one.labels["zone"] for one in store.endpoints]
        assert zones(store) == (now if 0 in chosen else [""] * len(now))
        if 1 in chosen:
            assert lengths(store) == [float(len(zone)) for zone in now]
        else:
            assert all(length != length for length in lengths(store))  # noqa: PLR0124 - NaN
