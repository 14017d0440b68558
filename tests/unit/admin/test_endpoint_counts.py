# SPDX-License-Identifier: Apache-2.0
"""Picked, served and failed requests that workers count, and their sums in the main process."""

import pickle
from collections import Counter
from dataclasses import replace

from epp.admin.answers import EndpointCounts, endpoint_counts
from epp.framework.clock import ManualClock
from epp.framework.endpoint import Endpoint
from epp.routing.datastore import Datastore

A, B = Endpoint("a", "10.0.0.1", 8000), Endpoint("b", "10.0.0.2", 8000)


class Worker:
    def __init__(self) -> None:
        self.store = Datastore(ManualClock())
        self.store.replace([B, A])  # in other slots than the main process has
        self.picks: Counter[str] = Counter()

    def serve(self, endpoint: Endpoint, count: int, *, failed: bool = False) -> None:
        for _ in range(count):
            self.picks[endpoint.id] += 1
            self.store.ledger.open(self.store.slot_named(endpoint.id)).close(failed=failed)

    def answer(self):
        return pickle.loads(pickle.dumps(endpoint_counts(self.store.snapshot(), self.picks)))  # noqa: S301  of this test


class Main:
    def __init__(self) -> None:
        self.store = Datastore(ManualClock())
        self.store.replace([A, B])
        self.counts = EndpointCounts()

    def shown(self, *workers: Worker, silent: tuple[Worker, ...] = ()) -> dict[str, tuple[int, float, float]]:
        """Picks, served and failed requests by the name of the endpoint."""
        answers = {**{worker: worker.answer() for worker in workers}, **dict.fromkeys(silent)}
        total = self.counts.with_others(endpoint_counts(self.store.snapshot(), {}), answers)
        return {
            identity.removeprefix("default/"): (counts["picks"], counts["served"], counts["failed"])
            for identity, counts in total.items()
        }


def test_main_process_has_the_sums_of_all_workers_and_the_last_answers_of_those_that_have_ended():
    main, first, second = Main(), Worker(), Worker()
    first.serve(A, 3)
    first.serve(B, 1, failed=True)
    second.serve(A, 2, failed=True)
    assert main.shown(first, second) == {"a": (5, 5.0, 2.0), "b": (1, 1.0, 1.0)}

    first.serve(A, 7)  # nobody has asked before the worker was killed
    replacement = Worker()
    replacement.serve(A, 1)
    second.serve(B, 1)
    for _ in range(2):
        assert main.shown(replacement, second) == {"a": (6, 6.0, 2.0), "b": (2, 2.0, 1.0)}


def test_silent_worker_counts_with_its_last_answer():
    main, first, second = Main(), Worker(), Worker()
    first.serve(A, 3)
    assert main.shown(first, second)["a"] == (3, 3.0, 0.0)
    first.serve(A, 1)
    second.serve(A, 1)
    assert main.shown(second, silent=(first,))["a"] == (4, 4.0, 0.0)
    assert main.shown(first, second)["a"] == (5, 5.0, 0.0)


def test_pick_counts_before_its_request_ends_and_failure_after_it():
    main, worker = Main(), Worker()
    worker.picks[A.id] += 1
    ticket = worker.store.ledger.open(worker.store.slot_named(A.id))
    assert main.shown(worker)["a"] == (1, 0.0, 0.0)
    ticket.close()
    ticket.fail()
    assert main.shown(worker)["a"] == (1, 1.0, 1.0)


def test_endpoint_that_comes_back_starts_from_zero_and_one_with_other_labels_goes_on():
    main, worker = Main(), Worker()
    worker.serve(A, 3)
    worker.serve(B, 3)
    assert main.shown(worker) == {"a": (3, 3.0, 0.0), "b": (3, 3.0, 0.0)}
    for store in (main.store, worker.store):
        store.replace([replace(A, labels={"role": "decode"})])
        store.replace([replace(A, labels={"role": "decode"}), B])
    del worker.picks[B.id]
    worker.serve(A, 1)
    worker.serve(B, 2)
    assert main.shown(worker) == {"a": (4, 4.0, 0.0), "b": (2, 2.0, 0.0)}


def test_endpoint_that_left_is_forgotten_with_its_counts():
    main, first = Main(), Worker()
    first.serve(A, 3)
    first.serve(B, 1)
    main.shown(first)
    main.store.replace([B])
    assert main.shown() == {"b": (1, 1.0, 0.0)}
    main.store.replace([B, A])
    assert main.shown() == {"a": (0, 0.0, 0.0), "b": (1, 1.0, 0.0)}
