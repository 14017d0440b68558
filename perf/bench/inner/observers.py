# SPDX-License-Identifier: Apache-2.0
"""CPU time of observers per request: the metrics, and the log line (`-v 2`).

The calls of a real request, from its routing to the end of its response, are recorded once and replayed.
"""

import os
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, cast

from configs import llm_d_default
from timing import SAMPLES, quick, tell

from epp.config import Builder, assemble
from epp.framework import Endpoint, Headers, SystemClock
from epp.framework.datalayer import Report
from epp.framework.plugin import SchedulingObserver
from epp.framework.registry import Registry
from epp.framework.snapshot import KV_USAGE, RUNNING, WAITING
from epp.routing.datastore import Datastore
from epp.routing.director import Cause, Director, DirectorObserver, Observers, Routing, Runtime
from epp.telemetry import logs
from epp.telemetry.metrics import Metrics
from epp.telemetry.request_log import request_log

HEADERS = Headers([(":path", "/v1/chat/completions"), (":method", "POST"), ("x-request-id", "bench")])
BODY = b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % (b"0123456 " * 50)
ANSWERED = Headers([("content-type", "application/json")])
RESPONSE = b'{"model":"m","usage":{"prompt_tokens":100,"completion_tokens":20,"total_tokens":120}}'

Call = tuple[str, tuple[Any, ...]]


class Recorder(DirectorObserver):
    """Recorded calls of an observer, in order."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_") or name == "calls":
            return object.__getattribute__(self, name)
        return lambda *arguments: self.calls.append((name, arguments))


def recorded() -> list[Call]:
    """Return the calls of the second of two equal requests."""
    clock = SystemClock()
    store = Datastore(clock)
    pool = [Endpoint(f"e{i}", f"10.0.0.{i + 1}", 8000) for i in range(8)]
    store.replace(pool)
    for i, endpoint in enumerate(pool):
        store.report(endpoint, Report({WAITING: i, RUNNING: i, KV_USAGE: i / 10}))
    recorder = Recorder()
    pipeline = assemble(
        llm_d_default(), Builder(Registry(), clock), observer=cast("SchedulingObserver", recorder)
    ).pipeline
    director = Director(Runtime(store, clock, recorder), pipeline)
    for _ in range(2):
        recorder.calls.clear()
        routing = director.route(HEADERS, BODY, None)
        assert isinstance(routing, Routing)
        routing.response_started(200, lambda: ANSWERED, event_stream=False)
        routing.response_piece(RESPONSE, last=True, now=clock.now)
        routing.complete(Cause.NATURAL)
    return recorder.calls


def cost(observer: DirectorObserver, calls: list[Call], settle: Callable[[], object], rounds: int) -> float:
    """Return the cost in microseconds of all calls that the observer implements."""
    bound = [(getattr(observer, name), arguments) for name, arguments in calls if hasattr(observer, name)]
    started = time.process_time()
    for _ in range(rounds):
        for method, arguments in bound:
            method(*arguments)
    settle()
    return (time.process_time() - started) / rounds * 1e6


def main() -> None:
    """Print the figures; log lines are written to /dev/null, which counts."""
    rounds = 100 if quick() else 2000
    calls = recorded()
    with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
        writer = logs.configure(2)
        observers: dict[str, DirectorObserver] = {
            "observers-metrics": Metrics("pool", SystemClock()),
            "observers-log": Observers(*request_log(2)),
        }
        figures = {
            row: min(cost(each, calls, writer.settle, rounds) for _ in range(SAMPLES))
            for row, each in observers.items()
        }
    tell(figures)


if __name__ == "__main__":
    main()
