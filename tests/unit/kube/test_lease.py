# SPDX-License-Identifier: Apache-2.0
"""Replicas and one lease: who leads, and who takes over when."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import ManualClock
from epp.kube.access import ApiError
from epp.kube.leader_election import Lease, LeaseSettings
from tests.support.kube.lease_store import SETTINGS, DriftingClock, LeaseStore, Replica, World, attempt, deliver


@pytest.fixture
def clock():
    return ManualClock(1_000_000.0)


@pytest.fixture
def store():
    return LeaseStore()


@pytest.fixture
def first(clock):
    return Lease(SETTINGS, "first", clock)


@pytest.fixture
def second(clock):
    return Lease(SETTINGS, "second", clock)


def wait(clock: ManualClock, seconds: float, *renewing: Lease, reading: Lease, store: LeaseStore) -> None:
    """Let time pass, second by second, in which some renew the lease and one reads it."""
    for _ in range(int(seconds)):
        clock.advance(1.0)
        for lease in (*renewing, reading):
            attempt(lease, store)


def test_first_replica_creates_the_lease_and_leads(first, store):
    assert attempt(first, store) == ["GET", "POST"]
    assert first.is_leader
    assert store.document == {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "epp-llm-pool.llm-d.ai", "namespace": "llm", "resourceVersion": "2"},
        "spec": {
            "holderIdentity": "first",
            "leaseDurationSeconds": 15,
            "acquireTime": "1970-01-12T13:46:40.000000Z",  # 1,000,000 s are 11 days, 13 h, 46 min and 40 s
            "renewTime": "1970-01-12T13:46:40.000000Z",
            "leaseTransitions": 0,
        },
    }


def test_leader_renews_with_one_request_and_keeps_the_time_it_took_the_lease(first, store, clock):
    attempt(first, store)
    clock.advance(2)
    assert attempt(first, store) == ["PUT"]
    assert store.spec["acquireTime"] == first.since == "1970-01-12T13:46:40.000000Z"
    assert store.spec["renewTime"] == "1970-01-12T13:46:42.000000Z"


def test_another_replica_only_reads_while_the_leader_renews(first, second, store, clock):
    attempt(first, store)
    wait(clock, 60, first, reading=second, store=store)
    assert (first.is_leader, second.is_leader) == (True, False)
    assert attempt(second, store) == ["GET"]
    assert second.holder == "first"


def test_lease_is_taken_once_it_was_seen_unchanged_for_its_duration(first, second, store, clock):
    attempt(first, store)
    attempt(second, store)
    wait(clock, 14, reading=second, store=store)
    assert not second.is_leader
    wait(clock, 1, reading=second, store=store)
    assert second.is_leader
    assert (store.holder, store.spec["leaseTransitions"]) == ("second", 1)


@pytest.mark.parametrize("error_seconds", [-900_000.0, 9_000_000_000.0])
def test_clock_of_the_holder_does_not_matter(second, store, clock, error_seconds):
    astray = ManualClock(clock.utc() + error_seconds)
    first = Lease(SETTINGS, "first", astray)
    for _ in range(60):
        attempt(first, store)
        wait(clock, 1, reading=second, store=store)
        astray.advance(0.5)
    assert not second.is_leader
    wait(clock, 15, reading=second, store=store)
    assert second.is_leader


def test_leader_that_sees_another_holder_steps_down(first, second, store, clock):
    attempt(first, store)
    wait(clock, 20, reading=second, store=store)
    assert (first.is_leader, second.is_leader) == (True, True)  # `first` had no answer since
    assert attempt(first, store) == ["PUT", "GET"]
    assert (first.is_leader, second.is_leader) == (False, True)
    assert first.holder == "second"


def test_leader_without_an_answer_leads_on(first, store, clock):
    attempt(first, store)
    for _ in range(100):
        clock.advance(2)
        assert next(first.attempt())[0] == "PUT"  # and no answer comes
    assert first.is_leader
    assert attempt(first, store) == ["PUT"]


def test_released_lease_is_taken_at_once(first, second, store):
    attempt(first, store)
    attempt(second, store)
    assert attempt(first, store, resigns=True) == ["GET", "PUT"]
    assert not first.is_leader
    assert (store.holder, store.spec["leaseDurationSeconds"]) == ("", 1)
    assert attempt(second, store) == ["GET", "PUT"]
    assert second.is_leader


def test_of_two_that_take_a_lease_at_once_one_is_refused(first, second, store):
    exchanges = [first.attempt(), second.attempt()]
    reads = [store.answer(*next(exchange)) for exchange in exchanges]
    one, other = (deliver(exchange, *read) for exchange, read in zip(exchanges, reads, strict=True))
    assert deliver(exchanges[0], *store.answer(*one)) is None
    again = deliver(exchanges[1], *store.answer(*other))
    assert deliver(exchanges[1], *store.answer(*again)) is None
    assert (one[0], other[0], again[0]) == ("POST", "POST", "GET")
    assert (first.is_leader, second.is_leader, store.holder) == (True, False, "first")


def test_renewal_whose_answer_was_lost_does_not_cost_the_lease(first, store, clock):
    attempt(first, store)
    store.answer(*next(first.attempt()))
    clock.advance(2)
    assert attempt(first, store) == ["PUT", "GET", "PUT"]
    assert first.is_leader


def test_lease_that_was_deleted_is_made_again_by_the_leader(first, store):
    attempt(first, store)
    store.delete()
    assert attempt(first, store) == ["PUT", "GET", "POST"]
    assert first.is_leader
    assert store.holder == "first"


def test_fields_of_others_are_kept(first, store):
    attempt(first, store)
    store.document["metadata"]["labels"] = {"team": "serving"}
    store.document["spec"]["strategy"] = "OldestEmulationVersion"
    store.document["metadata"]["resourceVersion"] = "changed"
    assert attempt(first, store) == ["PUT", "GET", "PUT"]
    assert store.document["metadata"]["labels"] == {"team": "serving"}
    assert store.spec["strategy"] == "OldestEmulationVersion"


def test_longer_duration_of_another_holder_counts_and_has_a_limit(first, second, store, clock):
    for theirs, seconds in ((40, 40), (10**9, 60), (3, 15)):
        store.document = {
            "metadata": {"resourceVersion": "1"},
            "spec": {"holderIdentity": f"other-{theirs}", "leaseDurationSeconds": theirs},
        }
        replica = Lease(SETTINGS, "second", clock)
        attempt(replica, store)
        wait(clock, seconds - 1, reading=replica, store=store)
        assert not replica.is_leader, theirs
        wait(clock, 1, reading=replica, store=store)
        assert replica.is_leader, theirs


def test_time_without_the_api_server_is_not_held_against_the_leader(first, second, store, clock):
    attempt(first, store)
    attempt(second, store)
    clock.advance(600)  # and no request was answered
    assert attempt(second, store) == ["GET"]
    assert not second.is_leader
    attempt(first, store)
    wait(clock, 20, first, reading=second, store=store)
    assert (first.is_leader, second.is_leader) == (True, False)


@pytest.mark.parametrize("statuses", [(403,), (404, 404)], ids=["forbidden", "no namespace"])
def test_other_refusals_end_the_attempt(first, statuses):
    exchange = first.attempt()
    next(exchange)
    for status in statuses[:-1]:
        deliver(exchange, status, b"")
    with pytest.raises(ApiError):
        deliver(exchange, statuses[-1], b"")


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"{}", b'{"metadata": {"resourceVersion": "1"}, "spec": 3}'])
def test_unreadable_lease_is_an_error_and_changes_nothing(first, store, content):
    attempt(first, store)
    exchange = first.attempt()
    next(exchange)
    with pytest.raises(ValueError, match="unreadable"):
        deliver(exchange, 200, content)
    assert first.is_leader


def test_endless_conflicts_end_the_attempt(first, store):
    attempt(first, store)
    exchange = first.attempt()
    sent, request = 0, next(exchange)
    while request is not None:
        store.document["metadata"]["resourceVersion"] = "changed" if request[0] == "PUT" else str(sent)
        request = deliver(exchange, *store.answer(*request))
        sent += 1
    assert sent == 5  # PUT, and twice GET and PUT
    assert first.is_leader


@pytest.mark.parametrize(("seconds", "written"), [(0.4, 1), (1.5, 2), (15, 15)])
def test_duration_in_the_lease_is_whole_seconds(store, clock, seconds, written):
    attempt(Lease(LeaseSettings(name="a", namespace="b", seconds=seconds), "first", clock), store)
    assert store.spec["leaseDurationSeconds"] == written


OUTCOMES = st.sampled_from(["answered", "request lost", "answer lost", "end of attempt"])


@given(st.lists(st.tuples(st.integers(0, 2), OUTCOMES, st.floats(0, 20)), max_size=80))
def test_only_replicas_without_an_answer_since_can_believe_to_lead_beside_the_holder(moves):
    store, clock = LeaseStore(), ManualClock()
    leases = [Lease(SETTINGS, str(number), clock) for number in range(3)]
    exchanges = [lease.attempt() for lease in leases]
    requests = [next(exchange) for exchange in exchanges]
    answered = [0, 0, 0]
    for number, outcome, seconds in moves:
        clock.advance(seconds)
        if outcome == "request lost":
            continue
        if outcome != "end of attempt":
            answer = store.answer(*requests[number])
            if outcome == "answered":
                requests[number] = deliver(exchanges[number], *answer)
                answered[number] = store.requests
        if requests[number] is None or outcome != "answered":
            exchanges[number] = leases[number].attempt()
            requests[number] = next(exchanges[number])
        for other, last in zip(leases, answered, strict=True):
            if other.is_leader and other.identity != store.holder:
                assert last < store.holder_since


@given(
    seed=st.integers(0, 2**32),
    rates=st.lists(st.floats(0.6, 1.6), min_size=1, max_size=4),
    offsets=st.lists(st.floats(0, 10**9), min_size=4, max_size=4),
    latency=st.floats(0, 0.5),
    ends=st.lists(st.tuples(st.booleans(), st.floats(1, 60)), max_size=3),
)
def test_at_most_one_leads_while_clocks_differ_and_one_leads_in_the_end(seed, rates, offsets, latency, ends):
    world, store, generator = World(), LeaseStore(), random.Random(seed)
    replicas = []
    for number, rate in enumerate(rates):
        clock = DriftingClock(world, rate, offsets[number])
        replica = Replica(Lease(SETTINGS, str(number), clock), clock, generator, latency)
        if number < len(ends):
            crash, at = ends[number]
            replica.crashes_at, replica.resigns_at = (at, float("inf")) if crash else (float("inf"), at)
        replicas.append(replica)
        world.start(replica.run(store))
    # Until the last one ends at 60 s at the latest, and for 15 s on the slowest clock and two attempts thereafter:
    # 15 s / 0.6 + 2 * (2.4 s / 0.6 + 4 * 0.5 s) = 37 s
    for _ in world.steps(until=100.0):
        assert sum(replica.leads for replica in replicas) <= 1
    left = [replica for replica in replicas if replica.takes_part]
    assert [replica.leads for replica in left].count(True) == min(1, len(left))
