# SPDX-License-Identifier: Apache-2.0
"""An endpoint that becomes ten times slower than it was: requests leave it, without any failure."""

from collections import Counter

from epp.config import Builder, assemble, default_config
from epp.framework import Endpoint, Headers, ManualClock
from epp.framework.registry import Registry
from epp.routing.datastore import Datastore
from epp.routing.director import Cause, Director, Runtime

FAST, SLOWED = (Endpoint(name, f"10.0.0.{number}", 8000) for number, name in enumerate(("fast", "slowed"), 1))
TOKEN, DONE = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n', b"data: [DONE]\n\n"
PROMPT_SECONDS, TOKEN_SECONDS, TOKENS = 0.2, 0.02, 40


def test_traffic_leaves_an_endpoint_that_has_become_ten_times_slower():
    clock = ManualClock()
    store = Datastore(clock)
    store.replace([FAST, SLOWED])
    pipeline = assemble(default_config(), Builder(Registry(), clock)).pipeline
    director = Director(Runtime(store, clock), pipeline)
    picks: Counter[str] = Counter()

    def serve(number: int, slowness: float) -> None:
        body = b'{"model":"m","stream":true,"prompt":"%s"}' % (f"{number} " * 4000).encode()
        routing = director.route(Headers([(":path", "/v1/completions"), ("x-request-id", str(number))]), body, None)
        picks[routing.served.name] += 1
        factor = slowness if routing.served == SLOWED else 1.0
        routing.response_started(200, Headers, event_stream=True)
        clock.advance(PROMPT_SECONDS * factor)
        for _ in range(TOKENS):
            routing.response_piece(TOKEN, last=False, now=clock.now)
            clock.advance(TOKEN_SECONDS * factor)
        routing.response_piece(DONE, last=True, now=clock.now)
        routing.complete(Cause.NATURAL)

    for number in range(60):
        serve(number, 1.0)
    assert picks["slowed"] >= 1  # what it was like is known
    for number in range(60, 120):
        serve(number, 10.0)
    picks.clear()
    for number in range(120, 200):
        serve(number, 10.0)
    assert picks["slowed"] <= 8
    assert director.outliers.is_clean  # it is slow, and fails nothing
