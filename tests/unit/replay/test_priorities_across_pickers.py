# SPDX-License-Identifier: Apache-2.0
"""Queues of several pickers in overload: priorities and fairness beside those of one picker, in virtual time."""

import random
from dataclasses import dataclass

import numpy as np
import pytest

from epp.config import load_text
from epp.lab.replay.fleet import Fleet, ReplayOptions
from epp.lab.replay.outcome import Outcome, Status
from epp.lab.replay.simulation import Simulation
from epp.lab.replay.traffic import TraceTraffic
from epp.lab.traces.trace import TraceRequest
from tests.unit.replay.conftest import ListTrace, fleet

PLACES, SERVERS = 16, 4
CAPACITY = 27.0
"""Requests a second of four servers with 16 places each."""
SECONDS = 20.0
HIGH_SHARE, LOW_SHARES = 0.5, {"a": 0.8, "b": 0.4, "c": 0.4, "d": 0.4}
"""Rates as shares of the capacity, of one tenant of high priority and four of low priority: 2.5 times what is there."""
CONFIG = f"""
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- type: active-request-scorer
- type: concurrency-detector
  parameters: {{maxConcurrency: {PLACES}}}
- type: round-robin-fairness-policy
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: active-request-scorer
flowControl:
  saturationDetector: {{pluginRef: concurrency-detector}}
  maxRequests: 100000
  defaultPriorityBand:
    fairnessPolicyRef: round-robin-fairness-policy
    defaultRequestTTL: 1h
    maxRequests: 100000
    maxBytes: 1Gi
"""
OBJECTIVE = """
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: high}
spec: {priority: 100, poolRef: {name: pool}}
"""


@dataclass(frozen=True)
class Figures:
    """Of the time in which all queues are full."""

    inverted: float
    """Share of low-priority requests that left a queue while one of high priority waited, at any picker."""
    high_p90: float
    """Seconds in the queue."""
    fairness: float
    """Jain's index over the tenants of low priority, of requests that left the queue."""
    most_in_flight: int
    """At all servers together."""
    served: int


def trace() -> ListTrace:
    generator, found = random.Random(1), []
    for tenant, share in {"high": HIGH_SHARE, **LOW_SHARES}.items():
        at = 0.0
        while (at := at + generator.expovariate(share * CAPACITY)) < SECONDS:
            objective = "high" if tenant == "high" else ""
            found.append(TraceRequest(at=at, prompt_tokens=300, output_tokens=100, tenant=tenant, objective=objective))
    return ListTrace(sorted(found, key=lambda request: request.at))


def figures(pickers: int, share_seconds: float | None, objectives: str, servers: Fleet) -> Figures:
    options = ReplayOptions(
        pickers=pickers, share_seconds=share_seconds, objects=(objectives,), regret_every=0, report_seconds=SECONDS
    )
    simulation = Simulation(load_text(CONFIG, "test"), servers, TraceTraffic(trace()), options)
    return judged(simulation.run(lambda _: False))  # it ends with the last arrival


def judged(outcome: Outcome) -> Figures:
    columns = outcome.columns
    left = np.where(columns.server >= 0, columns.at + np.nan_to_num(columns.queued), np.inf)
    counted = (left > SECONDS / 4) & (left < SECONDS)
    high = columns.tenant == outcome.tenants.index("high")
    inverted = [bool((high & (columns.at < at - 1e-6) & (left > at + 1e-6)).any()) for at in left[counted & ~high]]
    shares = np.array([(counted & (columns.tenant == outcome.tenants.index(name))).sum() for name in LOW_SHARES])
    starts, ends = np.sort(left[left < SECONDS]), np.sort(np.nan_to_num(columns.at + columns.total, nan=np.inf))
    in_flight = np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, side="right")
    return Figures(
        float(np.mean(inverted)),
        float(np.quantile(np.nan_to_num(columns.queued)[high & counted], 0.9)),
        float(shares.sum() ** 2 / (len(shares) * (shares**2).sum())),
        int(in_flight.max()),
        int((columns.status == Status.SERVED).sum()),
    )


@pytest.mark.slow
def test_three_pickers_hold_ceiling_and_shares_but_not_the_order_of_priorities(tmp_path):
    objectives = tmp_path / "objectives.yaml"
    objectives.write_text(OBJECTIVE)
    servers = fleet(*["a100"] * SERVERS)
    one = figures(1, None, str(objectives), servers)
    three = figures(3, 0.02, str(objectives), servers)
    assert one.inverted == 0
    assert three.inverted < 0.6  # a picker without a request of high priority takes free places for low ones
    assert three.high_p90 < 1.3 * one.high_p90
    assert three.most_in_flight <= one.most_in_flight + 3
    assert min(one.fairness, three.fairness) > 0.99
    assert figures(3, None, str(objectives), servers).most_in_flight > 2 * one.most_in_flight  # if they share nothing
