# SPDX-License-Identifier: Apache-2.0
"""CPU time and memory of flow control with 100,000 requests in 10,000 flows (`--quick`: a tenth).

The pool has 8 endpoints, and `fair-share` orders the flows. A dispatched request gets an entry in the ledger.
Scheduling and sockets are not included.
"""

import gc
import time
import tracemalloc
from collections.abc import Sequence

from timing import no_log_lines, quick, tell

from epp.admission.flow_control.control import FlowControl, FlowObserver
from epp.admission.flow_control.guarded import guarded
from epp.admission.flow_control.settings import FlowControlSettings, QueuedRequest
from epp.config import Builder, assemble, load_text
from epp.framework import Candidates, Endpoint, Request, SystemClock
from epp.framework.arrays import Mask
from epp.framework.errors import RequestError
from epp.framework.plugin import Guard, SchedulingObserver
from epp.framework.registry import Registry
from epp.routing.datastore import Datastore
from epp.runtime.supervisor import collect_rarely

WAITING, FLOWS = (10_000, 1_000) if quick() else (100_000, 10_000)
CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {type: queue-scorer}
- {type: concurrency-detector, parameters: {maxConcurrency: 1}}
- {type: round-robin-fairness-policy}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  defaultRequestTTL: 1h
  defaultPriorityBand: {maxRequests: 1000000, maxBytes: 100Gi, fairnessPolicyRef: round-robin-fairness-policy}
"""


class Front:
    """A full pool."""

    def __init__(self, endpoints: int = 8) -> None:
        self.clock = SystemClock()
        self.store = Datastore(self.clock)
        self.store.replace([Endpoint(f"e{number}", f"10.0.0.{number + 1}", 8000) for number in range(endpoints)])
        self.settings = self.read()
        self.flow = FlowControl(self.settings, self.clock, observer=FlowObserver())
        self.taken = [self.store.ledger.open(slot) for slot in range(endpoints)]
        self.gone = 0
        self.refused = 0

    def read(self) -> FlowControlSettings:
        """Return new settings."""
        settings = assemble(load_text(CONFIG, "bench"), Builder(Registry(), self.clock)).pipeline.flow_control
        assert settings is not None
        return guarded(settings, Guard(SchedulingObserver()))

    def candidates(self) -> Candidates:
        snapshot = self.store.snapshot()
        return Candidates(snapshot, snapshot.available)

    def free(self) -> None:
        """Complete the oldest dispatched request."""
        self.taken.pop(0).close()


class Passer(QueuedRequest):
    """A request that is dispatched to the first endpoint."""

    __slots__ = ("_front", "request")

    def __init__(self, front: Front, request: Request) -> None:
        self._front = front
        self.request = request

    def candidates(self) -> Candidates:
        return self._front.candidates()

    def route(self, candidates: Candidates, room: Mask) -> bool:
        front = self._front
        front.taken.append(front.store.ledger.open(int(candidates.slots[room][0])))
        front.gone += 1
        return True

    def refuse(self, error: RequestError) -> None:
        self._front.refused += 1


def passers(front: Front) -> list[Passer]:
    now = front.clock.now()
    return [
        Passer(front, Request(f"r{number}", fairness_id=f"tenant-{number % FLOWS}", size_bytes=1000, received_at=now))
        for number in range(WAITING)
    ]


def enter(front: Front, all_of_them: Sequence[Passer]) -> float:
    """Enqueue all requests; return the time per request in microseconds."""
    full = front.candidates()
    started = time.process_time()
    for each in all_of_them:
        front.flow.enter(each, full)
    return (time.process_time() - started) / len(all_of_them) * 1e6


def dispatch(front: Front, count: int) -> float:
    """Dispatch requests one by one as others complete; return the time per request."""
    spent, before = 0.0, front.gone
    for _ in range(count):
        front.free()
        started = time.process_time()
        front.flow.dispatch()
        spent += time.process_time() - started
    assert front.gone == before + count
    return spent / count * 1e6


def look(front: Front, count: int) -> float:
    """Check the queues while the pool is full; return the time per check."""
    started = time.process_time()
    for _ in range(count):
        front.flow.dispatch()
    return (time.process_time() - started) / count * 1e6


def leave(front: Front, some: Sequence[Passer]) -> float:
    """Disconnect clients; return the time per client."""
    before = front.flow.queues.requests
    started = time.process_time()
    for each in some:
        front.flow.leave(each)
    spent = time.process_time() - started
    assert front.flow.queues.requests == before - len(some)
    return spent / len(some) * 1e6


def reload(front: Front) -> float:
    """Apply new settings; return the time in milliseconds."""
    settings = front.read()
    started = time.process_time()
    front.flow.use(settings)
    return (time.process_time() - started) * 1e3


def memory() -> float:
    """Return the bytes that flow control uses per queued request, without the request itself."""
    front = Front()
    all_of_them = passers(front)
    gc.collect()
    tracemalloc.start()
    enter(front, all_of_them)
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken / len(all_of_them)


def main() -> None:
    """Print the figures: the minimum of several rounds."""
    collect_rarely()
    no_log_lines()
    rounds = 2 if quick() else 5
    figures: dict[str, list[float]] = {}
    for _ in range(rounds):
        front = Front()
        all_of_them = passers(front)
        gc.collect()
        gc.freeze()
        for row, figure in (
            ("flow-enqueue", enter(front, all_of_them)),
            ("flow-look", look(front, 1000)),
            ("flow-dispatch", dispatch(front, 1000)),
            ("flow-reload", reload(front)),
            ("flow-leave", leave(front, all_of_them[WAITING // 2 :: 5])),
        ):
            figures.setdefault(row, []).append(figure)
        gc.unfreeze()
    tell({row: min(found) for row, found in figures.items()} | {"flow-memory": memory()})


if __name__ == "__main__":
    main()
