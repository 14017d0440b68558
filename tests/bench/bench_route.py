"""CPU time of one routing decision: parse, producers, scheduling, ledger; no wire.

python tests/bench/bench_route.py
"""

import time

import numpy as np

from epp.config import Builder, assemble, default_config
from epp.datastore import Datastore
from epp.director import Cause, Director
from epp.framework import Endpoint, Headers, SystemClock
from epp.framework.datalayer import Report
from epp.framework.registry import Registry
from epp.framework.snapshot import KV_USAGE, RUNNING, WAITING

HEADERS = Headers([(":path", "/v1/chat/completions"), ("x-request-id", "bench")])


def body(prompt_bytes: int) -> bytes:
    text = "".join(f"{i:07d} " for i in range(prompt_bytes // 8))
    return b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % text.encode()


def microseconds_per_route(endpoints: int, prompt_bytes: int, rounds: int) -> float:
    clock = SystemClock()
    store = Datastore(clock)
    pool = [Endpoint(f"e{i}", f"10.{i // 62500}.{i // 250 % 250}.{i % 250 + 1}", 8000) for i in range(endpoints)]
    store.replace(pool)
    generator = np.random.default_rng(1)
    for endpoint in pool:
        waiting, running, usage = generator.random(3)
        store.report(endpoint, Report({WAITING: waiting * 20 // 1, RUNNING: running * 60 // 1, KV_USAGE: usage}))
    director = Director(store, assemble(default_config(), Builder(Registry(), clock)).pipeline, clock)
    request = body(prompt_bytes)
    samples = []
    for _ in range(7):
        started = time.process_time()
        for _ in range(rounds):
            director.route(HEADERS, request, None).complete(Cause.NATURAL)
        samples.append((time.process_time() - started) / rounds * 1e6)
    return min(samples)


def main() -> None:
    """Print a table."""
    print(f"{'endpoints':>9} {'prompt bytes':>12} {'microseconds':>12}")
    for endpoints in (8, 100, 1000, 10_000):
        for prompt_bytes in (400, 10_000, 220_000):
            cost = microseconds_per_route(endpoints, prompt_bytes, rounds=200)
            print(f"{endpoints:>9} {prompt_bytes:>12} {cost:>12.0f}")


if __name__ == "__main__":
    main()
