# SPDX-License-Identifier: Apache-2.0
"""Endpoints that take the place of others: what they share with them, and what they do not."""

import itertools

import numpy as np
import pytest

from epp.framework import IN_FLIGHT, Endpoint, LoraState, ManualClock
from epp.framework.datalayer import Report
from epp.framework.endpoint import Identity
from epp.framework.snapshot import LORA, REACHABLE, REFUSES, WAITING
from epp.routing.datastore import Datastore

LORAS = LoraState(frozenset({"x"}))


def endpoint(name: str = "a", address: str = "10.0.0.1", **more: str) -> Endpoint:
    return Endpoint(name, address, 8000, **more)


def known(store: Datastore, one: Endpoint) -> tuple[float, float, LoraState]:
    found = store.find(one.hostport)
    assert found is not None
    snapshot, slot = store.snapshot(), found[0]
    return snapshot.column(WAITING)[slot], snapshot.column(IN_FLIGHT)[slot], snapshot.records(LORA).values[slot]


@pytest.fixture
def store() -> Datastore:
    return Datastore(ManualClock())


def with_knowledge(store: Datastore, one: Endpoint) -> None:
    store.replace([one])
    store.report(one, Report({WAITING: 3}, {LORA: LORAS}))
    store.mark(one, REFUSES)
    store.ledger.open(0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (endpoint(uid="u1"), endpoint(uid="u2")),
        (endpoint(boot_id="b1"), endpoint(boot_id="b2")),
        (endpoint(uid="u1", boot_id="b1"), endpoint(uid="u1", boot_id="b2")),
        (endpoint(), endpoint("another")),
        (endpoint(), endpoint(address="10.0.0.2")),
        (endpoint(uid="u1"), endpoint("another", uid="u1")),
    ],
    ids=["pod", "boot", "boot alone", "name", "address", "name of a pod"],
)
def test_is_11_replaced_endpoint_starts_from_nothing(store, before, after):
    with_knowledge(store, before)
    change = store.update([after], [before.id] if before.id != after.id else [])
    assert ([e for _, e in change.removed], [e for _, e in change.added]) == ([before], [after])
    waiting, in_flight, loras = known(store, after)
    assert (np.isnan(waiting), in_flight, loras) == (True, 0.0, LORA.unknown)
    assert store.snapshot().column(REACHABLE)[0] == REACHABLE.unknown


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (endpoint(), endpoint(uid="u1", boot_id="b1")),
        (endpoint(uid="u1", boot_id="b1"), endpoint()),
        (endpoint(uid="u1"), endpoint(uid="u1", boot_id="b1")),
        (endpoint(uid="u1"), endpoint(uid="u1", labels={"zone": "z"})),
    ],
    ids=["learned", "lost", "node seen later", "labels"],
)
def test_is_11_endpoint_of_which_less_or_more_is_known_stays(store, before, after):
    with_knowledge(store, before)
    change = store.update([after])
    assert [e for _, e in change.updated] == [after]
    assert known(store, after) == (3.0, 1.0, LORAS)


def test_is_11_node_that_starts_anew_while_it_is_out_of_sight_is_noticed(store):
    with_knowledge(store, endpoint(boot_id="b1"))
    store.update([endpoint()])
    change = store.update([endpoint(boot_id="b2")])
    assert len(change.removed) == len(change.added) == 1


def test_is_11_request_in_flight_to_a_replaced_pod_does_not_count_for_the_next(store):
    store.replace([endpoint(uid="u1")])
    ticket = store.ledger.open(0, tokens=10)
    store.update([endpoint(uid="u2")])
    ticket.close()
    assert known(store, endpoint())[1] == 0.0  # not -1


def test_is_11_late_report_on_a_replaced_pod_is_ignored(store):
    before, after = endpoint(uid="u1"), endpoint(uid="u2")
    with_knowledge(store, before)
    store.update([after])
    store.report(before, Report({WAITING: 9}))
    store.tag(before, Report({}, {LORA: LORAS}))
    store.mark(before, REFUSES)
    waiting, _, loras = known(store, after)
    assert (np.isnan(waiting), loras) == (True, LORA.unknown)


def test_unknown_is_not_another_but_every_known_difference_is():
    uids = boots = ("", "1", "2")
    for (uid, boot), (other_uid, other_boot) in itertools.product(itertools.product(uids, boots), repeat=2):
        one, other = Identity("a", "h", uid, boot), Identity("a", "h", other_uid, other_boot)
        differs = {uid, other_uid} == {"1", "2"} or {boot, other_boot} == {"1", "2"}
        assert one.is_another_than(other) is other.is_another_than(one) is differs


def test_is_11_pod_that_only_a_tagger_knows_resets_when_it_is_another(store):
    listed = endpoint()
    with_knowledge(store, listed)
    store.tag(listed, Report({}, {LORA: LORAS}, uid="u1", boot_id="b1"))
    assert known(store, listed) == (3, 1, LORAS)
    store.replace([endpoint()])  # the endpoint list is read again: it does not name the pod
    store.tag(listed, Report({}, {LORA: LORAS}, boot_id="b1"))
    assert known(store, listed) == (3, 1, LORAS)
    changes = []
    store.subscribe(changes.append)
    store.tag(listed, Report({}, {LORA: LORAS}, uid="u2", boot_id="b1"))
    assert [(len(change.added), len(change.removed)) for change in changes] == [(1, 1)]
    waiting, in_flight, loras = known(store, listed)
    assert (np.isnan(waiting), in_flight, loras) == (True, 0.0, LORAS)


def test_is_11_boot_that_only_a_tagger_knows_resets_when_it_is_another(store):
    listed = endpoint()
    with_knowledge(store, listed)
    for boot, waiting in (("b1", 3), ("b1", 3), ("b2", float("nan"))):
        store.tag(listed, Report({}, {LORA: LORAS}, boot_id=boot))
        assert known(store, listed)[0] == pytest.approx(waiting, nan_ok=True)


def test_is_11_pod_of_the_discovery_counts_before_that_of_a_tagger(store):
    followed = endpoint(uid="u2")
    with_knowledge(store, followed)
    store.tag(followed, Report({}, {}, uid="u1"))  # it has an older version of the objects
    assert known(store, followed)[:2] == (3, 1)
