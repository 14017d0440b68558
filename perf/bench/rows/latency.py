# SPDX-License-Identifier: Apache-2.0
"""Latency that the picker adds to requests at fixed rates, compared with the same Envoy without a picker.

A failed request counts as one that took as long as the run. Times depend on everything that runs on the machine:
clients, servers, Envoy and picker share its CPUs.
"""

from contextlib import AsyncExitStack

from perf.bench.report.samples import Samples
from perf.bench.rows.plan import Plan
from perf.rig.stand import Load, stand
from perf.rig.stand import alone as envoy_alone

SMALL, LARGE = 8, 1000
RATES = {SMALL: (100, 320, 1000), LARGE: (1000,)}
"""Requests per second, by size of the pool."""
_CONNECTIONS = 64
_WARM = Load(64)
_ROUNDS, _SECONDS = 3, 45.0


async def measure(plan: Plan, samples: Samples) -> None:
    """Run all rates, alternating between the pickers and Envoy without a picker."""
    seconds = plan.scaled(30, 4) / 10
    sent = 0
    async with plan.loader() as load, envoy_alone(load) as alone:
        await alone.run(_WARM, sent)
        for size, rates in RATES.items():
            async with AsyncExitStack() as stack:
                kinds = plan.kinds if size == SMALL else plan.kinds[:1]  # polls by one picker at a time are enough load
                stands = [
                    await stack.enter_async_context(stand(load, kind, servers=min(size, plan.scaled(size, 100))))
                    for kind in kinds
                ]
                for found in stands:
                    await found.run(_WARM, sent)
                for number in plan.rounds_of(f"latency, {size} servers", _ROUNDS, seconds=_SECONDS):
                    for rate in rates:
                        paced = Load(int(rate * seconds), connections=_CONNECTIONS, rate=rate)
                        base = await alone.run(paced, sent)
                        for found in plan.turns(stands, number):
                            outcome = await found.run(paced, sent)
                            if size == LARGE:
                                samples.add("failed-1000", found.name, outcome.failed / outcome.requests * 100)
                            samples.add(f"added-p50-{rate}-{size}", found.name, (outcome.p50 - base.p50) * 1e3)
                            samples.add(f"added-p99-{rate}-{size}", found.name, (outcome.p99 - base.p99) * 1e3)
                        sent += paced.requests
