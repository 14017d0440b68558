# SPDX-License-Identifier: Apache-2.0
"""The pool of a main process and its copy in a worker."""

import pickle
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import epp.sharing.channel  # noqa: F401  how mappings are pickled
from epp.framework.clock import ManualClock
from epp.framework.datalayer import Report
from epp.framework.endpoint import Endpoint
from epp.framework.snapshot import (
    ANSWERS,
    IN_FLIGHT,
    KV_USAGE,
    LORA,
    METRICS_AT,
    NODE_LABELS,
    REFUSES,
    RUNNING,
    LoraState,
)
from epp.routing.datastore import Datastore
from epp.sharing.mirror import PoolMirror, PoolSource

NAMES = [f"pod-{number}" for number in range(70)]


def pod(name: str, *, label: str = "") -> Endpoint:
    return Endpoint(name, f"10.0.0.{NAMES.index(name) + 1}", 8000, labels={"app": label} if label else {})


def pair() -> tuple[Datastore, Datastore, PoolSource, PoolMirror]:
    main, worker = Datastore(ManualClock()), Datastore(ManualClock())
    return main, worker, PoolSource(main), PoolMirror(worker)


def copy(source: PoolSource, mirror: PoolMirror) -> int:
    parts = [pickle.loads(pickle.dumps(part)) for part in source.differences()]  # noqa: S301  of this test
    for part in parts:
        mirror.apply(part)
    return len(parts)


def content(store: Datastore) -> dict[str, object]:
    """Endpoints by name, with what is known of them."""
    snapshot = store.snapshot()
    return {
        endpoint.id: (
            endpoint,
            *(
                None if np.isnan(value := snapshot.column(each)[slot]) else value
                for each in (RUNNING, KV_USAGE, METRICS_AT)
            ),
            snapshot.records(LORA).values[slot],
            dict(snapshot.records(NODE_LABELS).values[slot]),
            slot in snapshot.available,
        )
        for slot in snapshot.slots.tolist()
        if (endpoint := snapshot.endpoints.values[slot]) is not None
    }


def test_a_worker_has_the_endpoints_and_load_of_the_main_process_but_not_its_requests_in_flight():
    main, worker, source, mirror = pair()
    first, second = pod("pod-0"), pod("pod-1")
    main.replace([first, second])
    main.report(first, Report({RUNNING: 3.0}, {LORA: LoraState(frozenset({"french"}), max_adapters=2)}))
    main.tag(second, Report({}, {NODE_LABELS: {"gpu": "A100"}}))
    copy(source, mirror)
    assert content(worker) == content(main)

    main.report(first, Report({RUNNING: 4.0}))
    main.count_peers(0, 5, 100)
    copy(source, mirror)
    assert (worker.snapshot().column(RUNNING)[0], worker.snapshot().column(IN_FLIGHT)[0]) == (4.0, 0)
    assert copy(source, mirror) == 0, "nothing is sent while nothing changes"


def test_worker_that_joins_gets_what_the_others_have_and_then_the_same_changes():
    main, first, source, mirror = pair()
    main.replace([pod("pod-0")])
    main.report(pod("pod-0"), Report({RUNNING: 3.0}))
    copy(source, mirror)
    main.report(pod("pod-0"), Report({RUNNING: 4.0}))  # told to nobody yet

    second = Datastore(ManualClock())
    own, late = PoolSource(main), PoolMirror(second)
    for part in own.differences(source.sent):
        late.apply(part)
    assert content(second) == content(first)
    for part in source.differences():
        mirror.apply(part)
        late.apply(part)
    assert content(second) == content(first) == content(main)


def test_many_endpoints_come_in_parts():
    main, worker, source, mirror = pair()
    main.replace(map(pod, NAMES))
    for endpoint in main.endpoints:
        main.report(endpoint, Report({RUNNING: 1.0}))
    assert copy(source, mirror) == 4, "columns, and three parts with endpoints"
    assert content(worker) == content(main)


def test_an_endpoint_that_starts_anew_has_no_data():
    main, worker, source, mirror = pair()
    first = pod("pod-0")
    main.replace([first])
    main.report(first, Report({RUNNING: 0.0, KV_USAGE: 0.5}))
    copy(source, mirror)
    again = replace(first)
    main.update([again], [again.id])
    main.report(again, Report({RUNNING: 0.0}))
    copy(source, mirror)
    assert np.isnan(worker.snapshot().column(KV_USAGE)[0])
    assert content(worker) == content(main)


class Copies(RuleBasedStateMachine):
    """Whatever happens to the pool, its copy is equal after the next difference."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.worker, self.source, self.mirror = pair()
        self.clock = self.main._clock

    @rule(names=st.sets(st.sampled_from(NAMES), max_size=70), label=st.sampled_from(["", "a"]))
    def replaced(self, names, label):
        self.main.replace([pod(name, label=label) for name in sorted(names)])

    @rule(name=st.sampled_from(NAMES[:5]), label=st.sampled_from(["", "a", "b"]), anew=st.booleans())
    def updated(self, name, label, anew):
        endpoint = pod(name, label=label)
        self.main.update([endpoint], [endpoint.id] if anew else ())

    @rule(names=st.sets(st.sampled_from(NAMES[:5])))
    def moved(self, names):
        """Leave and come back, to other slots."""
        endpoints = [pod(name) for name in sorted(names)]
        self.main.update((), [endpoint.id for endpoint in endpoints])
        self.main.update(reversed(endpoints))

    @rule(
        name=st.sampled_from(NAMES[:5]),
        running=st.sampled_from([0.0, 1.0]),
        adapters=st.sets(st.sampled_from("ab")),
        reachable=st.sampled_from([ANSWERS, REFUSES]),
    )
    def reported(self, name, running, adapters, reachable):
        self.clock.advance(1)
        endpoint = self.main.endpoint(f"default/{name}")
        if endpoint is not None:
            self.main.report(endpoint, Report({RUNNING: running}, {LORA: LoraState(frozenset(adapters))}))
            self.main.mark(endpoint, reachable)

    @rule()
    def forgotten(self):
        self.main.forget([RUNNING, LORA])

    @rule()
    def copied(self):
        copy(self.source, self.mirror)
        assert content(self.worker) == content(self.main)

    @invariant()
    def slots_are_found(self):
        assert self.worker.count <= len(NAMES)


test_copies_are_equal = Copies.TestCase
