# SPDX-License-Identifier: Apache-2.0
"""CPU time of one decision: `schedule()` alone, and a request from headers and body to its end, without a socket."""

import time
from dataclasses import replace
from typing import Any, cast

import numpy as np
from configs import llm_d_default
from timing import SAMPLES, microseconds, no_log_lines, quick, tell

from epp.config import Builder, LoadedConfig, assemble, default_config
from epp.framework import Candidates, Endpoint, Headers, Request, SystemClock
from epp.framework.datalayer import Report
from epp.framework.registry import Registry
from epp.framework.result import SchedulingResult
from epp.framework.snapshot import KV_USAGE, RUNNING, WAITING
from epp.routing.datastore import Datastore
from epp.routing.director import Cause, Director, Observers, Runtime
from epp.routing.director.pipeline import Pipeline
from epp.routing.scheduling.scheduler import Scheduler

SIZES = (8, 100, 1000, 10_000)
HEADERS = Headers([(":path", "/v1/chat/completions"), ("x-request-id", "bench")])


class Overheard:
    """A scheduler that records its requests."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.asked: list[tuple[Request, Candidates]] = []

    def schedule(self, request: Request, candidates: Candidates) -> SchedulingResult:
        self.asked.append((request, candidates))
        return self._scheduler.schedule(request, candidates)


def body(prompt_bytes: int) -> bytes:
    text = "".join(f"{i:07d} " for i in range(prompt_bytes // 8))
    return b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % text.encode()


def pool(count: int) -> tuple[Datastore, list[Endpoint]]:
    """Return a pool with random load."""
    store = Datastore(SystemClock())
    endpoints = [Endpoint(f"e{i}", f"10.{i // 62500}.{i // 250 % 250}.{i % 250 + 1}", 8000) for i in range(count)]
    store.update(endpoints)
    generator = np.random.default_rng(1)
    for endpoint in endpoints:
        waiting, running, usage = generator.random(3)
        store.report(endpoint, Report({WAITING: waiting * 20 // 1, RUNNING: running * 60 // 1, KV_USAGE: usage}))
    return store, endpoints


def pipeline(config: LoadedConfig) -> Pipeline:
    return assemble(config, Builder(Registry(), SystemClock())).pipeline


def schedule_microseconds(parts: Pipeline, store: Datastore, rounds: int) -> float:
    """Return the cost of `schedule()`: requests of a director are scheduled a second time."""
    overheard = Overheard(parts.scheduler)
    director = Director(Runtime(store, SystemClock(), Observers()), replace(parts, scheduler=cast("Any", overheard)))
    costs = []
    for _ in range(SAMPLES):
        overheard.asked.clear()
        for _ in range(rounds):
            director.route(HEADERS, body(400), None).complete(Cause.NATURAL)  # type: ignore[union-attr]
        started = time.process_time()
        for request, candidates in overheard.asked:
            parts.scheduler.schedule(request, candidates)
        costs.append((time.process_time() - started) / rounds)
    return min(costs) * 1e6


def main() -> None:
    """Print the figures of all sizes."""
    rounds = 20 if quick() else 200
    no_log_lines()
    figures = {}
    for size in SIZES:
        store, endpoints = pool(size)
        figures[f"schedule-{size}"] = schedule_microseconds(pipeline(llm_d_default()), store, rounds)
        director = Director(Runtime(store, SystemClock(), Observers()), pipeline(llm_d_default()))
        requests = {"route": body(400), "route-220k": body(220_000)}

        def route(request: bytes, director: Director = director) -> None:
            director.route(HEADERS, request, None).complete(Cause.NATURAL)  # type: ignore[union-attr]

        def route_after_report(store: Datastore = store, endpoints: list[Endpoint] = endpoints) -> None:
            store.report(endpoints[0], Report({WAITING: 3.0, RUNNING: 2.0, KV_USAGE: 0.5}))
            route(requests["route"])  # noqa: B023  called in this turn of the loop

        figures[f"route-{size}"] = microseconds(lambda: route(requests["route"]), rounds)  # noqa: B023
        if size in (8, 1000):
            figures[f"schedule-adaptive-{size}"] = schedule_microseconds(pipeline(default_config()), store, rounds)
            adaptive = Director(Runtime(store, SystemClock(), Observers()), pipeline(default_config()))
            figures[f"route-adaptive-{size}"] = microseconds(
                lambda: route(requests["route"], adaptive),  # noqa: B023  called in this turn of the loop
                rounds,
            )
        if size == 1000:
            figures["route-reported-1000"] = microseconds(route_after_report, rounds)
            figures["route-220k-1000"] = microseconds(lambda: route(requests["route-220k"]), rounds // 4)  # noqa: B023
    tell(figures)


if __name__ == "__main__":
    main()
