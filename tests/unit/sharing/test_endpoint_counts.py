# SPDX-License-Identifier: Apache-2.0
"""Picks and ended requests that workers count, and their sums in the main process."""

import pickle
from collections import Counter
from dataclasses import replace

from epp.framework.clock import ManualClock
from epp.framework.endpoint import Endpoint
from epp.framework.snapshot import FAILED, SERVED
from epp.routing.datastore import Datastore, SharedWork
from epp.sharing.mirror import EndpointCounter, EndpointCounts

A, B = Endpoint("a", "10.0.0.1", 8000), Endpoint("b", "10.0.0.2", 8000)


class Main:
    def __init__(self) -> None:
        self.store = Datastore(ManualClock())
        self.store.replace([A, B])
        self.counts = EndpointCounts(self.store)
        self.messages = 0

    def take(self, message: object) -> None:
        self.messages += 1
        self.counts.add(pickle.loads(pickle.dumps(message)))  # noqa: S301  of this test

    def shown(self, endpoint: Endpoint) -> tuple[int, float, float]:
        """Picks, served and failed requests."""
        slot, snapshot = self.store.slot_named(endpoint.id), self.store.snapshot()
        return self.counts.picks[endpoint.id], snapshot.column(SERVED)[slot], snapshot.column(FAILED)[slot]


class Worker:
    def __init__(self, main: Main) -> None:
        self.store = Datastore(ManualClock())
        self.store.replace([B, A])  # in other slots than the main process has
        self.picks: Counter[str] = Counter()
        self.counter = EndpointCounter(self.store, lambda: Counter(self.picks), main.take)

    def serve(self, endpoint: Endpoint, count: int, *, failed: bool = False) -> None:
        for _ in range(count):
            self.picks[endpoint.id] += 1
            self.store.ledger.open(self.store.slot_named(endpoint.id)).close(failed=failed)


def test_main_process_has_the_sums_of_all_workers_and_of_those_that_have_ended():
    main = Main()
    first, second = Worker(main), Worker(main)
    first.serve(A, 3)
    first.serve(B, 1, failed=True)
    second.serve(A, 2, failed=True)
    for worker in (first, second):
        worker.counter.report()
    assert main.shown(A) == (5, 5.0, 2.0)
    assert main.shown(B) == (1, 1.0, 1.0)

    replacement = Worker(main)  # of the first, which was killed
    replacement.serve(A, 1)
    second.serve(B, 1)
    for worker in (replacement, second):
        worker.counter.report()
    assert main.shown(A) == (6, 6.0, 2.0)
    assert main.shown(B) == (2, 2.0, 1.0)

    told = main.messages
    for worker in (replacement, second):
        worker.counter.report()
    assert main.messages == told, "nothing is sent while nothing ends"


def test_a_pick_is_told_before_its_request_ends_and_a_failure_after_it():
    main = Main()
    worker = Worker(main)
    worker.picks[A.id] += 1
    ticket = worker.store.ledger.open(worker.store.slot_named(A.id))
    worker.counter.report()
    assert main.shown(A) == (1, 0.0, 0.0)
    ticket.close()
    worker.counter.report()
    ticket.fail()
    worker.counter.report()
    assert main.shown(A) == (1, 1.0, 1.0)


def test_an_endpoint_that_comes_back_starts_from_zero_and_one_with_other_labels_goes_on():
    main = Main()
    worker = Worker(main)
    worker.serve(A, 3)
    worker.serve(B, 3)
    worker.counter.report()
    for store in (main.store, worker.store):
        store.replace([replace(A, labels={"role": "decode"})])
        store.replace([replace(A, labels={"role": "decode"}), B])
    del worker.picks[B.id]
    worker.serve(A, 1)
    worker.serve(B, 2)
    worker.counter.report()
    assert main.shown(A) == (4, 4.0, 0.0)
    assert main.shown(B) == (2, 2.0, 0.0)


def test_counts_of_an_endpoint_that_left_are_ignored_and_those_of_workers_are_not_shared_as_the_main_process_own():
    main = Main()
    shared = SharedWork(main.store, sends=False)
    worker = Worker(main)
    worker.serve(A, 1)
    worker.serve(B, 1)
    main.store.replace([B])
    worker.counter.report()
    assert main.shown(B) == (1, 1.0, 0.0)
    assert A.id not in main.counts.picks
    assert shared.changes(main.store.snapshot()) is None
