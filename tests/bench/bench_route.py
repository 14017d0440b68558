# SPDX-License-Identifier: Apache-2.0
"""CPU time of one routing decision: parse, producers, scheduling, ledger; no wire.

    python tests/bench/bench_route.py

Also what a log line of each request costs (`-v 2`), its writing to /dev/null included: as a ratio to none (`-v 0`).
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

from epp.config import Builder, assemble, default_config
from epp.datastore import Datastore
from epp.director import Cause, Director, Observers
from epp.framework import Endpoint, Headers, SystemClock
from epp.framework.datalayer import Report
from epp.framework.registry import Registry
from epp.framework.snapshot import KV_USAGE, RUNNING, WAITING
from epp.observability import logs
from epp.observability.log_writer import LogWriter
from epp.observability.request_log import request_log

HEADERS = Headers([(":path", "/v1/chat/completions"), ("x-request-id", "bench")])


def body(prompt_bytes: int) -> bytes:
    text = "".join(f"{i:07d} " for i in range(prompt_bytes // 8))
    return b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % text.encode()


def microseconds_per_route(endpoints: int, prompt_bytes: int, rounds: int, writer: LogWriter) -> tuple[float, float]:
    """Return the cost without log lines and with them; samples of both take turns."""
    clock = SystemClock()
    store = Datastore(clock)
    pool = [Endpoint(f"e{i}", f"10.{i // 62500}.{i // 250 % 250}.{i % 250 + 1}", 8000) for i in range(endpoints)]
    store.replace(pool)
    generator = np.random.default_rng(1)
    for endpoint in pool:
        waiting, running, usage = generator.random(3)
        store.report(endpoint, Report({WAITING: waiting * 20 // 1, RUNNING: running * 60 // 1, KV_USAGE: usage}))
    pipeline = assemble(default_config(), Builder(Registry(), clock)).pipeline
    request = body(prompt_bytes)
    samples: dict[int, list[float]] = {0: [], 2: []}
    for _ in range(7):
        for verbosity, found in samples.items():
            director = Director(store, pipeline, clock, observer=Observers(*request_log(verbosity)))
            started = time.process_time()
            for _ in range(rounds):
                director.route(HEADERS, request, None).complete(Cause.NATURAL)
            writer.settle()
            found.append((time.process_time() - started) / rounds * 1e6)
    return min(samples[0]), min(samples[2])


def main() -> None:
    """Print a table."""
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  for log lines, to the end
    writer = logs.configure(2)
    print(f"{'endpoints':>9} {'prompt bytes':>12} {'microseconds':>12} {'-v 2':>6}")
    for endpoints in (8, 100, 1000, 10_000):
        for prompt_bytes in (400, 10_000, 220_000):
            cost, logged = microseconds_per_route(endpoints, prompt_bytes, 200, writer)
            print(f"{endpoints:>9} {prompt_bytes:>12} {cost:>12.0f} {logged / cost:>6.2f}")


if __name__ == "__main__":
    main()
