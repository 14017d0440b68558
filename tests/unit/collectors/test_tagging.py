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
