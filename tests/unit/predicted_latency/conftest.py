# SPDX-License-Identifier: Apache-2.0
"""A predicted-latency-producer whose requests go to slots that a test chooses."""

from collections.abc import Callable

import numpy as np
import pytest

from epp.framework import (
    ENDPOINT_RATES,
    LATENCY_PREDICTION,
    PREFIX_MATCH,
    Candidates,
    Headers,
    ManualClock,
    PrefixMatch,
    Request,
    RequestBody,
    Response,
    Usage,
)
from epp.framework.testing import candidates, endpoint_rates
from epp.pool.predicted_latency.producer import PredictedLatencyProducer
from tests.support.plugins import built
from tests.support.results import legs_to

RATES = endpoint_rates([10_000, 2000, 500], itl_base=[0.005, 0.020, 0.060])
"""1000 tokens take 0.1, 0.5 and 2 s."""


class World:
    """Requests of 1000 tokens to three endpoints."""

    def __init__(self, *, rates=RATES, pool=None, **parameters):
        self.clock = ManualClock()
        self.plugin = built(PredictedLatencyProducer, parameters, name="predicted-latency-producer", clock=self.clock)
        self.rates = rates
        self.pool = pool or candidates(in_flight=[0, 1, 2], kv_usage=[0.1, 0.2, 0.3])

    def request(
        self, *, held=(0, 0, 0), dry_run=False, streaming=True, prompt_tokens=1000, max_output_tokens=None, **targets
    ):
        fields = [(f"x-llm-d-slo-{name}-ms", str(value)) for name, value in targets.items()]
        body = RequestBody(
            model="m", prompt_tokens=prompt_tokens, streaming=streaming, max_output_tokens=max_output_tokens
        )
        request = Request("r", body, Headers(fields), received_at=self.clock.now(), dry_run=dry_run)
        request.put(PREFIX_MATCH, PrefixMatch(np.array(held, dtype=np.int32), 10, block_tokens=100))
        if self.rates is not None:
            request.put(ENDPOINT_RATES, self.rates)
        return request

    @property
    def now(self):
        return Candidates(self.pool.snapshot, self.pool.slots, now=self.clock.now())

    def predict(self, request=None, **more):
        request = request or self.request(**more)
        self.plugin.produce(request, self.now)
        return request.get(LATENCY_PREDICTION)

    def send(self, slot=0, *, prefill=None, request=None, **more):
        request = request or self.request(**more)
        self.plugin.produce(request, self.now)
        slots = {"decode": slot} if prefill is None else {"decode": slot, "prefill": prefill}
        self.plugin.pre_request(request, legs_to(self.now, **slots))
        return request

    def answer(self, request, slot=0, *, first=0.1, total=0.2, tokens=11, status=200):
        response = Response(self.pool[slot], "", status, Headers(), Usage(1000, tokens, 0))
        self.plugin.first_token(request, response, first)
        self.plugin.ended(request, response, total - first)

    def metric(self, name, *labels):
        """Value of a metric: for a histogram, its count and sum."""
        for sample in self.plugin.samples:
            if sample.metric.name == name and sample.labels == labels:
                value = sample.value
                return value if isinstance(value, (int, float)) else (sum(value.counts), value.total)
        return None


@pytest.fixture
def streamed() -> World:
    """A world whose responses are streamed."""
    return World(streamingMode=True)


@pytest.fixture
def world(monkeypatch) -> Callable[..., World]:
    """Make a world; `environment` are variables."""

    def make(*, environment=None, **more):
        for name, value in (environment or {}).items():
            monkeypatch.setenv(name, value)
        return World(**more)

    return make
