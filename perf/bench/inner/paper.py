# SPDX-License-Identifier: Apache-2.0
"""CPU time of a decision with the profile `adaptive` by number of endpoints, and of batches of shared state."""

import statistics
import time
from collections.abc import Callable
from itertools import count

from decision import HEADERS, pool
from timing import no_log_lines, quick, tell

from epp.config import Builder, assemble, default_config
from epp.framework import SystemClock
from epp.framework.registry import Registry
from epp.framework.sharing import Shareable
from epp.routing.datastore import SharedWork
from epp.routing.director import Cause, Director, Observers, Runtime
from epp.routing.director.routing import Routing
from epp.sharing.exchange import Exchange

SIZES = (10, 100, 1000, 10_000)
BATCHES = (1, 100)
"""Requests in a batch."""
ENDPOINTS = 10_000
PROMPT_BYTES = 4096
SAMPLES = 5
_numbers = count()


class Peer:
    """A picker with the profile `adaptive` and its shared components."""

    def __init__(self, name: str, endpoints: int) -> None:
        self.store, _ = pool(endpoints)
        clock = SystemClock()
        assembly = assemble(default_config(), Builder(Registry(), clock))
        self._director = Director(Runtime(self.store, clock, Observers()), assembly.pipeline)
        quotas, work = self._director.quotas.share(name), SharedWork(self.store)
        parts = (work, quotas, *(plugin for plugin in assembly.plugins if isinstance(plugin, Shareable)))
        self.exchange = Exchange(name, lambda: parts, self.store.snapshot, clock, salt=7)

    def route(self) -> Routing:
        """Route a prompt whose first block is unique."""
        text = f"{next(_numbers):07d} ".encode() * (PROMPT_BYTES // 8)
        body = b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % text
        found = self._director.route(HEADERS, body, None)
        assert isinstance(found, Routing)
        return found


def seconds(call: Callable[[], object]) -> float:
    """Return the CPU time of this thread during a call."""
    started = time.thread_time()
    call()
    return time.thread_time() - started


def decision(endpoints: int, rounds: int) -> float:
    """Return the CPU time of a request from its body to its end, without a socket: the minimum of several means."""
    peer = Peer("alone", endpoints)

    def run() -> None:
        for _ in range(rounds):
            peer.route().complete(Cause.NATURAL)

    run()
    return min(seconds(run) for _ in range(SAMPLES)) / rounds


def batches(sender: Peer, receiver: Peer, requests: int, rounds: int) -> tuple[float, float, float]:
    """Return the minimum CPU times to write and to apply a batch, and its median size in bytes.

    Each batch contains this number of started requests, and as many completed ones.
    """
    written, applied, sizes, running = [], [], [], [sender.route() for _ in range(requests)]
    sender.exchange.collect()
    for _ in range(rounds):
        began = [sender.route() for _ in range(requests)]
        for one in running:
            one.complete(Cause.NATURAL)
        running = began
        started = time.thread_time()
        batch = sender.exchange.collect()
        written.append(time.thread_time() - started)
        assert batch is not None
        sizes.append(len(batch))
        applied.append(seconds(lambda: receiver.exchange.apply(batch, 0.0)))  # noqa: B023  called immediately
    for one in running:
        one.complete(Cause.NATURAL)
    return min(written), min(applied), statistics.median(sizes)


def main() -> None:
    """Print the figures: microseconds, and bytes of batches."""
    few = quick()
    no_log_lines()
    figures = {f"decision-{size}": decision(size, 10 if few else 200) * 1e6 for size in SIZES}
    sender, receiver = Peer("sender", ENDPOINTS), Peer("receiver", ENDPOINTS)
    for requests in BATCHES:
        write, apply, size = batches(sender, receiver, requests, 3 if few else 30)
        figures |= {f"write-{requests}": write * 1e6, f"apply-{requests}": apply * 1e6, f"bytes-{requests}": size}
    tell(figures)


if __name__ == "__main__":
    main()
