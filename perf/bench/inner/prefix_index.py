# SPDX-License-Identifier: Apache-2.0
"""Memory per block of the prefix index, with a million blocks from prompts of 4 KB on eight servers."""

import gc
from collections import Counter
from pathlib import Path

from timing import no_log_lines, quick, tell

from epp.config import Builder, assemble, load_text
from epp.framework import Endpoint, Headers, SystemClock
from epp.framework.datalayer import Report
from epp.framework.registry import Registry
from epp.framework.snapshot import KV_USAGE, RUNNING, WAITING
from epp.routing.datastore import Datastore
from epp.routing.director import Cause, Director, Observers, Runtime

SERVERS = 8
CHAIN = 16
"""Blocks of one prompt."""
BLOCK_BYTES = 256
CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: approx-prefix-cache-producer
  parameters: {{autoTune: false, lruCapacityPerServer: {capacity}, maxBytesPerServer: {most_bytes}}}
- type: prefix-cache-scorer
"""
NO_PROMPT = Headers([(":method", "GET"), (":path", "/v1/models")])
HEADERS = Headers([(":path", "/v1/completions"), ("x-request-id", "bench")])


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def main() -> None:
    """Print the figure."""
    capacity = (131_072 if quick() else 1_048_576) // SERVERS
    no_log_lines()
    clock = SystemClock()
    store = Datastore(clock)
    store.update([Endpoint(f"e{number}", f"10.0.0.{number + 1}", 8000) for number in range(SERVERS)])
    for endpoint in store.endpoints:
        store.report(endpoint, Report({WAITING: 0.0, RUNNING: 0.0, KV_USAGE: 0.0}))
    config = load_text(CONFIG.format(capacity=capacity, most_bytes=2**32))
    director = Director(Runtime(store, clock, Observers()), assemble(config, Builder(Registry(), clock)).pipeline)
    sent: Counter[str] = Counter()

    def route(number: int) -> None:
        prompt = b"%08d " % number * (CHAIN * BLOCK_BYTES // 9 + 1)
        routing = director.route(HEADERS, b'{"model":"m","prompt":"%s"}' % prompt, None)
        sent[routing.result.targets[0].name] += 1  # type: ignore[union-attr]
        routing.complete(Cause.NATURAL)  # type: ignore[union-attr]

    director.route(NO_PROMPT, b"", None).complete(Cause.NATURAL)  # type: ignore[union-attr]
    gc.collect()
    before = resident_bytes()
    for number in range(SERVERS * capacity // CHAIN):
        route(number)
    gc.collect()
    grown = resident_bytes() - before
    tell({"prefix-block": grown / sum(min(count * CHAIN, capacity) for count in sent.values())})


if __name__ == "__main__":
    main()
