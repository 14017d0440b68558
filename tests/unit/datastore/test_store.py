# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from epp.framework import IN_FLIGHT, Candidates, Endpoint, LoraState, ManualClock
from epp.framework.datalayer import Report
from epp.framework.snapshot import (
    ANSWERS,
    KV_USAGE,
    LORA,
    METRICS_AT,
    MODELS,
    REFUSES,
    SILENT,
    TOPOLOGY,
    WAITING,
    Column,
    Topology,
)
from epp.routing.datastore import Datastore


def endpoint(name: str, port: int = 8000, **labels: str) -> Endpoint:
    return Endpoint(name, "10.0.0.1", port, labels=labels)


@pytest.fixture
def store() -> Datastore:
    return Datastore(ManualClock(100.0))


@pytest.fixture
def a(store) -> Endpoint:
    """An endpoint that is all of the pool."""
    one = endpoint("a")
    store.replace([one])
    return one


def everyone(store: Datastore) -> Candidates:
    snapshot = store.snapshot()
    return Candidates(snapshot, snapshot.available)


def test_what_nobody_reported_is_unknown_and_a_report_leaves_alone_what_it_does_not_mention(store, a):
    assert np.isnan(everyone(store).values(WAITING)).all()
    assert everyone(store).values(IN_FLIGHT).tolist() == [0.0]
    store.report(a, Report({WAITING: 3, KV_USAGE: 0.5}, {LORA: LoraState(frozenset({"x"}))}))
    store.report(a, Report({WAITING: 4}))
    seen = everyone(store)
    assert (seen.values(WAITING)[0], seen.values(KV_USAGE)[0], seen.records(LORA)[0].running) == (4.0, 0.5, {"x"})


def test_gie_6_snapshot_does_not_change_under_its_reader(store, a):
    store.report(a, Report({WAITING: 3, KV_USAGE: 0.5}))
    before = everyone(store)
    store.report(a, Report({WAITING: 7}))
    store.replace([])
    assert before.values(WAITING).tolist() == [3.0]
    assert before[0].name == "a"
    with pytest.raises(ValueError, match="read-only"):
        before.snapshot.column(WAITING)[0] = 1


def test_gie_6_snapshot_has_generation_and_age_and_is_the_same_until_something_changes(store, a):
    store.report(a, Report({WAITING: 3, KV_USAGE: 0.5}))
    first = store.snapshot()
    assert store.snapshot() is first
    assert first.age_seconds(now=102.5)[0] == 2.5  # reported at 100
    store.report(a, Report({WAITING: 3, KV_USAGE: 0.75}))
    assert store.snapshot().generation == first.generation + 1
    assert store.snapshot().column(WAITING) is first.column(WAITING)
    assert store.snapshot().column(KV_USAGE)[0] == 0.75


def test_new_labels_keep_slot_and_knowledge_but_a_new_address_is_a_new_endpoint(store, a):
    store.report(a, Report({WAITING: 3}))
    change = store.replace([endpoint("a", zone="z1")])
    assert change.added == change.removed == ()
    assert [e.labels for _, e in change.updated] == [{"zone": "z1"}]
    assert everyone(store)[0].labels == {"zone": "z1"}
    assert everyone(store).values(WAITING).tolist() == [3.0]
    change = store.replace([endpoint("a", port=8001)])
    assert [e.port for _, e in change.removed] == [8000]
    assert [e.port for _, e in change.added] == [8001]
    assert np.isnan(everyone(store).values(WAITING)).all()


def test_late_report_of_an_endpoint_that_left_is_ignored(store):
    a, b = endpoint("a"), endpoint("b", port=8001)
    store.replace([a])
    store.replace([b])  # takes a's slot
    store.report(a, Report({WAITING: 99}))
    store.mark(a, REFUSES)
    assert len(everyone(store)) == 1
    assert np.isnan(everyone(store).values(WAITING)).all()


def test_unreachable_endpoint_is_no_candidate_and_a_silent_one_is_only_where_none_answers(store):
    a, b, c = endpoint("a"), endpoint("b", port=8001), endpoint("c", port=8002)
    store.replace([a, b, c])
    for one, state, candidates in (
        (c, REFUSES, "ab"),
        (a, REFUSES, "b"),
        (a, ANSWERS, "ab"),
        (a, SILENT, "b"),
        (b, SILENT, "ab"),  # all of them at once: perhaps it is this program that has no time
        (b, REFUSES, "a"),
        (a, REFUSES, ""),
    ):
        store.mark(one, state)
        store.report(one, Report({WAITING: 0}))  # an exporter beside it may still speak
        assert "".join(e.name for e in everyone(store).endpoints) == candidates


def test_two_endpoints_of_one_name_are_refused_and_nothing_changes(store):
    store.replace([endpoint("a")])
    with pytest.raises(ValueError, match="default/a"):
        store.replace([endpoint("b"), endpoint("a"), endpoint("a", port=8001)])
    assert [e.name for e in store.endpoints] == ["a"]


def test_listeners_learn_of_slots(store):
    seen = []
    store.subscribe(seen.append)
    store.replace([endpoint("a"), endpoint("b", port=8001)])
    store.replace([endpoint("b", port=8001)])
    store.replace([endpoint("b", port=8001)])  # no change, no call
    assert [[s for s, _ in c.added] for c in seen] == [[0, 1], []]
    assert [[s for s, _ in c.removed] for c in seen] == [[], [0]]


def test_column_of_a_plugin_is_unknown_elsewhere_and_it_and_tags_do_not_make_numbers_look_fresh(store):
    a, b = endpoint("a"), endpoint("b", port=8001)
    custom = Column("custom", "things", unknown=-1.0)
    store.replace([a, b])
    store.report(a, Report({custom: 5.0}, {MODELS: frozenset({"m"})}))
    assert everyone(store).values(custom).tolist() == [5.0, -1.0]
    store.tag(a, Report({WAITING: 1.0}))
    assert np.isnan(everyone(store).values(METRICS_AT)[0])
    store.report(a, Report({custom: 1.0, WAITING: 1.0}))
    assert everyone(store).values(METRICS_AT)[0] == 100.0


def test_tag_writes_columns_and_attributes_until_the_endpoint_left(store):
    a, b = endpoint("a"), endpoint("b", port=8001)
    store.replace([a, b])
    tag = Report({KV_USAGE: 0.5}, {TOPOLOGY: Topology(zone="z1")})
    store.tag(a, tag)
    assert everyone(store).values(KV_USAGE)[0] == 0.5
    assert everyone(store).records(TOPOLOGY) == [Topology(zone="z1"), Topology()]
    before = store.snapshot()
    store.tag(a, tag)
    assert store.snapshot() is before
    store.replace([b, endpoint("c", port=8002)])  # c takes a's slot
    store.tag(a, Report({}, {TOPOLOGY: Topology(zone="z9")}))
    assert everyone(store).records(TOPOLOGY) == [Topology(), Topology()]


def test_report_that_comes_again_says_the_same_again():
    clock, a = ManualClock(100.0), endpoint("a")
    store = Datastore(clock)
    store.replace([a])
    report = Report({WAITING: 3.0}, {LORA: LoraState(max_adapters=2)})
    for change in (
        lambda: None,
        lambda: store.forget([WAITING]),
        lambda: store.forget([WAITING, LORA], a),
        lambda: store.report(a, Report({WAITING: 7.0})),
        lambda: store.tag(a, Report({WAITING: 8.0})),
        lambda: store.update([endpoint("b")], [a.id]),  # which takes the slot
        lambda: store.update([endpoint("a")], ["default/b"]),
        lambda: store.replace([endpoint(f"e{number}") for number in range(20)] + [a]),
    ):
        change()
        clock.advance(1.0)
        store.report(a, report)
        if store.endpoint(a.id) is None:
            assert np.isnan(everyone(store).values(WAITING)).all()
            continue
        snapshot = store.snapshot()
        slot = snapshot.endpoints.values.index(a)
        assert snapshot.column(WAITING)[slot] == 3.0
        assert snapshot.column(METRICS_AT)[slot] == clock.now()
        assert snapshot.records(LORA).values[slot] == LoraState(max_adapters=2)


def test_what_is_forgotten_is_unknown_of_everybody_and_the_rest_stays(store):
    a, b = endpoint("a"), endpoint("b")
    store.replace([a, b])
    for one in (a, b):
        store.report(one, Report({WAITING: 3, KV_USAGE: 0.5}, {LORA: LoraState(max_adapters=2)}))
    store.forget([WAITING, LORA])
    everybody = everyone(store)
    assert np.isnan(everybody.values(WAITING)).all()
    assert everybody.records(LORA) == [LoraState(), LoraState()]
    assert everybody.values(KV_USAGE).tolist() == [0.5, 0.5]
    generation = store.snapshot().generation
    store.forget([])
    assert store.snapshot().generation == generation


def test_endpoints_are_found_by_label(store):
    store.replace([endpoint("a", zone="z1"), endpoint("b", port=8001), endpoint("c", port=8002, zone="z2")])
    assert everyone(store).where_label("zone", ["z1", "z2"]).tolist() == [True, False, True]
    assert everyone(store).where_label("zone", ["z2"]).tolist() == [False, False, True]
