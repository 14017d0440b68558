# SPDX-License-Identifier: Apache-2.0
"""CPU time that observers take of one request: the metrics, and the log line (`-v 2`).

    python tests/bench/bench_observers.py

The calls of a real request, from its routing to the end of its response, are recorded once and made again and again.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from epp.config import Builder, assemble, default_config
from epp.datastore import Datastore
from epp.director import Cause, Director, DirectorObserver, Observers
from epp.framework import Endpoint, Headers, SystemClock
from epp.framework.datalayer import Report
from epp.framework.registry import Registry
from epp.framework.snapshot import KV_USAGE, RUNNING, WAITING
from epp.observability import logs
from epp.observability.metrics import Metrics
from epp.observability.request_log import request_log

HEADERS = Headers([(":path", "/v1/chat/completions"), (":method", "POST"), ("x-request-id", "bench")])
BODY = b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % (b"0123456 " * 50)
RESPONSE = b'{"model":"m","usage":{"prompt_tokens":100,"completion_tokens":20,"total_tokens":120}}'
ROUNDS = 2_000
SAMPLES = 15

Call = tuple[str, tuple[Any, ...]]


class Recorder(DirectorObserver):
    """The calls of an observer, in order."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_") or name == "calls":
            return object.__getattribute__(self, name)
        return lambda *arguments: self.calls.append((name, arguments))


def recorded() -> list[Call]:
    """Return the calls of one request, the second of its kind."""
    clock = SystemClock()
    store = Datastore(clock)
    pool = [Endpoint(f"e{i}", f"10.0.0.{i + 1}", 8000) for i in range(8)]
    store.replace(pool)
    for i, endpoint in enumerate(pool):
        store.report(endpoint, Report({WAITING: i, RUNNING: i, KV_USAGE: i / 10}))
    recorder = Recorder()
    pipeline = assemble(default_config(), Builder(Registry(), clock), observer=recorder).pipeline
    director = Director(store, pipeline, clock, observer=recorder)
    for _ in range(2):
        recorder.calls.clear()
        routing = director.route(HEADERS, BODY, None)
        routing.response_started(200, Headers([("content-type", "application/json")]), event_stream=False)
        routing.response_piece(RESPONSE, last=True, now=clock.now())
        routing.complete(Cause.NATURAL)
    return recorder.calls


def microseconds(observer: DirectorObserver, calls: list[Call], settle: Callable[[], object]) -> float:
    """Return the cost of these calls, once all."""
    bound = [(getattr(observer, name), arguments) for name, arguments in calls]
    started = time.process_time()
    for _ in range(ROUNDS):
        for method, arguments in bound:
            method(*arguments)
    settle()
    return (time.process_time() - started) / ROUNDS * 1e6


def main() -> None:
    """Print a table."""
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  for log lines, to the end
    writer = logs.configure(2)
    calls = recorded()
    times = [call for call in calls if call[0] == "plugin_called"]
    metrics = Metrics("pool", SystemClock())
    rows: dict[str, tuple[DirectorObserver, list[Call]]] = {
        "no observer": (DirectorObserver(), calls),
        "metrics": (metrics, calls),
        f"  of these, {len(times)} calls of plugins": (metrics, times),
        "log line, with its writing to /dev/null": (Observers(*request_log(2)), calls),
        "all of it": (Observers(metrics, *request_log(2)), calls),
    }
    samples: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(SAMPLES):
        for name, (observer, made) in rows.items():
            samples[name].append(microseconds(observer, made, writer.settle))
    for name, found in samples.items():
        print(f"{name:<48} {min(found):>8.1f} us {sorted(found)[SAMPLES // 2]:>8.1f} us median")


if __name__ == "__main__":
    main()
