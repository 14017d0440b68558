# SPDX-License-Identifier: Apache-2.0
"""A pool that is changed bit by bit, against one that is replaced as a whole at once."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from epp.framework import Endpoint, LoraState, ManualClock, Snapshot
from epp.framework.datalayer import Report
from epp.framework.snapshot import IN_FLIGHT, LORA, REACHABLE, REFUSES, WAITING
from epp.routing.datastore import Datastore

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
