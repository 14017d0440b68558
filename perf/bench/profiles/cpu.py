# SPDX-License-Identifier: Apache-2.0
"""CPU time of a request by profile, from headers and body to its end, without a socket."""

import time

from epp.config import load_text
from epp.config.load import sample_texts
from epp.framework import Headers, ManualClock
from epp.framework.datalayer import Report
from epp.framework.snapshot import KV_USAGE, RUNNING, WAITING
from epp.lab.replay.fleet import ReplayOptions
from epp.lab.replay.replicas import Replica
from epp.routing.director import Cause
from epp.routing.director.routing import Routing
from perf.bench.profiles.fleets import Fleet
from perf.bench.profiles.workloads import trace

_REQUESTS = 200
_ROUNDS = 9


def route_microseconds(sample: str, fleet: Fleet) -> float:
    """Return the minimum of several means, for requests without shared prefixes and with random load."""
    clock = ManualClock(1000.0)
    replica = Replica(load_text(sample_texts()[sample], sample), fleet.simulated, clock, b"cpu", ReplayOptions())
    for number, endpoint in enumerate(fleet.endpoints):
        replica.store.report(endpoint, Report({WAITING: number % 3, RUNNING: 20.0 + number, KV_USAGE: 0.1 * number}))
    bodies = [call.body for call in trace("unshared", fleet, load=0.5, seconds=30.0, seed=1).calls]
    headers = Headers([(":method", "POST"), (":path", "/v1/chat/completions"), ("x-request-id", "r")])
    means = []
    for _ in range(_ROUNDS):
        started = time.process_time()
        for number in range(_REQUESTS):
            routing = replica.director.route(headers, bodies[number % len(bodies)], None)
            assert isinstance(routing, Routing)
            routing.complete(Cause.NATURAL)
        means.append((time.process_time() - started) / _REQUESTS)
        clock.advance(1.0)
    return min(means) * 1e6
