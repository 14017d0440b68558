# SPDX-License-Identifier: Apache-2.0
"""A pool that is changed bit by bit, or prepared in steps and put, against one that is replaced as a whole at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from epp.framework import Endpoint, LoraState, ManualClock, Snapshot
from epp.framework.datalayer import Report
from epp.framework.records import ENDPOINTS
from epp.framework.snapshot import IN_FLIGHT, LORA, METRICS_AT, REACHABLE, REFUSES, TOPOLOGY, WAITING, Column, Topology
from epp.routing.datastore import Change, Datastore

NAMES = "abcdefghijklm"  # more than the first capacity of a store


def endpoint(name: str, **more: object) -> Endpoint:
    return Endpoint(name, "10.0.0.1", 8000 + NAMES.index(name), **more)


def test_update_adds_changes_and_removes_and_tells_listeners_once():
    store, told = Datastore(ManualClock()), []
    store.replace([endpoint("a"), endpoint("b"), endpoint("c")])
    store.subscribe(told.append)
    change = store.update([endpoint("b", labels={"x": "y"}), endpoint("d")], ["default/a", "default/unheard-of"])
    assert told == [change]
    assert [e.name for _, e in change.removed] == ["a"]
    assert [(slot, e.name) for slot, e in change.added] == [(0, "d")]  # the slot that a left
    assert [(slot, e.labels) for slot, e in change.updated] == [(1, {"x": "y"})]
    assert [e.name for e in store.endpoints] == ["d", "b", "c"]


def test_update_that_changes_nothing_or_is_refused_tells_nobody():
    store, told = Datastore(ManualClock()), []
    store.replace([endpoint("a")])
    before = store.snapshot()
    store.subscribe(told.append)
    store.update([endpoint("a")], ["default/b"])
    with pytest.raises(ValueError, match="two endpoints are named 'default/b'"):
        store.update([endpoint("b"), endpoint("b", labels={"x": "y"})], ["default/a"])
    assert not told
    assert store.snapshot() is before


def test_endpoint_that_left_and_came_back_in_one_update_starts_from_nothing():
    store, a = Datastore(ManualClock()), endpoint("a")
    store.replace([a])
    store.report(a, Report({WAITING: 3}))
    store.update([a], [a.id])
    assert np.isnan(store.snapshot().column(WAITING)).all()


def test_address_is_found_for_as_long_as_an_endpoint_has_it():
    store = Datastore(ManualClock())
    one, other = Endpoint("one", "10.0.0.1", 8000), Endpoint("other", "10.0.0.1", 8000)
    store.update([one])
    store.update([other])  # took over the address before the other left
    assert store.find("10.0.0.1:8000") == (0, one)
    store.update([], [one.id])
    assert store.find("10.0.0.1:8000") == (1, other)
    store.update([], [other.id])
    assert store.find("10.0.0.1:8000") is None


def seen(snapshot: Snapshot) -> dict[str, tuple[object, ...]]:
    """What readers see of each endpoint, whatever its slot."""
    columns = [snapshot.column(column) for column in (WAITING, IN_FLIGHT, REACHABLE)]
    found = {}
    for slot in snapshot.slots:
        one = snapshot.endpoints.values[slot]
        loras, usable = snapshot.records(LORA).values[slot], bool(slot in snapshot.available)
        found[one.id] = (one, *(repr(column[slot]) for column in columns), loras, usable)
    return found


endpoints = st.builds(
    endpoint,
    st.sampled_from(NAMES),
    labels=st.sampled_from([{}, {"x": "y"}]),
    uid=st.sampled_from(["", "u1", "u2"]),
    boot_id=st.sampled_from(["", "b1", "b2"]),
)


class UpdatesAgainstReplacements(RuleBasedStateMachine):
    """Two stores: one gets updates, the other the whole pool after each of them; snapshots of the first are kept."""

    @initialize()
    def start(self):
        self.updated, self.replaced = Datastore(ManualClock()), Datastore(ManualClock())
        self.pool: dict[str, Endpoint] = {}
        self.taken: list[tuple[Snapshot, dict[str, tuple[object, ...]]]] = []

    @rule(
        changed=st.lists(endpoints, unique_by=lambda one: one.id),
        removed=st.lists(st.sampled_from([f"default/{name}" for name in NAMES])),
    )
    def update(self, changed, removed):
        self.updated.update(changed, removed)
        for identity in removed:
            self.pool.pop(identity, None)
        if removed:
            self.replaced.replace(self.pool.values())
        self.pool.update({one.id: one for one in changed})
        self.replaced.replace(self.pool.values())

    @rule(data=st.data(), waiting=st.integers(0, 9), refuses=st.booleans())
    def learn(self, data, waiting, refuses):
        if not self.pool:
            return
        one = data.draw(st.sampled_from(list(self.pool.values())))
        for store in (self.updated, self.replaced):
            store.report(one, Report({WAITING: waiting}, {LORA: LoraState(frozenset({str(waiting)}))}))
            store.mark(one, REFUSES if refuses else 1.0)
            store.ledger.open(store.find(one.hostport)[0])

    @rule()
    def take_a_snapshot(self):
        snapshot = self.updated.snapshot()
        self.taken.append((snapshot, seen(snapshot)))

    @invariant()
    def both_hold_the_same(self):
        assert seen(self.updated.snapshot()) == seen(self.replaced.snapshot())
        assert {one.id: one for one in self.updated.endpoints} == self.pool
        for one in self.pool.values():
            assert self.updated.find(one.hostport)[1] == one

    @invariant()
    def snapshots_stay_as_they_were(self):
        assert all(seen(snapshot) == was for snapshot, was in self.taken)


TestUpdatesAgainstReplacements = UpdatesAgainstReplacements.TestCase


LEVEL = Column("level", "")
pools = st.lists(endpoints, unique_by=lambda one: one.id)


def tags_of(one: Endpoint) -> list[Report]:
    zone = one.labels.get("x", "") + one.uid
    return [Report({LEVEL: float(len(zone))}, {TOPOLOGY: Topology(zone=zone)})]


def tagged(members: list[Endpoint]) -> dict[str, tuple[Endpoint, list[Report]]]:
    return {one.id: (one, tags_of(one)) for one in members}


def label(one: Endpoint | None) -> bool:
    return one is not None and "x" in one.labels


def length(topology: Topology) -> float:
    return float(len(topology.zone))


def everything(store: Datastore) -> tuple[object, ...]:
    """What a request sees, slot by slot."""
    snapshot = store.snapshot()
    columns = [snapshot.column(column) for column in (WAITING, IN_FLIGHT, LEVEL, METRICS_AT)]
    return (
        [(slot, snapshot.endpoints.values[slot]) for slot in snapshot.slots],
        [[repr(column[slot]) for slot in snapshot.slots] for column in columns],
        [[snapshot.records(one).values[slot] for slot in snapshot.slots] for one in (LORA, TOPOLOGY)],
        snapshot.available.tolist(),
        snapshot.endpoints.derive_mask(label)[snapshot.slots].tolist(),
        snapshot.records(TOPOLOGY).derive_numbers(length)[snapshot.slots].tolist(),
        snapshot.capacity,
        # of free slots, too: others may take them
        [repr(column.tolist()) for column in columns],
        [snapshot.records(one).values for one in (LORA, TOPOLOGY)],
        [store.find(one.hostport) for one in store.endpoints],
    )


def filled(members: list[Endpoint], loads: list[int]) -> Datastore:
    store = Datastore(ManualClock())
    store.replace(members)
    for one, load in zip(members, loads, strict=False):
        store.report(one, Report({WAITING: load}, {LORA: LoraState(max_adapters=load)}))
        store.ledger.open(store.find(one.hostport)[0])
        store.tag(one, *tags_of(one))
    return store


def in_order(change: Change) -> tuple[object, ...]:
    """Return a change with those that stayed by slot: there is no other order that counts."""
    return change.added, change.removed, sorted(change.updated, key=lambda pair: pair[0])


@given(before=pools, after=pools, loads=st.lists(st.integers(0, 9)), pause=st.integers(0, 8))
def test_pool_put_after_steps_is_the_one_of_a_replacement_at_once_and_until_then_the_one_before(
    before, after, loads, pause
):
    sliced, at_once = filled(before, loads), filled(before, loads)
    told, expected = [], []
    sliced.subscribe(told.append)
    at_once.subscribe(expected.append)
    old = everything(sliced)[:6]
    staging = sliced.stage(tagged(after), after, {ENDPOINTS: [(np.bool_, label)]})
    for _ in staging.steps():
        assert everything(sliced)[:6] == old
    assert sliced.put_pool(staging)
    sliced.put_tags(staging)
    at_once.replace(after)
    for one in after:
        at_once.tag(at_once.endpoint(one.id), *tags_of(one))
    assert everything(sliced) == everything(at_once)
    assert list(map(in_order, told)) == list(map(in_order, expected))
    # and they go on alike
    for store in (sliced, at_once):
        store.update([endpoint(NAMES[pause])], [f"default/{NAMES[pause + 1]}"])
    assert everything(sliced) == everything(at_once)


change = st.one_of(
    st.tuples(st.just("update"), endpoints),
    st.tuples(st.just("remove"), st.sampled_from(NAMES)),
    st.tuples(st.just("report"), st.sampled_from(NAMES), st.integers(1, 9)),
    st.tuples(st.just("tag"), st.sampled_from(NAMES), st.sampled_from(["z1", "z2"])),
)


def make(store: Datastore, what: tuple[object, ...]) -> bool:
    """Make a change in the datastore; return whether it was one of the pool."""
    match what:
        case "update", one:
            found = store.update([one])
        case "remove", name:
            found = store.update([], [f"default/{name}"])
        case _, name, value:
            one = store.endpoint(f"default/{name}")
            report = Report({WAITING: value}) if what[0] == "report" else Report({}, {TOPOLOGY: Topology(zone=value)})
            if one is not None:
                store.tag(one, report)
            return False
    return bool(found.added or found.removed or found.updated)


@given(before=pools, after=pools, meanwhile=st.lists(st.lists(change, max_size=2), max_size=6))
def test_pool_that_was_prepared_for_another_one_is_not_put_and_changes_nothing(before, after, meanwhile):
    store, plain = filled(before, []), filled(before, [])
    staging = store.stage(tagged(after), after)
    steps, changed = staging.steps(), False
    for changes in meanwhile:
        next(steps, None)
        for what in changes:
            changed |= make(store, what)
            make(plain, what)
    list(steps)
    was = everything(store)
    assert was[:6] == everything(plain)[:6]
    assert store.put_pool(staging) is not changed
    if changed:
        assert everything(store) == was
    else:
        assert {one.id: one for one in store.endpoints} == {one.id: one for one in after}


@given(before=pools, meanwhile=st.lists(st.lists(change, max_size=2), max_size=6))
def test_tags_put_after_steps_are_those_of_each_endpoint_that_is_still_as_it_was(before, meanwhile):
    store, plain = filled(before, []), filled(before, [])
    staging = store.stage(tagged(before))
    steps = staging.steps()
    for changes in meanwhile:
        next(steps, None)
        for what in changes:
            make(store, what)
            make(plain, what)
    list(steps)
    assert everything(store) == everything(plain)
    store.put_tags(staging)
    for one in before:
        if plain.endpoint(one.id) is one:
            plain.tag(one, *tags_of(one))
    assert everything(store) == everything(plain)


calls: list[object] = []


def counted(topology: Topology) -> float:
    calls.append(topology)
    return float(len(topology.zone))


def test_request_after_a_change_of_all_derives_nothing_anew():
    members = [endpoint(name, labels={"x": name}) for name in NAMES]
    store = filled(members, [])
    store.snapshot().records(TOPOLOGY).derive_numbers(counted)
    others = [endpoint(name, labels={"x": name + name}) for name in reversed(NAMES)]
    staging = store.stage(tagged(others), others, {TOPOLOGY.name: [(np.float64, length)]})
    list(staging.steps())
    assert store.put_pool(staging)
    store.put_tags(staging)
    calls.clear()
    records = store.snapshot().records(TOPOLOGY)
    used = store.snapshot().slots
    assert records.derive_numbers(counted)[used].tolist() == [2.0] * len(NAMES)
    assert not calls
    assert (np.float64, length) in records.derivations


def test_records_that_changed_since_they_were_prepared_are_derived_again():
    members = [endpoint(name) for name in NAMES]
    store = filled(members, [])
    store.snapshot().records(TOPOLOGY).derive_numbers(length)
    staging = store.stage(tagged(members))
    list(staging.steps())
    store.put_tags(staging)
    store.tag(members[3], Report({}, {TOPOLOGY: Topology(zone="another")}))
    found = store.snapshot().records(TOPOLOGY).derive_numbers(length)
    assert found[:5].tolist() == [0.0, 0.0, 0.0, 7.0, 0.0]
